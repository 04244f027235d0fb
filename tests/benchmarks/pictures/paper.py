"""Pictures that reproduce the figures of Ernst et al. (2021), drawn from the records of `paper.figures`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.benchmarks.pictures.shared import distinct, peer_fractions, plot, reference_line
from tests.benchmarks.records import Record

CHEAP = 0.9  # speed beside the kernel without a reduction, from which a reduction is cheap
_PRODUCTS = {"tsmttsm": "$A^H B$", "tsmm": "$A\\,C$"}
_FLOPS = {"float64": 2, "complex128": 8}  # per multiply-add
_REDUCTIONS = {"partials": "in a fixed order", "blocks": "atomics per block", "threads": "atomics per thread"}


def paint(figure: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw one panel per figure with records, two side by side."""
    panels = []
    for name, task, paint_panel in _PANELS:
        members = [r for r in records if r["figure"] == name and (r["operation"], r["dtype"]) == task]
        if members:
            panels.append((paint_panel, members))
    rows = math.ceil(len(panels) / 2)
    figure.set_size_inches(11, 3.6 * rows + 0.4)
    grid = figure.subplots(rows, 2, squeeze=False).reshape(-1)
    for axes, (paint_panel, members) in zip(grid, panels, strict=False):
        paint_panel(axes, members, ceilings)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()


def rows_from(records: Sequence[Record], reduction: str, width: int) -> int | None:
    """Find the number of rows from which a reduction is cheap; None if it is not even for the most rows."""
    found = None
    for rows, speed in reversed(_relative(records, reduction, width)):
        if speed < CHEAP:
            break
        found = rows
    return found


def _relative(records: Sequence[Record], reduction: str, width: int) -> list[tuple[int, float]]:
    """List rows, and the time without a reduction divided by the time with it."""
    times = {(r["reduction"], r["K"]): r["time_s"] for r in records if r["M"] == width}
    known = sorted(K for kind, K in times if kind == reduction)
    return [(K, times["none", K] / times[reduction, K]) for K in known]


def _best(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], Record]:
    """Select the fastest record per combination of the keys, sorted by the combination."""
    best: dict[tuple[Any, ...], Record] = {}
    for record in records:
        key = tuple(record[name] for name in keys)
        if key not in best or record["time_s"] < best[key]["time_s"]:
            best[key] = record
    return dict(sorted(best.items()))


def _finish(axes: Any, records: Sequence[Record], title: str, x: str, y: str, **legend: Any) -> None:
    first = records[0]
    axes.set_title(f"{_PRODUCTS[first['operation']]}, {first['dtype']}{title}", fontsize=9)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, **legend)


def _roofline(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the fraction of the roofline over the width, of the paper's kernels and their peers."""
    members = list(_best(records, "M").values())
    plot(axes, members, "M", "fraction", "o-", markersize=3, linewidth=1, label="the paper's kernels")
    peers = list(dict.fromkeys(peer for r in members for peer in r["peers"]))
    peer_fractions(axes, members, peers, markersize=2, linewidth=1)
    reference_line(axes.axhline)
    axes.set_ylim(0, 1.1)
    _finish(axes, records, "", "M = N", "fraction of the roofline", ncols=2, loc="lower left")


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
    per_byte = _FLOPS[records[0]["dtype"]] / (32 if records[0]["dtype"] == "complex128" else 16)
    limits = [width * per_byte * limit for width in widths]
    axes.plot(widths, limits, "k--", linewidth=0.8, label="memory limit")
    axes.set_ylim(0, 1.15 * max(map(_gflops, best.values())))


def _permutations(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    def label(leapfrog: bool, interleaved: bool) -> str:
        return f"{'leap frog' if leapfrog else 'no leap frog'}, {'interleaved' if interleaved else 'blocked'}"

    _width_lines(axes, records, ("leapfrog", "interleaved"), label, ceilings["read_gb_s"])
    _finish(axes, records, ": tiles and prefetch", "M = N", "Gflop/s")


def _tiles(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the rate over the sides of the tile, with the paper's contours at 128 and 255 registers."""
    sides = sorted({r[side] for r in records for side in ("tm", "tn")})
    values = [[math.nan] * len(sides) for _ in sides]
    for (tm, tn), r in _best(records, "tm", "tn").items():
        values[sides.index(tn)][sides.index(tm)] = _gflops(r)
    image = axes.imshow(values, origin="lower", cmap="viridis")
    axes.figure.colorbar(image, ax=axes, label="Gflop/s", shrink=0.9)
    words = 4 if records[0]["dtype"] == "complex128" else 2
    need = [[words * (tm * tn + 2 * (tm + tn) + 8) for tm in sides] for tn in sides]
    axes.contour(need, levels=(128, 255), colors="white", linewidths=1)
    axes.set_xticks(range(len(sides)), sides, fontsize=7)
    axes.set_yticks(range(len(sides)), sides, fontsize=7)
    first = records[0]
    axes.set_title(f"$A^H B$, {first['dtype']}, M = N = {first['M']}: tile size per thread", fontsize=9)
    axes.set(xlabel="$T_M$", ylabel="$T_N$")


def _occupancy(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the rate over the launched warps, of the kernel and of those with few sums and rows."""
    for index, tile in enumerate(distinct(records, "tile")):
        for style, variant in zip(("o-", "^--", "s:"), distinct(records, "variant"), strict=False):
            line = [r for r in records if (r["tile"], r["variant"]) == (tile, variant)]
            line = sorted(line, key=lambda r: r["warps"])
            rates = list(map(_gflops, line))
            label = f"{tile}, {variant}"
            axes.plot([r["warps"] for r in line], rates, style, color=f"C{index}", markersize=3, label=label)
    axes.set_ylim(0)
    _finish(axes, records, f", M = N = {records[0]['M']}: occupancy", "warps per multiprocessor", "Gflop/s")


def _reductions(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
    """Draw the time without a reduction divided by the time with each reduction."""
    for index, (reduction, label) in enumerate(_REDUCTIONS.items()):
        for style, width in zip(("o-", "s--"), sorted({r["M"] for r in records}), strict=False):
            if line := _relative(records, reduction, width):
                begin = rows_from(records, reduction, width)
                shown = f"{label}, M = {width}" + (f": cheap from {begin:.0e}" if begin else "")
                axes.plot(*zip(*line, strict=True), style, color=f"C{index}", markersize=3, label=shown)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.1)
    _finish(axes, records, ": sums over the threads", "rows", "speed relative to none")


def _option(key: str, title: str, text: str) -> Callable[[Any, Sequence[Record], Record], None]:
    def paint_panel(axes: Any, records: Sequence[Record], ceilings: Record) -> None:
        _width_lines(axes, records, (key,), text.format, ceilings["copy_gb_s"])
        _finish(axes, records, f": {title}", "M = N", "Gflop/s")

    return paint_panel


_DOT, _DOT_Z = ("tsmttsm", "float64"), ("tsmttsm", "complex128")
_COMBINE, _COMBINE_Z = ("tsmm", "float64"), ("tsmm", "complex128")
# Figure, operation and type of its records, painter.
_PANELS: tuple[tuple[str, tuple[str, str], Callable[[Any, Sequence[Record], Record], None]], ...] = (
    *(("roofline", task, _roofline) for task in (_DOT, _DOT_Z, _COMBINE, _COMBINE_Z)),
    *(("permutations", task, _permutations) for task in (_DOT, _DOT_Z)),
    *(("tiles", task, _tiles) for task in (_DOT, _DOT_Z)),
    ("occupancy", _DOT, _occupancy),
    ("reductions", _DOT, _reductions),
    ("combinations", _COMBINE, _option("spread", "threads that share a row", "{} threads per row")),
    ("combinations", _COMBINE, _option("coefficients", "where C is read", "C in {}")),
    ("combinations", _COMBINE, _option("unroll", "rows per thread", "{} rows per thread")),
)
