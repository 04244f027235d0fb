"""Threads of the host backend: static row ranges, one BLAS thread inside each.

NumPy releases the interpreter lock inside BLAS and ufunc loops, so plain threads reach all cores. The row
ranges depend on the row count and the thread count alone, and partial results are combined in range
order, which makes results bit-identical for a fixed thread count.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import threadpoolctl

from ..config import options

__all__ = ["map_items", "map_rows", "row_ranges", "single_threaded_blas"]

Result = TypeVar("Result")


def row_ranges(n_rows: int, n_ranges: int, granule: int = 64) -> list[tuple[int, int]]:
    """Split rows into at most `n_ranges` contiguous ranges whose bounds are multiples of `granule`."""
    granules = -(-n_rows // granule)
    n_ranges = max(1, min(n_ranges, granules))
    cuts = [min(n_rows, granules * i // n_ranges * granule) for i in range(n_ranges + 1)]
    return list(itertools.pairwise(cuts))


def map_rows(work: Callable[[int, int], Result], n_rows: int) -> list[Result]:
    """Run ``work(begin, end)`` over row ranges, one a thread, and return the results in row order."""
    return _run_ranges(work, row_ranges(n_rows, options().threads))


def map_items(work: Callable[[int], None], n_items: int) -> None:
    """Run ``work(i)`` for every item, each thread taking the next one when it is free.

    For items of unequal cost that write disjoint results, so that the order does not matter.
    """
    ticket = itertools.count()  # next() on it is atomic under the interpreter lock

    def drain(_begin: int, _end: int) -> None:
        while (item := next(ticket)) < n_items:
            work(item)

    n_threads = min(options().threads, n_items)
    _run_ranges(drain, [(0, 0)] * n_threads)


def _run_ranges(work: Callable[[int, int], Result], ranges: list[tuple[int, int]]) -> list[Result]:
    with single_threaded_blas():
        # Workers see the caller's options; the caller itself takes the first range.
        futures = [_pool().submit(contextvars.copy_context().run, work, a, b) for a, b in ranges[1:]]
        try:
            first = [work(*r) for r in ranges[:1]]
        finally:
            rest = [future.result() for future in futures]
        return first + rest


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="blockvec")


if hasattr(os, "register_at_fork"):  # a forked child has the pool but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


class _BlasLimit:
    """Counts who wants BLAS single-threaded.

    The setting is global to the process, so the first user sets it and the last one restores it.
    """

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
