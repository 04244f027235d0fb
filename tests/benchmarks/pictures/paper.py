"""Pictures that reproduce the figures of Ernst et al. (2021), drawn from the records of `paper_figures`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.benchmarks.pictures.shared import distinct, plot, reference_line
from tests.benchmarks.records import Record

_PRODUCTS = {"tsmttsm": "$A^H B$", "tsmm": "$A\\,C$"}
_FLOPS = {"float64": 2, "complex128": 8}  # per multiply-add
_FAMILIES = {"mma": ("o-", "tensor cores"), "fma": (".-", "multiply-adds")}


def paint(figure: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw one panel per figure with records, two side by side."""
    panels = []
    for name, task, paint_panel in _PANELS:
        members = [r for r in records if r["figure"] == name]
        if task is not None:
            members = [r for r in members if (r["operation"], r["dtype"]) == task]
        if members:
            panels.append((paint_panel, members))
    rows = math.ceil(len(panels) / 2)
    figure.set_size_inches(11, 3.6 * rows + 0.4)
    grid = figure.subplots(rows, 2, squeeze=False).reshape(-1)
    for axes, (paint_panel, members) in zip(grid, panels, strict=False):
        paint_panel(axes, members, ceilings)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()


def _best(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], Record]:
    """Select the fastest record per combination of the keys, sorted by the combination."""
    best: dict[tuple[Any, ...], Record] = {}
    for record in records:
        key = tuple(record[name] for name in keys)
        if key not in best or record["time_s"] < best[key]["time_s"]:
            best[key] = record
    return dict(sorted(best.items()))


def _finish(axes: Any, title: str, x: str, y: str, **legend: Any) -> None:
    axes.set_title(title, fontsize=9)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, **legend)


def _roofline(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the fraction of the roofline over the width, per family and for cuBLAS."""
    for ending, (style, label) in _FAMILIES.items():
        members = sorted((r for r in records if r["family"].endswith(ending)), key=lambda r: r["M"])
        plot(axes, members, "M", "fraction", style, markersize=3, linewidth=1, label=label)
    for peer in sorted({name for r in records for name in r["peers"]}):
        known = sorted(
            (r["M"], r["fraction"] * r["time_s"] / r["peers"][peer]) for r in records if peer in r["peers"]
        )
        axes.plot(*zip(*dict(known).items(), strict=True), "--", linewidth=1, label=peer)
    reference_line(axes.axhline)
    axes.set_ylim(0, 1.1)
    first = records[0]
    title = f"{_PRODUCTS[first['operation']]}, {first['dtype']}"
    _finish(axes, title, "M = N", "fraction of the roofline", ncols=2, loc="lower left")


def _widths(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the same for the fastest of the paper's kernels, beside the kernel that is selected."""
    _roofline(axes, list(_best(records, "M").values()), ceilings)


def _gflops(record: Record) -> float:
    work = float(_FLOPS[record["dtype"]] * record["K"] * record["M"] * record["N"])
    return work / float(record["time_s"]) * 1e-9


def _width_lines(
    axes: Any, records: Sequence[Record], keys: Sequence[str], label: Callable[..., str], limit: float
) -> None:
    """Draw the best rate over the width per setting, with the memory limit."""
    best = _best(records, *keys, "M")
    for setting in dict.fromkeys(key[:-1] for key in best):
        line = [(key[-1], _gflops(r)) for key, r in best.items() if key[:-1] == setting]
        axes.plot(*zip(*line, strict=True), "o-", markersize=3, linewidth=1, label=label(*setting))
    widths = sorted({r["M"] for r in records})
    axes.plot(widths, [w / 8 * limit for w in widths], "k--", linewidth=0.8, label="memory limit")
    axes.set_ylim(0, 1.15 * max(map(_gflops, best.values())))


def _permutations(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    def label(leapfrog: bool, interleaved: bool) -> str:
        return f"{'leap frog' if leapfrog else 'no leap frog'}, {'interleaved' if interleaved else 'blocked'}"

    _width_lines(axes, records, ("leapfrog", "interleaved"), label, ceilings["read_gb_s"])
    _finish(axes, "$A^T B$, float64: tiles and prefetch", "M = N", "Gflop/s")


def _tiles(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the rate over the sides of the tile, with contours at 128 and 255 registers per thread."""
    sides = sorted({r[side] for r in records for side in ("tm", "tn")})
    values = [[math.nan] * len(sides) for _ in sides]
    for (tm, tn), r in _best(records, "tm", "tn").items():
        values[sides.index(tn)][sides.index(tm)] = _gflops(r)
    image = axes.imshow(values, origin="lower", cmap="viridis")
    axes.figure.colorbar(image, ax=axes, label="Gflop/s", shrink=0.9)
    need = [[2 * (tm * tn + 2 * (tm + tn) + 8) for tm in sides] for tn in sides]
    axes.contour(need, levels=(128, 255), colors="white", linewidths=1)
    axes.set_xticks(range(len(sides)), sides, fontsize=7)
    axes.set_yticks(range(len(sides)), sides, fontsize=7)
    axes.set_title(f"$A^T B$, float64, M = N = {records[0]['M']}: tile size per thread", fontsize=9)
    axes.set(xlabel="$T_M$", ylabel="$T_N$")


def _occupancy(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    for index, operation in enumerate(distinct(records, "operation")):
        for style, unroll in zip(("o-", "s--", "^:"), (1, 4, 16), strict=True):
            line = sorted(
                (r["warps"], r["bandwidth_gb_s"])
                for r in records
                if (r["operation"], r["unroll"]) == (operation, unroll) and r["warps"]
            )
            label = f"{operation}, {unroll} in flight"
            axes.plot(*zip(*line, strict=True), style, color=f"C{index}", markersize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0)
    _finish(axes, "Streams: occupancy", "warps per multiprocessor", "GB/s")


def _reductions(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the time without a reduction divided by the time with each reduction."""
    names = {"partials": "in a fixed order", "blocks": "atomics per block", "threads": "atomics per thread"}
    bare = {(r["M"], r["K"]): r["time_s"] for r in records if r["reduction"] == "none"}
    for index, (reduction, label) in enumerate(names.items()):
        for style, width in zip(("o-", "s--"), sorted({r["M"] for r in records}), strict=False):
            line = sorted(
                (r["K"], bare[width, r["K"]] / r["time_s"])
                for r in records
                if (r["reduction"], r["M"]) == (reduction, width)
            )
            if line:
                shown = f"{label}, M = {width}"
                axes.plot(*zip(*line, strict=True), style, color=f"C{index}", markersize=3, label=shown)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.1)
    _finish(axes, "$A^T B$, float64: sums over the threads", "rows", "speed relative to none")


def _option(key: str, title: str, text: str) -> Callable[[Any, Sequence[Record], Record], None]:
    def paint_panel(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
        _width_lines(axes, records, (key,), text.format, ceilings["copy_gb_s"])
        _finish(axes, f"$A\\,C$, float64: {title}", "M = N", "Gflop/s")

    return paint_panel


# Figure, records of it (operation and type; None for all), painter.
_PANELS: tuple[tuple[str, tuple[str, str] | None, Callable[[Any, Sequence[Record], Record], None]], ...] = (
    ("roofline", ("tsmttsm", "float64"), _roofline),
    ("roofline", ("tsmttsm", "complex128"), _roofline),
    ("roofline", ("tsmm", "float64"), _roofline),
    ("roofline", ("tsmm", "complex128"), _roofline),
    ("widths", ("tsmttsm", "float64"), _widths),
    ("widths", ("tsmttsm", "complex128"), _widths),
    ("widths", ("tsmm", "float64"), _widths),
    ("widths", ("tsmm", "complex128"), _widths),
    ("permutations", None, _permutations),
    ("tiles", None, _tiles),
    ("occupancy", None, _occupancy),
    ("reductions", None, _reductions),
    ("combinations", None, _option("spread", "threads that share a row", "{} threads per row")),
    ("combinations", None, _option("coefficients", "where C is read", "C in {}")),
    ("combinations", None, _option("unroll", "rows per thread", "{} rows per thread")),
)
