"""A plugin of pytest: run a package's tests with blockvec's solvers in SciPy's place; count their solves."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import solvers
from solvers import replace

PLACES = ("", "._isolve", "._eigen", "._eigen.lobpcg")  # in scipy.sparse.linalg

ends: dict[str, str] = {}
solves: Counter[str] = Counter()  # of blockvec
contexts = ExitStack()  # a context that nothing refers to would end


class SolveCounter(logging.Handler):
    """Count the message with which every solve ends."""

    def emit(self, record: logging.LogRecord) -> None:
        solves[record.module] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Replace SciPy's name before a package or its conftest imports it, and until the process ends."""
    logger = logging.getLogger("blockvec")
    logger.setLevel(logging.INFO)
    logger.addHandler(SolveCounter())
    logger.propagate = False
    if os.environ["CLIENT_SOLVER"] != "blockvec":
        return
    names = os.environ["CLIENT_NAMES"].split()
    if "eigsh" in names:
        contexts.enter_context(replace("scipy.sparse.linalg"))
        return
    for name in names:
        for module in (importlib.import_module(f"scipy.sparse.linalg{place}") for place in PLACES):
            if hasattr(module, name):
                setattr(module, name, counted(getattr(solvers, name)))


def counted(function: Any) -> Any:
    """Count the calls of a solver."""

    @functools.wraps(function)
    def solve(*args: Any, **options: Any) -> Any:
        solves["eigsh"] += 1
        return function(*args, **options)

    return solve


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        ends[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    text = json.dumps({"outcomes": ends, "solves": solves["eigsh"] + solves["triplets"]})
    Path(os.environ["CLIENT_REPORT"]).write_text(text)
