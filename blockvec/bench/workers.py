"""Calls in separate processes: a call that hangs or crashes is abandoned, the others continue.

A compiler can loop or crash, and a hanging kernel blocks the CUDA context of its process; neither may stop
hours of tuning. `concurrent.futures.ProcessPoolExecutor` cannot replace this: it has no time limit per step,
and one dead process breaks the whole pool.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from ..errors import BlockvecError

START_S = 120.0  # limit for starting a process and its imports while many start at once
_RESULT, _ERROR, _STEP = range(3)
_to_parent: Connection | None = None  # in a worker


class LostError(BlockvecError):
    """Raised for a call that did not return; `step` is the last argument of `notice` in it, or None."""

    def __init__(self, reason: str, step: Any) -> None:
        super().__init__(reason)
        self.step = step


def notice(step: Any) -> None:
    """Announce the next step of a call and restart its time limit; outside a worker, do nothing."""
    if _to_parent is not None:
        _to_parent.send((_STEP, step))


class Workers(ThreadPoolExecutor):
    """Executor that runs each call in a process, supervised by one thread per process.

    A call raises `LostError` if it takes longer than `limit_s` seconds between two `notice` calls, if its
    process dies, or if it fails with anything but a `BlockvecError`. The state of that process is then
    unknown: the next call gets a new one. Functions, arguments and results are pickled. Leaving the context
    kills running calls.
    """

    def __init__(self, count: int, limit_s: float) -> None:
        super().__init__(count)
        self._limit_s = limit_s
        self._own = threading.local()
        self._lock = threading.Lock()
        self._workers: set[_Worker] | None = set()  # None once the executor is closed

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Queue a call; see `concurrent.futures.Executor.submit`."""
        return super().submit(self._call, function, arguments, named)

    def _call(self, *job: Any) -> Any:
        worker = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = _Worker()
            with self._lock:
                if self._workers is None:
                    worker.stop()
                else:
                    self._workers.add(worker)
        try:
            return worker.call(job, self._limit_s)
        except LostError:
            worker.stop()
            self._own.worker = None
            raise

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            workers, self._workers = self._workers, None
        for worker in workers or ():
            worker.stop()
        self.shutdown()


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit the CUDA state
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # the death of the process then ends the stream

    def call(self, job: Any, limit_s: float) -> Any:
        step = None
        try:
            self._pipe.send(job)
            left_s = START_S
            while self._pipe.poll(left_s):
                left_s = limit_s
                kind, value = self._pipe.recv()
                if kind == _RESULT:
                    return value
                if kind == _ERROR:
                    if isinstance(value, BlockvecError):
                        raise value
                    raise LostError(value, step)
                step = value
        except (EOFError, OSError):
            self._process.join(1)
            raise LostError(f"its process ended with exit code {self._process.exitcode}", step) from None
        raise LostError(f"not done after {limit_s:g} s", step)

    def stop(self) -> None:
        self._process.kill()


def _serve(pipe: Connection) -> None:
    """Run calls until the parent closes the pipe."""
    global _to_parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and kills the workers
    _to_parent = pipe
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, arguments, named = pipe.recv()
            notice(None)
            try:
                answer = _RESULT, function(*arguments, **named)
            except BlockvecError as error:
                answer = _ERROR, error
            except Exception as error:
                answer = _ERROR, f"{type(error).__name__}: {error}"
            pipe.send(answer)
