"""Calls in processes of their own: those that hang or crash are given up, others are not disturbed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from blockvec.bench.workers import LostError, Workers, notice
from blockvec.errors import OptionError

LIMIT_S = 5.0


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(1, LIMIT_S) as executor:
        yield executor


def _hang(step: str) -> None:
    notice(step)
    time.sleep(1000)


def _crash(step: str) -> None:
    notice("before")
    notice(step)
    os._exit(7)


def _steps(count: int, seconds: float) -> int:
    for step in range(count):
        notice(step)
        time.sleep(seconds)
    return os.getpid()


def _refuse() -> None:
    raise OptionError("no such thing")


def _fail(step: str) -> None:
    notice(step)
    raise ZeroDivisionError("by zero")


def test_calls_run_one_after_the_other_in_one_process(workers: Workers) -> None:
    first = workers.submit(_steps, 2, 0.01).result()
    assert first == workers.submit(_steps, 1, seconds=0.0).result() != os.getpid()


def test_errors_of_ours_come_back_as_they_are(workers: Workers) -> None:
    before = workers.submit(os.getpid).result()
    with pytest.raises(OptionError, match="no such thing"):
        workers.submit(_refuse).result()
    assert workers.submit(os.getpid).result() == before


def test_a_process_that_failed_or_died_is_replaced_and_the_step_is_named(workers: Workers) -> None:
    for call, reason in ((_crash, "exit code 7"), (_fail, "ZeroDivisionError: by zero")):
        before = workers.submit(os.getpid).result()
        with pytest.raises(LostError, match=reason) as caught:
            workers.submit(call, "the culprit").result()
        assert caught.value.step == "the culprit"
        assert workers.submit(os.getpid).result() != before


def test_time_is_counted_from_step_to_step() -> None:
    with Workers(1, 1.0) as executor:
        assert executor.submit(_steps, 4, 0.4).result() > 0  # longer than the limit in all
        with pytest.raises(LostError, match="not done after 1 s") as caught:
            executor.submit(_hang, "standstill").result()
        assert caught.value.step == "standstill"
        assert executor.submit(_steps, 1, 0.0).result() > 0


def test_leaving_stops_what_runs_and_drops_what_waits() -> None:
    with Workers(1, 1000.0) as executor:
        running, waiting = executor.submit(_hang, "long"), executor.submit(_hang, "longer")
    assert isinstance(running.exception(), LostError) or running.cancelled()
    assert waiting.cancelled()
