"""Pictures of sparse products: fractions of both rooflines over the width, and time saved by fusing."""

from __future__ import annotations

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
from tests.benchmarks.records import Record

_SUMS = {"dots": "shift, update, column dots", "gram": "Gram matrices"}


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw one column per matrix: one row of curves per type, and bars for fused calls."""
    fused = [r for r in records if "separate" in r["peers"]]
    plain = [r for r in records if "separate" not in r["peers"]]
    matrices, dtypes = distinct(records, "matrix"), distinct(plain, "dtype")
    n_rows = len(dtypes) + bool(fused)
    figure.set_size_inches(2.7 * len(matrices) + 0.5, 2.3 * n_rows + 0.8)
    grid = figure.subplots(n_rows, len(matrices), squeeze=False)
    peers = sorted({name for r in plain for name in r["peers"]})
    for column, matrix in enumerate(matrices):
        for row, dtype in enumerate(dtypes):
            members = [r for r in plain if (r["matrix"], r["dtype"]) == (matrix, dtype)]
            _curves(grid[row][column], sorted(members, key=lambda r: r["M"]), peers)
            grid[row][0].set_ylabel(f"fraction of the limit\n{dtype}")
        if fused:
            _bars(grid[-1][column], [r for r in fused if r["matrix"] == matrix])
            grid[-1][0].set_ylabel("time of one call\n/ separate calls")
        grid[0][column].set_title(matrix.replace(",", ",\n", 1), fontsize=8)
        grid[-1][column].set_xlabel("columns")
    common_legend(figure, ncols=max(1, int(figure.get_size_inches()[0] / 2.6)))


def _curves(axes: Any, members: Sequence[Record], peers: Sequence[str]) -> None:
    """Draw fractions of the memory roofline; for blockvec also of the gather bound."""
    if not members:
        axes.set_axis_off()
        return
    peer_fractions(axes, members, peers, markersize=3, linewidth=1)
    gathered = [r for r in members if "fraction_gather" in r]
    if gathered:
        plot(axes, gathered, "M", "fraction_gather", ":", color="C0", label="blockvec, of the gather bound")
    plot(axes, members, "M", "fraction", "o-", color="C0", markersize=4, label="blockvec")
    reference_line(axes.axhline)
    widths = [r["M"] for r in members]
    log2_ticks(axes, widths, ["" if width in (3, 7) else str(width) for width in widths], fontsize=7)
    axes.set_ylim(0, 1.2)
    axes.grid(alpha=0.3)


def _bars(axes: Any, members: Sequence[Record]) -> None:
    """Draw the time of one fused call divided by the time of separate calls."""
    widths = sorted({r["M"] for r in members})
    for offset, kind in enumerate(_SUMS):
        chosen = [r for r in members if kind in r]
        places = [widths.index(r["M"]) + 0.4 * offset - 0.2 for r in chosen]
        heights = [r["time_s"] / r["peers"]["separate"] for r in chosen]
        axes.bar(places, heights, 0.35, color=f"C{offset + 6}", label=_SUMS[kind])
    reference_line(axes.axhline)
    axes.set_xticks(range(len(widths)), [str(width) for width in widths], fontsize=7)
    axes.grid(axis="y", alpha=0.3)
