"""Picture of the latency of products of short blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Record, grouped

__all__ = ["paint"]


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw time over rows: calls from Python and graph replay, of blockvec and of a peer.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    records : sequence of dict
        Of A^H B, each with its ``replay_s``.
    """
    groups = grouped(records, "dtype", "M")
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
