"""Groups of bars: times of several solvers per problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.records import Record


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
