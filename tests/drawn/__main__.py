"""Judge drawn calls in parallel processes.

    python -m tests.drawn --kind doubled,single --seeds 0:2000 --processes 16 --device cpu --json out.json

Each process has one thread of BLAS. A call that takes too long, or ends its process, is refused.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
from pathlib import Path
from typing import Any

from tests.drawn.pool import run
from tests.drawn.problems import KINDS

OUTCOMES = ("right", "silent", "refused", "warned", "excused")


def table(records: list[dict[str, Any]]) -> str:
    """Format the counts of outcomes by kind, and apart from them those of method "auto"."""
    header = f"{'kind':>20} {'calls':>6} " + " ".join(f"{name:>8}" for name in OUTCOMES) + "  cautious  cpu s"
    lines = [header]
    groups: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for record in records:
        is_named = "method=" in record["call"]
        groups[record["kind"] + (", named method" if is_named else ", auto")].append(record)
    for name in sorted(groups):
        group = groups[name]
        counts = collections.Counter(record["outcome"] for record in group)
        numbers = " ".join(f"{counts[outcome]:8d}" for outcome in OUTCOMES)
        cautious = sum(r["outcome"] == "right" and bool(r.get("warning")) for r in group)
        total_s = sum(record.get("time_s", 0.0) for record in group)
        lines.append(f"{name:>20} {len(group):6d} {numbers}  {cautious:8d} {total_s:6.0f}")
    return "\n".join(lines)


def main() -> int:
    """Run drawn calls; the exit code says whether one was silent or a harness failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.drawn", description=__doc__)
    parser.add_argument("--kind", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--largest", type=int, default=20_000, help="rows")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of the processor per call")
    parser.add_argument("--json", type=Path, help="file for all verdicts, one per line")
    given = parser.parse_args()
    first, end = map(int, given.seeds.split(":"))
    calls = [(kind, seed) for seed in range(first, end) for kind in given.kind.split(",")]
    how = {
        "processes": given.processes,
        "device": given.device,
        "largest": given.largest,
        "limit_s": given.limit,
    }
    records = []
    for record in run(calls, **how):
        records.append(record)
        if given.json:
            with given.json.open("a", encoding="utf-8") as stream:
                print(json.dumps(record), file=stream)
        if record["outcome"] != "right":
            print(f"{record['outcome']}: {record['call']} # {record['reason']}"[:600], flush=True)
    print(table(records))
    return int(any(record["outcome"] in ("silent", "broken") for record in records))


if __name__ == "__main__":
    raise SystemExit(main())
