"""Pictures of rows that are split over processes: on a host, and over two GPUs beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.benchmarks.records import Record, grouped
from tests.benchmarks.scaling_model import efficiency, predicted_s

COUNTS = [1, 2, 4, 8, 16, 32, 64]


def paint_host(figure: Any, records: Sequence[Record]) -> None:
    """Draw the time of each setup, and of two processes where it goes."""
    groups = grouped(records, "matrix")
    figure.set_size_inches(3.4 * len(groups), 2.4)
    grid = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, ((matrix,), runs) in zip(grid, groups.items(), strict=True):
        for place, run in enumerate(runs):
            parts = {"products": run.get("products_s", 0.0), "waiting": run.get("waiting_s", 0.0)}
            rest = run["time_s"] - sum(parts.values())
            name, shade = ("all other work", "C2") if "products_s" in run else ("all work", "C7")
            left = 0.0
            for color, (label, part_s) in zip(
                ("C0", "C1", shade), {**parts, name: rest}.items(), strict=True
            ):
                axes.barh(place, part_s, 0.7, left=left, color=color, label=label if part_s else "_")
                left += part_s
            axes.text(left, place, f" {run['time_s']:.3g} s", va="center", fontsize=7)
        axes.set_yticks(range(len(runs)), [run["setup"] for run in runs], fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.25)
        axes.set_xlabel("seconds")
        axes.set_title(f"{matrix}\n{runs[0]['n']:,} rows", fontsize=8)
    labels = {text: handle for handle, text in zip(*grid[0].get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels, fontsize=7, loc="outside lower center", ncols=4)


def paint_scaling(figure: Any, records: Sequence[Record]) -> None:
    """Draw measured beside predicted efficiencies, those of solves, and the model to 64 GPUs."""
    figure.set_size_inches(11, 5)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    weak = [record for record in records if "speedup" not in record]
    predicted = [predicted_s(record) for record in weak]
    left.barh(range(len(weak)), [record["efficiency"] for record in weak], 0.7, color="C0", label="measured")
    marks = [
        (record["alone_s"] / time_s, place)
        for place, (record, time_s) in enumerate(zip(weak, predicted, strict=True))
        if time_s
    ]
    left.plot(*zip(*marks, strict=True), "|", color="C1", markersize=9, markeredgewidth=2, label="model")
    left.set_yticks(range(len(weak)), [record["row"] for record in weak], fontsize=6)
    left.invert_yaxis()
    left.set(xlabel="time on one GPU / time on two, equal rows per GPU", xlim=(0.5, 1.06))
    for n, color in ((400, "C0"), (640, "C1"), (1000, "C2")):
        for bricks, style in ((False, "--"), (True, "-")):
            label = f"laplace3d n={n}, {'bricks' if bricks else 'slabs'}"
            values = [efficiency(n, gpus, bricks=bricks) for gpus in COUNTS]
            right.plot(COUNTS, values, style, color=color, label=label)
    right.set_xscale("log", base=2)
    right.set_xticks(COUNTS, map(str, COUNTS))
    right.set(xlabel="GPUs, 8 per host", ylabel="efficiency of products, by the model", ylim=(0, 1.05))
    right.grid(alpha=0.3)
    right.legend(fontsize=6)
    figure.legend(*left.get_legend_handles_labels(), fontsize=7, loc="outside lower left", ncols=2)
