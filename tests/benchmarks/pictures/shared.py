"""Common parts of pictures: values of records, lines, logarithmic axes of widths, a common legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.benchmarks.records import Record


def distinct(records: Sequence[Record], *keys: str) -> list[Any]:
    """List the different values of a key, or tuples of those of several, in order of appearance."""
    if len(keys) == 1:
        return list(dict.fromkeys(record[keys[0]] for record in records))
    return list(dict.fromkeys(tuple(record[key] for key in keys) for record in records))


def plot(axes: Any, records: Sequence[Record], x: str, y: str, style: str, **line: Any) -> None:
    """Draw one value of the records over another."""
    axes.plot([r[x] for r in records], [r[y] for r in records], style, **line)


def peer_fractions(axes: Any, records: Sequence[Record], peers: Sequence[str], **line: Any) -> None:
    """Draw the fraction of the roofline that each peer reaches, over the width."""
    for index, peer in enumerate(peers):
        known = [r for r in records if peer in r["peers"]]
        fractions = [r["fraction"] * r["time_s"] / r["peers"][peer] for r in known]
        if known:
            axes.plot([r["M"] for r in known], fractions, "s--", color=f"C{index + 1}", label=peer, **line)


def reference_line(draw: Any, value: float = 1) -> None:
    """Draw a thin black line with ``axes.axhline`` or ``axes.axvline``."""
    draw(value, color="black", linewidth=0.8)


def log2_ticks(axes: Any, places: Sequence[int], labels: Sequence[Any], **text: Any) -> None:
    """Make the x axis logarithmic, with ticks at these places only."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, labels, **text)
    axes.minorticks_off()


def common_legend(figure: Any, ncols: int) -> None:
    """Put one legend for all axes below the figure."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        entries |= {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=ncols, fontsize=8)
