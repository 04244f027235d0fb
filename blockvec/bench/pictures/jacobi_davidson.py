"""Pictures of Jacobi-Davidson: columns beside a peer, preconditioners, interior values, block sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..records import Record

__all__ = ["paint"]


def paint(figure: Any, records: Sequence[Record]) -> None:
    """Draw one panel per table among the records.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    records : sequence of dict
        Of the operation ``"eigsh"``, each with the name of its table.
    """
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
    problems = list(dict.fromkeys((r["matrix"], r["which"]) for r in records))
    kinds = list(dict.fromkeys((r["correction"], r["block_size"]) for r in records))
    names = {"davidson": "GD+k", "minres": "JDQMR"}
    for index, (correction, b) in enumerate(kinds):
        points = [
            (problems.index((r["matrix"], r["which"])), r["operator_columns"] / peer["operator_columns"])
            for r in records
            if (r["correction"], r["block_size"]) == (correction, b)
            for peer in r["peers"].values()
            if peer.get("operator_columns")
        ]
        label = f"{names[correction]}, block of {b}"
        axes.plot([p[1] for p in points], [p[0] for p in points], "osd^"[index % 4], label=label)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(problems)), [f"{matrix} {which}" for matrix, which in problems])
    axes.invert_yaxis()
    axes.set_xlabel("operator columns over PRIMME's, same method, block and basis")
    axes.legend(fontsize=7)


def _bars(axes: Any, rows: Sequence[tuple[str, dict[str, float | None]]], unit: str) -> None:
    """Draw one group of bars per row; a label marks missing values as given up."""
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    height = 0.8 / len(names)
    for index, name in enumerate(names):
        for place, (_, values) in enumerate(rows):
            y = place + (index - (len(names) - 1) / 2) * height
            value = values.get(name)
            if value:
                label = name if place == 0 else "_"
                axes.barh(y, value, 0.9 * height, color=f"C{index}", label=label)
                axes.text(value, y, f" {value:.3g}", va="center", fontsize=6)
            elif name in values:
                left = axes.get_yaxis_transform()  # x as a fraction of the axes
                axes.text(0.01, y, f"{name} gave up", va="center", fontsize=6, transform=left)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_yticks(range(len(rows)), [title for title, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.legend(fontsize=7)


def _preconditioner_bars(axes: Any, records: Sequence[Record]) -> None:
    rows = []
    for r in records:
        times: dict[str, float | None] = {"Jacobi-Davidson": r["time_s"]}
        times["LOBPCG"] = r["peers"]["lobpcg"]["time_s"]
        rows.append((f"{r['matrix']}\n{r['preconditioner']}", times))
    _bars(axes, rows, "seconds, ten smallest values, the same preconditioner")


def _interior_bars(axes: Any, records: Sequence[Record]) -> None:
    rows = []
    for r in records:
        done = r["converged"] == r["k"]
        times: dict[str, float | None] = {"Jacobi-Davidson": r["time_s"] if done else None}
        times |= {name: peer["time_s"] for name, peer in r["peers"].items()}
        rows.append((f"{r['matrix']}\nk={r['k']}, at {r['sigma']:g}", times))
    _bars(axes, rows, "seconds, values nearest to a number inside the spectrum")


def _block_curves(axes: Any, records: Sequence[Record]) -> None:
    """Draw operator columns (dotted) and time (solid) over the block size, relative to block size 1."""
    problems = list(dict.fromkeys((r["matrix"], r["k"]) for r in records))
    for index, (matrix, k) in enumerate(problems):
        members = [r for r in records if (r["matrix"], r["k"]) == (matrix, k) and r["converged"] == k]
        members.sort(key=lambda r: r["block_size"])
        if not members or members[0]["block_size"] != 1:
            continue
        sizes = [r["block_size"] for r in members]
        for key, style in (("time_s", "o-"), ("operator_columns", "x:")):
            ratios = [r[key] / members[0][key] for r in members]
            label = f"{matrix}, k={k}" if key == "time_s" else "_"
            axes.plot(sizes, ratios, style, color=f"C{index}", markersize=4, label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("block size; time solid, operator columns dotted, over those of a block of one")
    axes.legend(fontsize=7)
