"""Pictures of products: fraction of the roofline over the width, and over both widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..records import Record, grouped

__all__ = ["paint_maps", "paint_width_curves"]

MANY_WIDTHS = 20  # above, the axis is linear

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


def _axes_grid(figure: Any, records: Sequence[Record], width: float, height: float) -> dict[Any, Any]:
    """Create one subplot per (dtype, operation): types in rows, operations in columns."""
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
    """Name the operation of a record; updates and in-place products have their own names."""
    if record.get("inplace"):
        return "inplace"
    return "update" if record.get("beta", "zero") != "zero" else str(record["operation"])


def paint_width_curves(figure: Any, records: Sequence[Record]) -> None:
    """Draw the fraction of the roofline over the width: one line for blockvec, one per peer."""
    records = [record | {"operation": _task(record)} for record in records]
    peers = sorted({name for r in records for name in r["peers"]})
    groups = grouped(records, "dtype", "operation")
    top = max(1.1, 1.05 * max(r["fraction"] for r in records))
    for key, axes in _axes_grid(figure, records, 3.4, 2.5).items():
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
    """Label a logarithmic axis; labels that would overlap the next are left out."""
    following = [*widths[1:], math.inf]
    return [
        str(width) if after / width > 1.13 else "" for width, after in zip(widths, following, strict=True)
    ]


def paint_maps(figure: Any, records: Sequence[Record]) -> None:
    """Draw the fraction of the roofline over both widths: one map per type and operation."""
    records = [r for r in records if r["operation"] in ("tsmttsm", "tsmm", "combine_dot", "update_gram")]
    groups = grouped(records, "dtype", "operation")
    for (dtype, operation), axes in _axes_grid(figure, records, 4.4, 3.7).items():
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
