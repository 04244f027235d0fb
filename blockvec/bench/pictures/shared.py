"""Common parts of pictures: values of records, lines, logarithmic axes of widths, a common legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..records import Record


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


def bars(
    axes: Any,
    rows: Sequence[tuple[str, Mapping[str, Record]]],
    names: Sequence[str],
    unit: str,
    *,
    count_missed: bool,
) -> None:
    """Draw the times of named runs, a group of bars per row; on request mark those that missed eigenvalues.

    A run has its ``time_s``, None if it gave up, and perhaps the number of ``missed`` eigenvalues.
    """
    height = 0.8 / len(names)
    size = 7 if count_missed else 6
    for index, name in enumerate(names):
        color, label = f"C{index}", name
        for place, (_, runs) in enumerate(rows):
            y = place + (index - (len(names) - 1) / 2) * height
            run = runs.get(name)
            if run is None:
                continue
            time_s, missed = run["time_s"], count_missed and run.get("missed")
            if not time_s:
                left = axes.get_yaxis_transform()  # x as a fraction of the axes
                shade = color if count_missed else None
                axes.text(0.01, y, f"{name} gave up", va="center", fontsize=size, color=shade, transform=left)
                label = label if count_missed else "_"
                continue
            axes.barh(y, time_s, 0.9 * height, color=color, label=label, hatch="//" if missed else None)
            note = (
                f" {time_s:.3g}" + (" s" if count_missed else "") + (f", misses {missed}" if missed else "")
            )
            axes.text(time_s, y, note, va="center", fontsize=size)
            label = "_"  # one legend entry per name
    axes.set_xscale("log")
    axes.margins(x=0.2 if count_missed else 0.15)
    axes.set_yticks(range(len(rows)), [title for title, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.legend(fontsize=7)
