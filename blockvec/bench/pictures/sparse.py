"""Pictures of sparse products: fractions of both rooflines over the width, and time saved by fusing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Record

__all__ = ["paint"]

_SUMS = {"dots": "shift, update, column dots", "gram": "Gram matrices"}


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw one column per matrix: one row of curves per type, and bars for fused calls.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    records : sequence of dict
        Of the operation ``"spmmv"``, each with its ``matrix``.
    """
    fused = [r for r in records if "separate" in r["peers"]]
    plain = [r for r in records if "separate" not in r["peers"]]
    matrices = list(dict.fromkeys(r["matrix"] for r in records))
    dtypes = list(dict.fromkeys(r["dtype"] for r in plain))
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
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        entries |= {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    ncols = max(1, int(figure.get_size_inches()[0] / 2.6))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=ncols, fontsize=8)


def _curves(axes: Any, members: Sequence[Record], peers: Sequence[str]) -> None:
    """Draw fractions of the memory roofline; for blockvec also of the gather bound."""
    if not members:
        axes.set_axis_off()
        return
    for index, peer in enumerate(peers):
        known = [r for r in members if peer in r["peers"]]
        fractions = [r["fraction"] * r["time_s"] / r["peers"][peer] for r in known]
        style = {"color": f"C{index + 1}", "markersize": 3, "linewidth": 1, "label": peer}
        axes.plot([r["M"] for r in known], fractions, "s--", **style)
    gathered = [r for r in members if "fraction_gather" in r]
    widths = [r["M"] for r in gathered]
    values = [r["fraction_gather"] for r in gathered]
    if gathered:
        axes.plot(widths, values, ":", color="C0", label="blockvec, of the gather bound")
    widths = [r["M"] for r in members]
    axes.plot(widths, [r["fraction"] for r in members], "o-", color="C0", markersize=4, label="blockvec")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) if width not in (3, 7) else "" for width in widths], fontsize=7)
    axes.minorticks_off()
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
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(widths)), [str(width) for width in widths], fontsize=7)
    axes.grid(axis="y", alpha=0.3)
