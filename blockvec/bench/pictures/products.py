"""Pictures from results on record: the fraction of the roofline over the width, M x N maps, solver times."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ...kernels.cache import replace_file
from ..paper import pictures as paper_pictures
from . import (
    accuracy as accuracy_pictures,
)
from . import (
    eigsh,
    jacobi_davidson,
    orthogonality,
)
from . import (
    sparse as sparse_pictures,
)

__all__ = ["check_plotting", "draw"]

Record = dict[str, Any]

MANY_WIDTHS = 20  # more have a linear axis

SALT = "blockvec"  # names of an SVG's parts come from it, so that equal results give equal files


def check_plotting() -> None:
    """Raise where pictures cannot be drawn, before anything is measured for one.

    Raises
    ------
    OptionError
        Without matplotlib; the message names the remedy.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise OptionError(
            "pictures need matplotlib, which is not installed: pip install 'blockvec[plot]'."
        ) from None


def draw(document: Record, path: str | Path) -> None:
    """Draw the picture that suits a document's records.

    Parameters
    ----------
    document : dict
        As `blockvec.bench.records.read` returns it.
    path : path
        The picture, by its ending .svg, .png or .pdf; its folder is made.

    Raises
    ------
    OptionError
        Without matplotlib, for an ending it does not know, or records that there is no picture for.
    OSError
        Where the file cannot be written.
    """
    check_plotting()
    import matplotlib

    path = Path(path)
    figures = [r for r in document["records"] if "figure" in r]
    solver = [r for r in document["records"] if r.get("operation") == "eigsh"]
    blocks = [r for r in document["records"] if r.get("operation") == "eigsh_blocks"]
    accuracy = [r for r in document["records"] if r.get("operation") == "accuracy"]
    kernels = [r for r in document["records"] if "fraction" in r and "M" in r]
    rectangular = [r for r in kernels if r["M"] != r["N"]]
    losses = [r for r in document["records"] if r.get("operation") == "orthogonality"]
    orthogonalized = [r for r in document["records"] if r.get("operation") == "orthogonalize"]
    painter: Callable[[Any, Sequence[Record]], None]
    latencies = [r for r in kernels if "replay_s" in r]
    sparse = [r for r in kernels if r.get("matrix")]
    if figures:
        painter, records = functools.partial(paper_pictures.paint, ceilings=document["ceilings"]), figures
    elif accuracy:
        painter, records = accuracy_pictures.paint, accuracy
    elif losses:
        painter, records = orthogonality.paint_loss, losses
    elif orthogonalized:
        painter, records = orthogonality.paint_times, orthogonalized
    elif latencies:
        painter, records = _latency_curves, latencies
    elif solver and all("table" in r for r in solver):
        painter, records = jacobi_davidson.paint, solver
    elif solver:
        painter, records = eigsh.paint_times, solver
    elif blocks:
        painter, records = eigsh.paint_block_sizes, blocks
    elif sparse and len(sparse) == len(kernels):
        painter, records = sparse_pictures.paint, sparse
    elif rectangular:
        painter, records = _maps, kernels
    elif kernels:
        painter, records = _width_curves, kernels
    else:
        raise OptionError(f"{path.name}: these results hold no records that there is a picture for.")
    with matplotlib.rc_context({"svg.hashsalt": SALT, "font.size": 9, "axes.axisbelow": True}):
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        painter(figure, records)
        figure.suptitle(_title(document["environment"]), fontsize=10)
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    ending = path.suffix.lstrip(".").lower() or "none"
    if ending not in figure.canvas.get_supported_filetypes():
        raise OptionError(f"{path}: a picture cannot be of type {ending!r}; name it .svg, .png or .pdf.")
    content = io.BytesIO()
    # No date: the picture is a function of the results.
    figure.savefig(content, format=ending, dpi=150, metadata={"Date": None} if ending == "svg" else None)
    replace_file(path, content.getvalue())


def _title(environment: Record) -> str:
    cores = f", {environment['cores']} cores" if environment.get("cores") else ""
    return f"{environment.get('device', '')}{cores}, {environment.get('date', '')}"


_NAMES = {
    "tsmttsm": "$A^H B$",
    "gram": "$A^H A$",
    "tsmm": "$A\\,C$",
    "update": "$A\\,C + \\beta B$",
    "inplace": "$V \\leftarrow V C$",
    "combine_dot": "$V C$ and $W^H V$",
    "update_gram": "$V - W C$ and $V^H V$",
    "spmmv": "sparse matrix times block",
    "axpby": "$\\alpha X + \\beta Y$",
}


def _groups(records: Sequence[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return groups


def _axes_table(figure: Any, records: Sequence[Record], width: float, height: float) -> dict[Any, Any]:
    """Return axes by (dtype, operation): types in rows, operations in columns."""
    dtypes = list(dict.fromkeys(r["dtype"] for r in records))
    operations = list(dict.fromkeys(r["operation"] for r in records))
    figure.set_size_inches(width * len(operations), height * len(dtypes) + 0.6)
    grid = figure.subplots(len(dtypes), len(operations), squeeze=False)
    return {
        (dtype, operation): grid[row][column]
        for row, dtype in enumerate(dtypes)
        for column, operation in enumerate(operations)
    }


def _task(record: Record) -> str:
    """Return what tells curves apart: the operation, and for products whether they update or overwrite."""
    if record.get("inplace"):
        return "inplace"
    return "update" if record.get("beta", "zero") != "zero" else str(record["operation"])


def _width_curves(figure: Any, records: Sequence[Record]) -> None:
    """Fraction of the roofline over the width: a line for blockvec and one for each peer."""
    records = [record | {"operation": _task(record)} for record in records]
    peers = sorted({name for r in records for name in r["peers"]})
    groups = _groups(records, "dtype", "operation")
    top = max(1.1, 1.05 * max(r["fraction"] for r in records))
    for key, axes in _axes_table(figure, records, 3.4, 2.5).items():
        members = sorted(groups.get(key, []), key=lambda r: r["M"])
        axes.set_visible(bool(members))
        if not members:
            continue
        size = 4 if len(members) <= MANY_WIDTHS else 2
        for index, peer in enumerate(peers):
            known = [r for r in members if peer in r["peers"]]
            fractions = [r["fraction"] * r["time_s"] / r["peers"][peer] for r in known]
            if known:
                line = {"color": f"C{index + 1}", "markersize": size, "label": peer}
                axes.plot([r["M"] for r in known], fractions, "s--", **line)
        widths = [r["M"] for r in members]
        axes.plot(
            widths, [r["fraction"] for r in members], "o-", color="C0", markersize=size, label="blockvec"
        )
        axes.axhline(1, color="black", linewidth=0.8)
        if len(widths) <= MANY_WIDTHS:
            axes.set_xscale("log", base=2)
            axes.set_xticks(widths, _sparse_labels(widths), fontsize=7)
            axes.minorticks_off()
        axes.set_ylim(0, top)
        dtype, operation = key
        axes.set_title(f"{_NAMES.get(operation, operation)}, {dtype}", fontsize=9)
        axes.set_xlabel("columns")
        axes.set_ylabel("fraction of the roofline")
        axes.grid(alpha=0.3)
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        entries |= {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4, fontsize=8)


def _sparse_labels(widths: Sequence[int]) -> list[str]:
    """Labels of a logarithmic axis, without those that would run into the next."""
    following = [*widths[1:], math.inf]
    return [
        str(width) if after / width > 1.13 else "" for width, after in zip(widths, following, strict=True)
    ]


def _latency_curves(figure: Any, records: Sequence[Record]) -> None:
    """Time over the number of rows: the call from Python, and in graph replay, beside the peer's."""
    groups = _groups(records, "dtype", "M")
    figure.set_size_inches(3.8 * len(groups), 3.4)
    for axes, ((dtype, width), members) in zip(
        figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
    ):
        members = sorted(members, key=lambda r: r["K"])
        (peer,) = members[0]["peers"]
        rows = [r["K"] for r in members]
        lines = {
            "blockvec, call": ("C0", "o-", [r["time_s"] for r in members]),
            "blockvec, graph replay": ("C0", "o:", [r["replay_s"] for r in members]),
            "the same without its sums": ("C2", "x:", [r.get("unsummed_s") for r in members]),
            f"{peer}, call": ("C1", "s-", [r["peers"][peer] for r in members]),
            f"{peer}, graph replay": ("C1", "s:", [r["peers_replay"][peer] for r in members]),
        }
        for label, (color, style, times) in lines.items():
            if None not in times:
                times_us = [1e6 * time_s for time_s in times]
                axes.plot(rows, times_us, style, color=color, markersize=3, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"$A^H B$, {dtype}, {width} columns", fontsize=9)
        axes.set_xlabel("rows")
        axes.set_ylabel("microseconds")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)


def _maps(figure: Any, records: Sequence[Record]) -> None:
    """Fraction of the roofline over both widths, a map a type and operation."""
    records = [r for r in records if r["operation"] in ("tsmttsm", "tsmm", "combine_dot", "update_gram")]
    groups = _groups(records, "dtype", "operation")
    for (dtype, operation), axes in _axes_table(figure, records, 4.4, 3.7).items():
        members = groups.get((dtype, operation), [])
        if not members:
            axes.set_axis_off()
            continue
        widths_m = sorted({r["M"] for r in members})
        widths_n = sorted({r["N"] for r in members})
        values = [[math.nan] * len(widths_n) for _ in widths_m]
        for r in members:
            values[widths_m.index(r["M"])][widths_n.index(r["N"])] = r["fraction"]
        image = axes.imshow(values, origin="lower", vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_xticks(range(len(widths_n)), widths_n, fontsize=7)
        axes.set_yticks(range(len(widths_m)), widths_m, fontsize=7)
        for r in members:
            place = widths_n.index(r["N"]), widths_m.index(r["M"])
            shade = "black" if r["fraction"] > 0.6 else "white"
            axes.text(*place, f"{100 * r['fraction']:.0f}", ha="center", va="center", fontsize=6, color=shade)
        axes.set_title(f"{_NAMES.get(operation, operation)}, {dtype}: per cent of the roofline", fontsize=9)
        axes.set_xlabel("N")
        axes.set_ylabel("M")
        figure.colorbar(image, ax=axes, shrink=0.9)
