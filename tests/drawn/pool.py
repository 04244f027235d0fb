"""Drawn calls in parallel processes, with a time limit each; a process that ends or hangs is replaced."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from tests.drawn.problems import KINDS
from tests.fuzz.sandbox import HangError, limited_time

PATIENCE = 10.0  # times the limit of the processor: by the clock, until a process is ended
LEAST_S = 60.0  # by the clock
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLOCKVEC_THREADS")


def _serve(pipe: Connection, device: str, largest: int, limit_s: float) -> None:
    """Judge the calls whose kinds and seeds arrive, in a process of its own."""
    from tests.drawn.judge import Verdict, attempt

    if device == "gpu":
        from solvers import placement

        placement.HOST_WORK = 0  # small matrices stay on the GPU
    while (given := pipe.recv()) is not None:
        kind, seed = given
        draw = KINDS[kind](seed, largest)
        begin_s = time.process_time()
        try:
            with limited_time(limit_s, max(LEAST_S, PATIENCE * limit_s)):
                verdict = attempt(draw, device)
        except HangError as error:
            verdict = Verdict("refused", str(error), time_s=time.process_time() - begin_s)
        except Exception as error:  # of the harness: the solver's are judged
            verdict = Verdict("broken", f"{type(error).__name__}: {error}")
        pipe.send({"kind": kind, "seed": seed, "call": repr(draw)} | dataclasses.asdict(verdict))


class Worker:
    """A process that judges one call after the other, and is replaced when it ends."""

    def __init__(self, device: str, largest: int, limit_s: float) -> None:
        self._arguments = device, largest, limit_s
        self._process: Any = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, *self._arguments), daemon=True)
        self._process.start()
        other.close()

    def judge(self, kind: str, seed: int) -> dict[str, Any]:
        """Send a call, and wait for its verdict."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send((kind, seed))
            return dict(self._pipe.recv())
        except (EOFError, OSError):
            self._process.join()
            reason = f"the process ended with exit code {self._process.exitcode}"
        self._process = None
        call = repr(KINDS[kind](seed, self._arguments[1]))
        record = {"kind": kind, "seed": seed, "call": call, "outcome": "refused", "reason": reason}
        return record | {"warning": "", "time_s": 0.0}

    def stop(self) -> None:
        """Let the process end."""
        if self._process is not None:
            self._pipe.send(None)
            self._process.join()


def run(
    calls: Sequence[tuple[str, int]], *, processes: int, device: str, largest: int, limit_s: float
) -> Iterator[dict[str, Any]]:
    """Judge calls in parallel; yields records in the order in which they end."""
    for name in THREADS:
        os.environ[name] = "1"
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for call in calls:
        waiting.put(call)

    def drive() -> None:
        worker = Worker(device, largest, limit_s)
        while not waiting.empty():
            try:
                call = waiting.get_nowait()
            except queue.Empty:
                break
            done.put(worker.judge(*call))
        worker.stop()

    threads = [threading.Thread(target=drive, daemon=True) for _ in range(min(processes, len(calls)))]
    for thread in threads:
        thread.start()
    for _ in calls:
        yield done.get()
    for thread in threads:
        thread.join()
