"""Pictures of Jacobi-Davidson: columns beside a peer, preconditioners, interior values, block sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.pictures.bars import bars
from tests.benchmarks.pictures.shared import distinct, reference_line
from tests.benchmarks.records import Record

TABLES = ("primme", "preconditioned", "interior", "blocks")


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw one panel per table among the records."""
    painters: dict[str, Callable[[Any, Sequence[Record]], None]] = {
        "primme": _peer_ratios,
        "preconditioned": _preconditioner_bars,
        "interior": _interior_bars,
        "blocks": _block_curves,
    }
    tables = [name for name in painters if any(r["table"] == name for r in records)]
    figure.set_size_inches(7.5, 3.4 * len(tables))
    for axes, name in zip(figure.subplots(len(tables), 1, squeeze=False)[:, 0], tables, strict=True):
        painters[name](axes, [r for r in records if r["table"] == name])
        axes.grid(alpha=0.3)


def _peer_ratios(axes: Any, records: Sequence[Record]) -> None:
    """Draw operator columns / columns of the same method of a peer, one row per matrix."""
    problems = distinct(records, "matrix", "which")
    names = {"davidson": "GD+k", "minres": "JDQMR"}
    for index, (correction, b) in enumerate(distinct(records, "correction", "block_size")):
        points = [
            (problems.index((r["matrix"], r["which"])), r["operator_columns"] / peer["operator_columns"])
            for r in records
            if (r["correction"], r["block_size"]) == (correction, b)
            for peer in r["peers"].values()
            if peer.get("operator_columns")
        ]
        label = f"{names[correction]}, block of {b}"
        axes.plot([p[1] for p in points], [p[0] for p in points], "osd^"[index % 4], label=label)
    reference_line(axes.axvline)
    axes.set_yticks(range(len(problems)), [f"{matrix} {which}" for matrix, which in problems])
    axes.invert_yaxis()
    axes.set_xlabel("operator columns over PRIMME's, same method, block and basis")
    axes.legend(fontsize=7)


def _bars(axes: Any, rows: Sequence[tuple[str, dict[str, Record]]], unit: str) -> None:
    names = list(dict.fromkeys(name for _, runs in rows for name in runs))
    bars(axes, rows, names, unit, count_missed=False)


def _preconditioner_bars(axes: Any, records: Sequence[Record]) -> None:
    rows = [
        (f"{r['matrix']}\n{r['preconditioner']}", {"Jacobi-Davidson": r, "LOBPCG": r["peers"]["lobpcg"]})
        for r in records
    ]
    _bars(axes, rows, "seconds, ten smallest values, the same preconditioner")


def _interior_bars(axes: Any, records: Sequence[Record]) -> None:
    rows = []
    for r in records:
        ours = r if r["converged"] == r["k"] else {"time_s": None}
        rows.append(
            (f"{r['matrix']}\nk={r['k']}, at {r['sigma']:g}", {"Jacobi-Davidson": ours, **r["peers"]})
        )
    _bars(axes, rows, "seconds, values nearest to a number inside the spectrum")


def _block_curves(axes: Any, records: Sequence[Record]) -> None:
    """Draw operator columns (dotted) and time (solid) over the block size, relative to block size 1."""
    for index, (matrix, k) in enumerate(distinct(records, "matrix", "k")):
        members = [r for r in records if (r["matrix"], r["k"]) == (matrix, k) and r["converged"] == k]
        members.sort(key=lambda r: r["block_size"])
        if not members or members[0]["block_size"] != 1:
            continue
        sizes = [r["block_size"] for r in members]
        for key, style in (("time_s", "o-"), ("operator_columns", "x:")):
            ratios = [r[key] / members[0][key] for r in members]
            label = f"{matrix}, k={k}" if key == "time_s" else "_"
            axes.plot(sizes, ratios, style, color=f"C{index}", markersize=4, label=label)
    reference_line(axes.axhline)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("block size; time solid, operator columns dotted, over those of a block of one")
    axes.legend(fontsize=7)
