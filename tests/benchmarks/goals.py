"""How near results on record come to the hardware's limits and to vendors' libraries: a line a table.

    python tests/benchmarks/goals.py docs/results/h200

Fractions are of blockvec's own kernels, with vendors' switched off; where tile padding alone caps them below
0.95, of what it leaves.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.records import read

Record = dict[str, Any]

CAPPED = 0.95
PADDED = ("tsmttsm_mma", "tsmm_mma")  # kernels on tensor cores

SINGLE = (0.75, 0.92)
DOUBLE_PAIRS = (0.85, 0.95)
GOALS: dict[
    tuple[str, str, str], tuple[float, float]
] = {  # least and median fraction by table, operation, type
    ("equal", "tsmttsm", "float64"): (0.94, 0.97),
    ("equal", "tsmttsm", "complex128"): (0.85, 0.95),
    ("equal", "tsmm", "float64"): (0.93, 0.955),
    ("equal", "tsmm", "complex128"): (0.85, 0.94),
    ("gram", "gram", "float64"): (0.90, 0.0),
    **{("single", op, dtype): SINGLE for op in ("tsmttsm", "tsmm") for dtype in ("float32", "complex64")},
    **{("fma", op, "float64"): (0.90, 0.0) for op in ("tsmttsm", "tsmm")},
    **{
        (table, op, dtype): goal
        for table, goal in (("rectangular", DOUBLE_PAIRS), ("wide", (0.85, 0.0)), ("views", (0.75, 0.0)))
        for op in ("tsmttsm", "tsmm")
        for dtype in ("float64", "complex128")
    },
    **{
        (table, op, dtype): (1 / 1.15, 0.0)
        for table, op in (
            ("update", "update"),
            ("update", "in place"),
            ("sweeps", "combine_dot"),
            ("sweeps", "update_gram"),
        )
        for dtype in ("float64", "complex128")
    },
}


def own_fraction(record: Record) -> float | None:
    """Return the fraction that blockvec's own kernels reach; None where none was reached in time."""
    cap = record.get("cap", 1.0) if record["family"] in PADDED else 1.0
    reached = record.get("fraction_sectors", record["fraction"]) / (cap if cap < CAPPED else 1.0)
    if "own_s" not in record:
        return float(reached)
    return float(reached * record["time_s"] / record["own_s"]) if record["own_s"] else None


def speed_up(record: Record) -> float | None:
    """Return the best peer's time over that of what dispatch takes; None without peers."""
    times = [time_s for name, time_s in record["peers"].items() if name != "two calls"]
    return min(times) / record["time_s"] if times else None


def groups(records: Sequence[Record]) -> Iterator[tuple[str, str, list[Record]]]:
    """Yield operation, type and records of each group of a table."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        kind = "in place" if record.get("inplace") else "update" if _adds(record) else record["operation"]
        found.setdefault((kind, record["dtype"]), []).append(record)
    for (kind, dtype), members in found.items():
        yield kind, dtype, members


def _adds(record: Record) -> bool:
    return bool(record.get("beta", "zero") != "zero")


def line(table: str, kind: str, dtype: str, records: Sequence[Record]) -> str:
    """Return what there is to say about one operation and type of a table."""
    reached = [(f, r["M"], r["N"]) for r in records if (f := own_fraction(r)) is not None]
    text = f"{table:12} {kind:12} {dtype:10} {len(records):4d}"
    if reached:
        least, M, N = min(reached)
        middle = statistics.median(f for f, *_ in reached)
        text += f"   min {least:.3f} at {M:3d} x {N:<3d} median {middle:.3f}"
        goal = GOALS.get((table, kind, dtype))
        if goal:
            text += "  met  " if least >= goal[0] and middle >= goal[1] else "  SHORT"
    ratios = [ratio for r in records if (ratio := speed_up(r)) is not None]
    if ratios:
        text += f"   peers: least {min(ratios):5.2f}x mean {_mean(ratios):5.2f}x"
    for name, label in (("choice_s", "untuned"), ("first_10_s", "first 10")):
        ratios = [r[name] / r["own_s"] for r in records if r.get(name) and r.get("own_s")]
        if ratios:
            text += f"   {label}: mean {_mean(ratios):.3f} worst {max(ratios):.2f}"
    return text


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the summary of a folder of results."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    for file in sorted(parser.parse_args(arguments).folder.glob("*.json")):
        records = [r for r in read(file)["records"] if "fraction" in r and "peers" in r]
        records = [r for r in records if "family" in r and "matrix" not in r]
        for kind, dtype, members in groups(records):
            print(line(file.stem, kind, dtype, members))


if __name__ == "__main__":
    main()
