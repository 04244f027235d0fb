"""Pictures of products: fraction of the roofline over the width, and over both widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.pictures.shared import (
    common_legend,
    distinct,
    log2_ticks,
    peer_fractions,
    plot,
    reference_line,
)
from tests.benchmarks.records import Record, grouped

MANY_WIDTHS = 20  # above, the axis is linear

NAMES = {
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
    dtypes, operations = distinct(records, "dtype"), distinct(records, "operation")
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
        peer_fractions(axes, members, peers, markersize=size)
        plot(axes, members, "M", "fraction", "o-", color="C0", markersize=size, label="blockvec")
        reference_line(axes.axhline)
        widths = [r["M"] for r in members]
        if len(widths) <= MANY_WIDTHS:
            log2_ticks(axes, widths, _sparse_labels(widths), fontsize=7)
        dtype, operation = key
        axes.set(ylim=(0, top), xlabel="columns", ylabel="fraction of the roofline")
        axes.set_title(f"{NAMES.get(operation, operation)}, {dtype}", fontsize=9)
        axes.grid(alpha=0.3)
    common_legend(figure, ncols=4)


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
        widths_m, widths_n = (sorted({r[key] for r in members}) for key in "MN")
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
        axes.set_title(f"{NAMES.get(operation, operation)}, {dtype}: per cent of the roofline", fontsize=9)
        axes.set(xlabel="N", ylabel="M")
        figure.colorbar(image, ax=axes, shrink=0.9)
