"""Threads of the host backend: static row ranges, one BLAS thread inside each.

NumPy releases the interpreter lock inside BLAS and ufunc loops, so plain threads reach all cores. The row
ranges depend on the row count and the thread count alone, and partial results are combined in range
order, which makes results bit-identical for a fixed thread count.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import threadpoolctl

from ..config import options

__all__ = ["map_rows", "row_ranges", "single_threaded_blas"]

Result = TypeVar("Result")


def row_ranges(n_rows: int, n_ranges: int, granule: int = 64) -> list[tuple[int, int]]:
    """Split rows into at most `n_ranges` contiguous ranges whose bounds are multiples of `granule`."""
    granules = -(-n_rows // granule)
    n_ranges = max(1, min(n_ranges, granules))
    cuts = [min(n_rows, granules * i // n_ranges * granule) for i in range(n_ranges + 1)]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def map_rows(work: Callable[[int, int], Result], n_rows: int) -> list[Result]:
    """Run ``work(begin, end)`` over row ranges, one a thread, and return the results in row order."""
    ranges = row_ranges(n_rows, options().threads)
    with single_threaded_blas():
        if len(ranges) == 1:
            return [work(*ranges[0])]
        # Workers see the caller's options; the caller itself takes the first range.
        futures = [_pool().submit(contextvars.copy_context().run, work, *r) for r in ranges[1:]]
        try:
            first = work(*ranges[0])
        finally:
            results = [future.result() for future in futures]
        return [first, *results]


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="blockvec")


class _BlasLimit:
    """Counts who wants BLAS single-threaded: the setting is global, so only the first sets and the last restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limiter: Any = None
        self._controller: threadpoolctl.ThreadpoolController | None = None

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                if self._controller is None:
                    self._controller = threadpoolctl.ThreadpoolController().select(user_api="blas")
                self._limiter = self._controller.limit(limits=1)
                self._limiter.__enter__()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limiter.__exit__(None, None, None)
                self._limiter = None


_blas_limit = _BlasLimit()


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep BLAS to one thread a call while blockvec's own threads share the cores."""
    _blas_limit.acquire()
    try:
        yield
    finally:
        _blas_limit.release()
