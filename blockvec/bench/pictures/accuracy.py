"""Picture of solver accuracy: eigenvalue errors, residuals and orthogonality, one row per matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Record

__all__ = ["paint"]

LEAST = 1e-6  # times the allowed error: smaller errors are drawn here


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw each solve as one point in each of three panels; wrong results are red.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    records : sequence of dict
        Of the operation ``"accuracy"``.
    """
    solved = [r for r in records if "value_error" in r]
    names = list(dict.fromkeys(r["matrix"] for r in solved))
    panels = {
        "value_error": "error of a value / allowed",
        "residual": "residual / 100 u ||A||",
        "orthogonality": "$||V^H M V - I||$",
    }
    figure.set_size_inches(9.5, 0.19 * len(names) + 1.2)
    for axes, (key, label) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        floor = LEAST if key != "orthogonality" else 1e-16
        for right, colour in ((True, "tab:blue"), (False, "tab:red")):
            points = [(max(r[key], floor), names.index(r["matrix"])) for r in solved if r["right"] is right]
            axes.plot(
                [x for x, _ in points], [y for _, y in points], ".", color=colour, markersize=4, alpha=0.6
            )
        axes.axvline(1e-13 if key == "orthogonality" else 1.0, color="black", linestyle="--", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    figure.axes[0].set_yticks(range(len(names)), names, fontsize=7)
    figure.axes[0].invert_yaxis()
