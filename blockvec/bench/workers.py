"""Calls in processes of their own: one that hangs or brings its process down is given up, and others go on.

A compiler may run for ever or crash, and a kernel that hangs takes the CUDA context of its process with it;
neither may stop hours of tuning.
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

__all__ = ["LostError", "Workers", "notice"]

START_S = 120.0  # for a process to start and to import what a call needs, many at a time
_RESULT, _ERROR, _STEP = range(3)
_to_parent: Connection | None = None  # in a worker


class LostError(BlockvecError):
    """A call that did not come back.

    Attributes
    ----------
    step : object
        What the call last gave to `notice`; None if nothing.
    """

    def __init__(self, reason: str, step: Any) -> None:
        super().__init__(reason)
        self.step = step


def notice(step: Any) -> None:
    """Say in a worker what comes next, and that the time for it begins now; does nothing elsewhere."""
    if _to_parent is not None:
        _to_parent.send((_STEP, step))


class Workers(ThreadPoolExecutor):
    """An executor whose calls run in processes, each served by a thread here that watches it.

    A call raises `LostError` where it takes longer than `limit_s` from one `notice` to the next, where its
    process dies, and where it fails with anything but a `BlockvecError`, after which its process may be in
    any state: the next call gets a new one. Functions, arguments and results are pickled. Leaving its context
    stops what is running.

    Parameters
    ----------
    count : int
        Processes.
    limit_s : float
        Seconds.
    """

    def __init__(self, count: int, limit_s: float) -> None:
        super().__init__(count)
        self._limit_s = limit_s
        self._own = threading.local()
        self._lock = threading.Lock()
        self._every: set[_Worker] | None = set()  # None from the end on

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Queue a call."""
        return super().submit(self._call, function, arguments, named)

    def _call(self, *job: Any) -> Any:
        worker = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = _Worker()
            with self._lock:
                if self._every is None:
                    worker.stop()
                else:
                    self._every.add(worker)
        try:
            return worker.call(job, self._limit_s)
        except LostError:
            worker.stop()
            self._own.worker = None
            raise

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            every, self._every = self._every, None
        for worker in every or ():
            worker.stop()
        self.shutdown()


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit CUDA's state
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that its death is the end of the file

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
    """Run calls until the parent is gone."""
    global _to_parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops us
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
