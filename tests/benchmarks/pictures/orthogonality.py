"""Picture of orthogonalisation: loss over the condition number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.benchmarks.pictures.shared import distinct, plot
from tests.benchmarks.records import Record, grouped

LEAST_LOSS = 1e-17


def paint_loss(figure: Any, records: Sequence[Record]) -> None:
    """Draw the loss of orthogonality: one column per matrix, policies against a basis first.

    Bounds are dotted; a cross marks the first condition number that a policy refused.
    """
    matrices = distinct(records, "matrix")
    widths = sorted(distinct(records, "width"))
    groups = grouped(records, "matrix", "width", "policy")
    figure.set_size_inches(3.4 * len(matrices) + 1.6, 2.6 * len(widths) + 0.4)
    grid = figure.subplots(len(widths), len(matrices), squeeze=False, sharex=True, sharey=True)
    for row, width in zip(grid, widths, strict=True):
        policies = distinct([r for r in records if r["width"] == width], "policy")
        for axes, matrix in zip(row, matrices, strict=True):
            for index, policy in enumerate(policies):
                members = groups.get((matrix, width, policy), [])
                _loss_curve(axes, members, policy, f"C{index}")
            axes.set(xscale="log", yscale="log", ylim=(LEAST_LOSS, 10))
            axes.grid(alpha=0.3)
            axes.set_title(f"{matrix}, {_task(members[0])}", fontsize=9)
        row[0].set_ylabel("$\\|Q^H Q - I\\|$")
        row[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    for axes in grid[-1]:
        axes.set_xlabel("condition number")


def _task(record: Record) -> str:
    width, columns = record["width"], record["columns"]
    return f"one block of {columns}" if width == columns else f"{columns // width} blocks of {width}"


def _loss_curve(axes: Any, members: Sequence[Record], policy: str, color: str) -> None:
    members = sorted(members, key=lambda r: r["kappa"])
    done = [r | {"loss": max(r["loss"], LEAST_LOSS)} for r in members if r["loss"] is not None]
    plot(axes, done, "kappa", "loss", "o-", color=color, markersize=2.5, linewidth=1, label=policy)
    promised = [r for r in members if r["bound"] is not None]
    plot(axes, promised, "kappa", "bound", ":", color=color, linewidth=1)
    refused = [r["kappa"] for r in members if r["loss"] is None]
    if refused:
        axes.plot(refused[0], 1, "x", color=color, markersize=6)
