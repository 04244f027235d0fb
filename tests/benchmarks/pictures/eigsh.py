"""Pictures of eigensolves: times beside peers, and the effect of the block size."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.pictures.bars import bars
from tests.benchmarks.records import Record

QUANTITIES = {"operator_columns": "operator columns", "time_s": "seconds"}


def paint_times(figure: Any, records: Sequence[Record]) -> None:
    """Draw the time to equal residuals, one group of bars per matrix; missed eigenvalues are hatched."""
    figure.set_size_inches(7.5, 0.8 + 0.9 * len(records))
    axes = figure.add_subplot()
    peers = sorted({name for r in records for name in r["peers"]})
    rows = [(f"{r['matrix']}\nk={r['k']} {r['which']}", {"blockvec": r, **r["peers"]}) for r in records]
    unit = "seconds until every residual is at most 1e-8 of the norm"
    bars(axes, rows, ["blockvec", *peers], unit, count_missed=True)
    axes.grid(axis="x", alpha=0.3)


def paint_block_sizes(figure: Any, records: Sequence[Record]) -> None:
    """Draw operator columns and time over the block size: one row per method and matrix.

    A matrix with several k has its own row, with one curve per k; the others share a row, with one curve
    per matrix, relative to block size 1.
    """
    pairs: dict[str, set[int]] = {}
    for r in records:
        pairs.setdefault(r["matrix"], set()).add(r["k"])
    methods = sorted({name for r in records for name in r["methods"]})
    measured = {(r["matrix"], method) for r in records for method in r["methods"]}
    several = [matrix for matrix, k in pairs.items() if len(k) > 1]
    single = [matrix for matrix, k in pairs.items() if len(k) == 1]
    rows = [row for row in itertools.product(several, methods) if row in measured]
    rows += [("", method) for method in methods] if single else []
    figure.set_size_inches(7.5, 0.5 + 2.2 * len(rows))
    grid = figure.subplots(len(rows), 2, squeeze=False)
    for row, (matrix, method) in zip(grid, rows, strict=True):
        for axes, (quantity, label) in zip(row, QUANTITIES.items(), strict=True):
            _curves(axes, records, [matrix] if matrix else single, method, quantity, relative=not matrix)
            axes.set_title(f"{matrix or 'beside block size 1'}, {method}", fontsize=8)
            axes.set_xscale("log", base=2)
            axes.set(yscale="log", xlabel="block size", ylabel=label)
            axes.grid(alpha=0.3, which="both")
        if row[0].lines:
            row[0].legend(fontsize=6)


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
        if relative and points[0][0] != 1:
            continue  # no reference for the ratio
        unit = points[0][1] if relative else 1.0
        axes.plot([b for b, _ in points], [v / unit for _, v in points], "o-", label=label, markersize=3)
