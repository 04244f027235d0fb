"""Picture of the latency of products of short blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockvec.bench.records import Record, grouped


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw time over rows: calls from Python and graph replay, of blockvec and of a peer."""
    groups = grouped(records, "dtype", "M")
    figure.set_size_inches(3.8 * len(groups), 3.4)
    grid = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, ((dtype, width), members) in zip(grid, groups.items(), strict=True):
        members = sorted(members, key=lambda r: r["K"])
        (peer,) = members[0]["peers"]
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
                axes.plot([r["K"] for r in members], times_us, style, color=color, markersize=3, label=label)
        axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="microseconds")
        axes.set_title(f"$A^H B$, {dtype}, {width} columns", fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
