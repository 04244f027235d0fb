"""Picture of solver accuracy: eigenvalue errors, residuals and orthogonality, one row per matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.benchmarks.pictures.shared import distinct
from tests.benchmarks.records import Record

# Key -> label, allowed value, least value: smaller ones are drawn there.
PANELS = {
    "value_error": ("error of a value / allowed", 1.0, 1e-6),
    "residual": ("residual / 100 u ||A||", 1.0, 1e-6),
    "orthogonality": ("$||V^H M V - I||$", 1e-13, 1e-16),
}


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw each solve as one point in each of three panels; wrong results are red."""
    solved = [r for r in records if "value_error" in r]
    names = distinct(solved, "matrix")
    figure.set_size_inches(9.5, 0.19 * len(names) + 1.2)
    grid = figure.subplots(1, 3, sharey=True)
    for axes, (key, (label, allowed, least)) in zip(grid, PANELS.items(), strict=True):
        for right, colour in ((True, "tab:blue"), (False, "tab:red")):
            members = [r for r in solved if r["right"] is right]
            places = [names.index(r["matrix"]) for r in members]
            values = [max(r[key], least) for r in members]
            axes.plot(values, places, ".", color=colour, markersize=4, alpha=0.6)
        axes.axvline(allowed, color="black", linestyle="--", linewidth=0.8)
        axes.set(xscale="log", xlabel=label)
        axes.grid(alpha=0.3)
    grid[0].set_yticks(range(len(names)), names, fontsize=7)
    grid[0].invert_yaxis()
