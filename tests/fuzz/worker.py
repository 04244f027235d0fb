"""Run inputs: ``python -m tests.fuzz.worker FIRST SECONDS COUNT FOLDER KIND ...``, a process per kind.

Each writes to FOLDER/KIND.txt the number of each input before it runs, so that the last line names one that
ends the process, and at last one JSON line with the counts and the failures.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.fuzz import sandbox
from tests.fuzz.kinds import KINDS, Input

MOST_FAILURES = 5


def run_kind(kind: str, first: int, seconds: float, count: int, folder: Path) -> None:
    """Run inputs `first` and following: `count` of them, or as many as `seconds` allow."""
    warnings.simplefilter("ignore")
    (folder / "work").mkdir(parents=True)
    os.chdir(folder / "work")
    prepare = KINDS[kind]
    run = prepare(folder)
    for warm in range(10):  # imports, threads and tables are no growth
        with contextlib.suppress(Exception), sandbox.limited_time():
            run(random.Random(f"{kind}:warm {warm}")).execute()
    watch = sandbox.Watch(folder, ignored=[folder.parent / "home"])
    sandbox.limit_memory()
    outcomes: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    peak, slowest, begin_s = sandbox.peak_bytes(), 0.0, time.monotonic()
    number = first
    while number < first + count and time.monotonic() < begin_s + seconds and len(failures) < MOST_FAILURES:
        print(number, flush=True)
        given = run(random.Random(f"{kind}:{number}"))
        before, start_s = watch.snapshot(), time.process_time()
        wrong = ""
        try:
            with sandbox.limited_time():
                outcomes[_outcome(given)] += 1
        except BaseException:
            wrong = traceback.format_exc()
        slowest = max(slowest, time.process_time() - start_s)
        if touched := watch.touched(before, given.may_write):
            wrong += f"\ntouched {touched}"
        if wrong:
            failures.append(f"input {kind} {number}: {given.text[:500]}\n{wrong[-3000:]}")
        number += 1
    summary = {
        "inputs": number - first,
        "outcomes": outcomes,
        "slowest_s": round(slowest, 2),
        "growth_mb": (sandbox.peak_bytes() - peak) >> 20,
        "failures": failures,
    }
    print(json.dumps(summary), flush=True)
    os._exit(0)


def _outcome(given: Input) -> str:
    try:
        return given.execute() or "done"
    except given.refusals as error:
        if not str(error):
            raise AssertionError("the error says nothing") from error
        if "pickle" in str(error) and "allow_pickle" in str(error):
            raise AssertionError("the error advises to load a pickle") from error
        return type(error).__name__


def main(first: int, seconds: float, count: int, folder: Path, *kinds: str) -> None:
    """Run the inputs of each kind in a copy of this process, which has imported everything."""
    (folder / "home").mkdir()
    for kind in kinds:
        child = os.fork()
        if child == 0:
            output = os.open(folder / f"{kind}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            run_kind(kind, first, seconds, count, folder / kind)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
