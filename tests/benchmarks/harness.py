"""What scripts share: a parser, records that are written as they come, least times of calls in turn."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockvec.backends import backend_for
from blockvec.operations.profile import ceilings
from tests.benchmarks.records import Record, environment, write

WRITE_S = 1.0  # between writes of a growing document


def script_parser(doc: str | None, *devices: str) -> argparse.ArgumentParser:
    """Create the parser of a script that runs on these devices, the first by default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    if devices:
        parser.add_argument("--device", default=devices[0], choices=devices)
    return parser


def recorded(
    rows: Iterable[Record],
    file: Path | None,
    device: str = "cpu",
    line: Callable[[Record], str] | None = str,
    known: Iterable[Record] = (),
) -> list[Record]:
    """Print each record as it comes, and write those known before and all so far, if a file is given.

    The file is written once a second at most, and at the end.
    """
    backend, records = backend_for(device), list(known)
    head = (environment(backend), ceilings(backend)) if file else None
    written_s = time.monotonic()
    try:
        for row in rows:
            records.append(row)
            if line:
                print(line(row), flush=True)
            if file and head and time.monotonic() - written_s > WRITE_S:
                write(file, *head, records)
                written_s = time.monotonic()
    finally:
        if file and head and records:
            write(file, *head, records)
    return records


@dataclass
class Run:
    """The last result of a call, and its seconds: the least of wall clock and processor, the first, all."""

    result: Any = None
    time_s: float = math.inf
    cpu_s: float = math.inf
    first_s: float = math.nan
    all_s: tuple[float, ...] = ()

    def times(self) -> Record:
        """Return the least times as they stand in records."""
        return {"time_s": self.time_s, "cpu_s": self.cpu_s}


def in_turns(
    calls: Mapping[str, Callable[[], Any]],
    turns: int,
    device: str = "cpu",
    *,
    warm: int = 0,
    enough_s: float = math.inf,
) -> dict[str, Run]:
    """Time calls in turn, after `warm` ones that do not count; no turn begins after `enough_s` seconds."""
    synchronize, runs = backend_for(device).synchronize, {name: Run() for name in calls}
    begin_s = time.perf_counter()
    for turn in range(-warm, turns):
        if turn > 0 and time.perf_counter() - begin_s > enough_s:
            break
        for name, call in calls.items():
            run = runs[name]
            run.result = None  # its memory is free
            synchronize()
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            run.result = call()
            synchronize()
            wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
            run.first_s = wall_s if turn == -warm else run.first_s
            if turn >= 0:
                run.time_s, run.cpu_s = min(run.time_s, wall_s), min(run.cpu_s, cpu_s)
                run.all_s += (wall_s,)
    return runs


def timed(call: Callable[[], Any], turns: int = 1, device: str = "cpu", **how: Any) -> Run:
    """Time a call as `in_turns` does."""
    return in_turns({"": call}, turns, device, **how)[""]
