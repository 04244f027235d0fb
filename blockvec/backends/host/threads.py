"""Threads of the host backend: fixed row ranges, one BLAS thread inside each.

NumPy releases the interpreter lock inside BLAS and ufunc loops, so Python threads use all cores. A free
thread takes the next range, so that a core shared with another process delays little. The ranges depend on
the operands' extents and the thread count only, and partial results are combined in range order: results are
bit-identical for a fixed thread count.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import threadpoolctl

from ...kernels.limits import ceil_div
from ...system.config import options

Result = TypeVar("Result")


@functools.lru_cache(maxsize=1024)
def row_ranges(n_rows: int, n_ranges: int, granule: int = 64) -> list[tuple[int, int]]:
    """Split rows into at most `n_ranges` contiguous ranges whose bounds are multiples of `granule`."""
    granules = ceil_div(n_rows, granule)
    n_ranges = max(1, min(n_ranges, granules))
    cuts = [min(n_rows, granules * i // n_ranges * granule) for i in range(n_ranges + 1)]
    return list(itertools.pairwise(cuts))


def map_rows(
    work: Callable[[int, int], Result], n_rows: int, per_thread: int = 1, most: int = 1 << 62
) -> list[Result]:
    """Run ``work(begin, end)`` over row ranges on all threads and return the results in row order.

    Each thread has `per_thread` ranges, or fewer where these would be more than `most` in all.
    """
    threads = options().threads
    ranges = row_ranges(n_rows, threads * max(1, min(per_thread, most // threads)))
    results: list[Any] = [None] * len(ranges)

    def run(index: int) -> None:
        results[index] = work(*ranges[index])

    with single_threaded_blas:
        run_in_threads(run, len(ranges))
    return results


def run_in_threads(work: Callable[[int], None], n_items: int) -> None:
    """Run ``work(i)`` for i from 0 to ``n_items - 1`` on `Options.threads` threads.

    Each free thread takes the next item. For items that write disjoint results, so that the order does not
    matter. Items that call BLAS on long operands need `single_threaded_blas` around this call.

    Parameters
    ----------
    work : callable
        Function of an index; the first exception that it raises is raised again.
    n_items : int

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import run_in_threads
    >>> squares = np.zeros(4)
    >>> run_in_threads(lambda i: squares.__setitem__(i, i * i), 4)
    >>> squares.tolist()
    [0.0, 1.0, 4.0, 9.0]
    """
    n_threads = min(options().threads, n_items) if n_items > 1 else 1
    if n_threads == 1:
        for item in range(n_items):
            work(item)
        return
    ticket = itertools.count()  # next() on it is atomic under the interpreter lock

    def drain() -> None:
        while (item := next(ticket)) < n_items:
            work(item)

    workers = _workers()
    crew = workers.start(drain, n_threads)
    try:
        drain()  # the caller works, too
    finally:
        errors = list(filter(None, map(workers.finish, crew)))
    if errors:
        raise errors[0]


class _Worker:
    """A thread that waits on a lock for work: it wakes in half the time of a queue or a future, a few us."""

    def __init__(self) -> None:
        self.wanted, self.done = threading.Lock(), threading.Lock()
        self.wanted.acquire()
        self.done.acquire()
        self.job: Callable[[], None] | None = None
        self.error: BaseException | None = None
        thread = threading.Thread(target=self._serve, name="blockvec", daemon=True)
        thread.start()
        self.native_id = thread.native_id or 0

    def _serve(self) -> None:
        while True:
            self.wanted.acquire()
            try:
                if self.job is not None:
                    self.job()
            except BaseException as error:  # raised by the caller
                self.error = error
            self.job = None  # releases the arrays that it refers to
            self.done.release()


class _Workers:
    """Threads that do not run on the core of their caller.

    Linux wakes a thread on its waker's core if the other cores run something else, even of low priority, and
    does not look for an idle core if few cores are in use. Caller and worker then share one core for a few
    milliseconds, the time of a block operation.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._threads: list[int] = []
        self._allowed: tuple[set[int], int] | None = None

    def start(self, job: Callable[[], None], n_running: int) -> list[_Worker]:
        """Start a job on up to ``n_running - 1`` threads in the caller's context, options included."""
        self.keep_off_this_core(n_running)
        crew: list[_Worker] = []
        with contextlib.suppress(RuntimeError):  # the system allows no more threads: these do all the work
            while len(crew) < n_running - 1:
                try:
                    crew.append(self._idle.pop())
                except IndexError:
                    crew.append(_Worker())
                    self._threads.append(crew[-1].native_id)
        for worker in crew:
            worker.job = functools.partial(contextvars.copy_context().run, job)
            worker.wanted.release()
        return crew

    def finish(self, worker: _Worker) -> BaseException | None:
        """Wait until a worker is done; return the exception that it raised."""
        worker.done.acquire()
        error, worker.error = worker.error, None
        self._idle.append(worker)
        return error

    def keep_off_this_core(self, n_running: int) -> None:
        """Restrict the workers to the other cores of the process, if these are enough."""
        core = _current_core()
        if core < 0 or n_running < 2:
            return
        cores = os.sched_getaffinity(0)
        if n_running <= len(cores):
            cores.discard(core)
        if self._allowed == (cores, len(self._threads)):
            return
        self._allowed = cores, len(self._threads)
        for thread in self._threads:
            with contextlib.suppress(OSError):  # a sandbox may forbid it: they then run on any core
                os.sched_setaffinity(thread, cores)


_current_core: Callable[[], int] = functools.partial(int, -1)  # where the system does not tell
if hasattr(os, "sched_setaffinity"):
    with contextlib.suppress(OSError, AttributeError):
        _current_core = ctypes.PyDLL(None).sched_getcpu


@functools.cache
def _workers() -> _Workers:
    return _Workers()


if hasattr(os, "register_at_fork"):  # a forked child inherits the pool without its threads
    os.register_at_fork(after_in_child=_workers.cache_clear)


class _SingleThreadedBlas:
    """Limit BLAS to one thread per call, inside a ``with`` block.

    For blockvec's own threads, and for many products of small matrices, where starting threads takes longer
    than the arithmetic, on busy cores a thousand times. The setting is global to the process: the first of
    nested or concurrent blocks sets it, and the last one restores it. `lifted` restores it for a while.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import single_threaded_blas
    >>> with single_threaded_blas:
    ...     np.linalg.eigvalsh(np.eye(40)).max() == 1
    np.True_
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = threading.local()  # of each thread, whether those that it is in limit, outermost first
        self._limiting = 0  # threads whose innermost block limits
        self._libraries: list[Any] | None = None
        self._limited: list[tuple[Any, int]] = []  # libraries with several threads, and their numbers

    def __enter__(self, limits: bool = True) -> None:
        entered = vars(self._blocks).setdefault("entered", [False])
        entered.append(limits)
        self._count(limits - entered[-2])

    def __exit__(self, *_raised: object) -> None:
        entered = self._blocks.entered
        limited = entered.pop()
        self._count(entered[-1] - limited)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Give BLAS its threads back inside a ``with`` block, as for a user's function.

        Another thread that is in a block of its own keeps the limit.
        """
        self.__enter__(False)
        try:
            yield
        finally:
            self.__exit__()

    def _count(self, change: int) -> None:
        """Count threads that limit; the first one sets the numbers of threads, the last one restores them."""
        if not change:
            return
        with self._lock:
            self._limiting += change
            if self._limiting == 1 and change == 1:
                if self._libraries is None:
                    controller = threadpoolctl.ThreadpoolController().select(user_api="blas")
                    self._libraries = controller.lib_controllers
                # Not by the controller's `limit`, which takes as long as some steps of a small problem.
                self._limited.clear()
                for library in self._libraries:
                    if (count := library.get_num_threads()) != 1:
                        self._limited.append((library, count))
                        library.set_num_threads(1)
            elif self._limiting == 0:
                for library, count in self._limited:
                    library.set_num_threads(count)


single_threaded_blas = _SingleThreadedBlas()
