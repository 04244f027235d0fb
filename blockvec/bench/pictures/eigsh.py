"""Pictures of eigensolves: times beside peers, and the effect of the block size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Record

__all__ = ["paint_block_sizes", "paint_times"]


def paint_times(figure: Any, records: Sequence[Record]) -> None:
    """Draw the time to equal residuals, one group of bars per matrix; missed eigenvalues are hatched."""
    figure.set_size_inches(7.5, 0.8 + 0.9 * len(records))
    axes = figure.add_subplot()
    peers = sorted({name for r in records for name in r["peers"]})
    names = ["blockvec", *peers]
    height = 0.8 / len(names)
    for index, name in enumerate(names):
        color, label = f"C{index}", name
        for place, r in enumerate(records):
            run = r if name == "blockvec" else r["peers"].get(name)
            y = place + (index - (len(names) - 1) / 2) * height
            if run is None:
                continue
            if not run["time_s"]:
                left = axes.get_yaxis_transform()  # x as a fraction of the axes
                axes.text(0.01, y, f"{name} gave up", va="center", fontsize=7, color=color, transform=left)
                continue
            missed = bool(run.get("missed"))
            axes.barh(
                y, run["time_s"], 0.9 * height, color=color, label=label, hatch="//" if missed else None
            )
            note = f" {run['time_s']:.3g} s" + (f", misses {run['missed']}" if missed else "")
            axes.text(run["time_s"], y, note, va="center", fontsize=7)
            label = "_"  # one legend entry per name
    axes.set_xscale("log")
    axes.margins(x=0.2)
    axes.set_yticks(range(len(records)), [f"{r['matrix']}\nk={r['k']} {r['which']}" for r in records])
    axes.invert_yaxis()
    axes.set_xlabel("seconds until every residual is at most 1e-8 of the norm")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=7)


def paint_block_sizes(figure: Any, records: Sequence[Record]) -> None:
    """Draw operator columns and time over the block size: one row per method and matrix.

    A matrix with several k has its own row, with one curve per k; the others share a row, with one curve
    per matrix, relative to block size 1.
    """
    pairs: dict[str, set[int]] = {}
    for r in records:
        pairs.setdefault(r["matrix"], set()).add(r["k"])
    methods = sorted({name for r in records for name in r["methods"]})
    rows = [(matrix, method) for matrix, k in pairs.items() if len(k) > 1 for method in methods]
    rows = [row for row in rows if any(row[0] == r["matrix"] and row[1] in r["methods"] for r in records)]
    single = [matrix for matrix, k in pairs.items() if len(k) == 1]
    rows += [("", method) for method in methods] if single else []
    figure.set_size_inches(7.5, 0.5 + 2.2 * len(rows))
    grid = figure.subplots(len(rows), 2, squeeze=False)
    for axes, (matrix, method) in zip(grid, rows, strict=True):
        for place, quantity in zip(axes, ("operator_columns", "time_s"), strict=True):
            _curves(place, records, [matrix] if matrix else single, method, quantity, relative=not matrix)
            place.set_title(f"{matrix or 'beside block size 1'}, {method}", fontsize=8)
            place.set_xscale("log", base=2)
            place.set_yscale("log")
            place.set_ylabel({"operator_columns": "operator columns", "time_s": "seconds"}[quantity])
            place.grid(alpha=0.3, which="both")
        if axes[0].lines:
            axes[0].legend(fontsize=6)
        for place in axes:
            place.set_xlabel("block size")


def _curves(
    axes: Any, records: Sequence[Record], matrices: list[str], method: str, quantity: str, relative: bool
) -> None:
    curves: dict[str, list[tuple[int, float]]] = {}
    for r in records:
        value = r["methods"].get(method, {}).get(quantity)
        if r["matrix"] in matrices and value is not None:
            label = f"{r['matrix']} {r['which']}" if relative else f"k = {r['k']}"
            curves.setdefault(label, []).append((r["block_size"], value))
    for label, points in curves.items():
        points.sort()
        unit = points[0][1] if relative and points[0][0] == 1 else 1.0
        if relative and points[0][0] != 1:
            continue  # no reference for the ratio
        axes.plot([b for b, _ in points], [v / unit for _, v in points], "o-", label=label, markersize=3)
