"""Rows over threads: every row once, in order, whoever does the work."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockvec
from blockvec.backends.host import threads
from blockvec.backends.host.threads import map_rows, row_ranges, run_in_threads


@given(st.integers(0, 5000), st.integers(1, 40), st.sampled_from([1, 64, 100]))
def test_ranges_cover_every_row_once_in_order(n_rows: int, n_ranges: int, granule: int) -> None:
    ranges = row_ranges(n_rows, n_ranges, granule)
    assert [row for begin, end in ranges for row in range(begin, end)] == list(range(n_rows))
    assert len(ranges) <= n_ranges
    assert all(begin % granule == 0 for begin, _ in ranges)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("per_thread", [1, 4])
def test_results_come_in_the_order_of_rows_whoever_is_first(count: int, per_thread: int) -> None:
    def work(begin: int, end: int) -> tuple[int, int]:
        time.sleep(0.002 if begin == 0 else 0)
        return begin, end

    with blockvec.option_context(threads=count):
        assert map_rows(work, 10_000, per_thread) == row_ranges(10_000, count * per_thread)


def test_several_threads_work_at_a_time() -> None:
    barrier = threading.Barrier(3)  # passes only where three are in it together
    with blockvec.option_context(threads=3):
        run_in_threads(lambda index: barrier.wait(timeout=60), 3)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_any_thread_reaches_the_caller(failing: int) -> None:
    def work(index: int) -> None:
        if index == failing:
            raise ZeroDivisionError

    with blockvec.option_context(threads=2), pytest.raises(ZeroDivisionError):
        run_in_threads(work, 2)


def test_blas_is_single_threaded_inside_and_as_before_after() -> None:
    # In a process of its own: libraries that were loaded after blockvec's first look are none of its own.
    check = """
import numpy, threading, threadpoolctl
from blockvec.backends.host.threads import single_threaded_blas

def limits():
    return [lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]

before = limits()
with single_threaded_blas:
    with single_threaded_blas:
        assert set(limits()) <= {1}
    assert set(limits()) <= {1}
    with single_threaded_blas.lifted():
        with single_threaded_blas.lifted():
            assert limits() == before
        assert limits() == before
        with single_threaded_blas:
            assert set(limits()) <= {1}
        assert limits() == before
        try:
            with single_threaded_blas:
                raise KeyError
        except KeyError:
            assert limits() == before
    assert set(limits()) <= {1}
with single_threaded_blas.lifted():
    assert limits() == before
assert limits() == before

# Two threads that are lifted at once and leave in the order in which they came.
first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

def first():
    with single_threaded_blas, single_threaded_blas.lifted():
        first_is_in.set()
        second_is_in.wait()
    first_is_out.set()

def second():
    with single_threaded_blas:
        first_is_in.wait()
        with single_threaded_blas.lifted():
            second_is_in.set()
            first_is_out.wait()

threads = [threading.Thread(target=work) for work in (first, second)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert limits() == before
with single_threaded_blas:
    assert set(limits()) <= {1}
assert limits() == before
"""
    subprocess.run([sys.executable, "-c", check], check=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "2"})


def place(monkeypatch: pytest.MonkeyPatch, cores: set[int], core: int) -> dict[int, set[int]]:
    """Pretend to run on a core of some, and note where threads are sent."""
    sent: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", sent.__setitem__, raising=False)
    monkeypatch.setattr(threads, "_current_core", lambda: core)
    return sent


def workers(*ids: int) -> threads._Workers:
    made = threads._Workers()
    made._threads.extend(ids)
    return made


def test_workers_keep_off_the_core_of_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    made = workers(11, 12)
    sent = place(monkeypatch, {0, 1, 2}, core=1)
    made.keep_off_this_core(2)
    assert sent == {11: {0, 2}, 12: {0, 2}}
    sent.clear()
    made.keep_off_this_core(2)
    assert not sent  # nothing has changed
    sent = place(monkeypatch, {0, 1, 2}, core=2)
    made.keep_off_this_core(2)
    assert sent == {11: {0, 1}, 12: {0, 1}}


def test_a_system_that_forbids_to_place_threads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(thread: int, cores: set[int]) -> None:
        raise PermissionError

    made = workers(11)
    place(monkeypatch, {0, 1}, core=0)
    monkeypatch.setattr(os, "sched_setaffinity", forbid, raising=False)
    made.keep_off_this_core(2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    def total(count: Callable[[int, int], int]) -> int:
        return sum(map_rows(count, 1000))

    with blockvec.option_context(threads=2):
        assert total(lambda begin, end: end - begin) == 1000
        child = os.fork()
        if child == 0:
            os._exit(0 if total(lambda begin, end: end - begin) == 1000 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_items_may_spread_items_of_their_own() -> None:
    found: list[int] = []
    with blockvec.option_context(threads=2):
        run_in_threads(lambda i: run_in_threads(lambda j: found.append(10 * i + j), 3), 2)
    assert sorted(found) == [0, 1, 2, 10, 11, 12]


def test_work_is_done_by_fewer_threads_where_the_system_allows_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_workers", functools.cache(threads._Workers))
    monkeypatch.setattr(threads._Worker, "__init__", refuse)
    done: list[int] = []
    with blockvec.option_context(threads=4):
        threads.run_in_threads(done.append, 9)
    assert done == list(range(9))
