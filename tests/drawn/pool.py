"""Drawn calls in parallel processes, with a time limit each; a process that ends or hangs is replaced."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tests.drawn.judge import Verdict, attempt
from tests.drawn.problems import KINDS
from tests.fuzz.sandbox import HangError, limited_time

PATIENCE = 10.0  # times the limit of the processor: by the clock, until a process is ended
LEAST_S = 60.0  # by the clock
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLOCKVEC_THREADS")


def _judged(kind: str, seed: int, device: str, largest: int, limit_s: float) -> Verdict:
    """Judge a call in this process."""
    if device == "gpu":
        from solvers import planning

        planning.HOST_WORK = 0  # small matrices stay on the GPU
    draw, begin_s = KINDS[kind](seed, largest), time.process_time()
    try:
        with limited_time(limit_s, max(LEAST_S, PATIENCE * limit_s)):
            return attempt(draw, device)
    except HangError as error:
        return Verdict("refused", str(error), time_s=time.process_time() - begin_s)
    except Exception as error:  # of the harness: the solver's are judged
        return Verdict("broken", f"{type(error).__name__}: {error}")


def run(
    calls: Sequence[tuple[str, int]], *, processes: int, device: str, largest: int, limit_s: float
) -> Iterator[dict[str, Any]]:
    """Judge calls in parallel; yields records in the order in which they end."""
    os.environ |= dict.fromkeys(THREADS, "1")
    own = threading.local()  # a process for each thread

    def judge(kind: str, seed: int) -> dict[str, Any]:
        if not hasattr(own, "process"):
            own.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            verdict = own.process.submit(_judged, kind, seed, device, largest, limit_s).result()
        except BrokenProcessPool:
            del own.process
            verdict = Verdict("refused", "the process ended")
        call = repr(KINDS[kind](seed, largest))
        return {"kind": kind, "seed": seed, "call": call} | dataclasses.asdict(verdict)

    with ThreadPoolExecutor(processes) as threads:
        for judged in as_completed([threads.submit(judge, *call) for call in calls]):
            yield judged.result()
