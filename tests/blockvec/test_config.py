"""Options: from the environment, for a context, for the process."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import blockvec
from blockvec.errors import OptionError
from blockvec.system import config


@pytest.fixture
def default() -> Iterator[None]:
    """Put the process-wide default back."""
    before = blockvec.options()
    yield
    blockvec.set_default_options(**dataclasses.asdict(before))


def test_a_context_changes_options_inside_it_only() -> None:
    outside = blockvec.options()
    with blockvec.option_context(threads=3) as inside:
        assert inside == blockvec.options()
        assert inside.threads == 3
        with blockvec.option_context(three_m=False):
            assert (blockvec.options().threads, blockvec.options().three_m) == (3, False)
        assert blockvec.options().three_m == outside.three_m
    assert blockvec.options() == outside
    with pytest.raises(RuntimeError), blockvec.option_context(threads=7):
        raise RuntimeError
    assert blockvec.options() == outside


def test_other_threads_see_the_default_and_not_a_context(default: None) -> None:
    seen: list[int] = []
    blockvec.set_default_options(threads=5)
    with blockvec.option_context(threads=2):
        thread = threading.Thread(target=lambda: seen.append(blockvec.options().threads))
        thread.start()
        thread.join()
        assert blockvec.options().threads == 2
    assert seen == [5]


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two", 1025, 10**30])
def test_a_thread_count_is_an_integer_within_bounds(threads: object) -> None:
    with (
        pytest.raises(OptionError, match="an integer from 1 to 1024"),
        blockvec.option_context(threads=threads),
    ):
        pass


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with (
        pytest.raises(OptionError, match=r"'thread'.*threads, cache_dir, three_m"),
        blockvec.option_context(thread=1),
    ):
        pass
    with pytest.raises(OptionError, match="'thread'"):
        blockvec.set_default_options(thread=1)


def test_what_is_gone_says_what_replaces_it() -> None:
    gone = {"tune": r"tune\.py", "tune_budget_s": r"tune\.py", "vendor": "cuBLAS"}
    for name, instead in gone.items():
        with (
            pytest.raises(OptionError, match=rf"this option is gone.*{instead}"),
            blockvec.option_context(**{name: 1}),
        ):
            pass
    for variable, instead in zip(("TUNE", "TUNE_BUDGET", "VENDOR"), gone.values(), strict=True):
        with pytest.warns(UserWarning, match=rf"^BLOCKVEC_{variable}: this option is gone.*{instead}"):
            config.options_from_environment({f"BLOCKVEC_{variable}": "2"})


def test_options_come_from_the_environment() -> None:
    environment = {"BLOCKVEC_THREADS": "3", "BLOCKVEC_CACHE_DIR": "~/x", "BLOCKVEC_3M": "0"}
    found = config.options_from_environment(environment)
    assert (found.threads, found.three_m) == (3, False)
    assert found.cache_dir == Path("~/x").expanduser()


def test_an_empty_environment_gives_the_machine_s_cores_and_the_user_s_cache() -> None:
    found = config.options_from_environment({})
    assert 1 <= found.threads <= (os.cpu_count() or 1)
    assert found.three_m
    assert found.cache_dir.name == "blockvec"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOCKVEC_THREADS", "abc"),
        ("BLOCKVEC_THREADS", "0"),
        ("BLOCKVEC_THREADS", "100000"),
        ("BLOCKVEC_THREADS", "9" * 5000),
        ("BLOCKVEC_3M", "yes"),
        ("BLOCKVEC_CACHE_DIR", "~no-such-user/cache"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_and_ignored(name: str, value: str) -> None:
    with pytest.warns(UserWarning, match=rf"^{name}: got '{value}'; give .*\. The default is used") as caught:
        found = config.options_from_environment({name: value, "BLOCKVEC_CACHE_DIR": "~/x"} | {name: value})
    assert len(caught) == 1
    expected = {} if name == "BLOCKVEC_CACHE_DIR" else {"BLOCKVEC_CACHE_DIR": "~/x"}
    assert found == config.options_from_environment(expected)


@pytest.mark.parametrize("name", config.NEIGHBOURS)
def test_processes_of_a_computer_divide_its_cores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    for processes, threads in (("1", 8), ("3", 2), ("20", 1), ("", 8), ("few", 8)):
        monkeypatch.setenv(name, processes)
        assert config.Options().threads == threads
    monkeypatch.setenv(name, "2")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert config.Options().threads == 4, "bound by the launcher"
