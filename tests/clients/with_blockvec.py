"""A plugin of pytest: run tests with blockvec's eigsh and svds in SciPy's place, and count solves."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from solvers import replace

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
    if os.environ["CLIENT_SOLVER"] == "blockvec":
        contexts.enter_context(replace("scipy.sparse.linalg"))


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        ends[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    text = json.dumps({"outcomes": ends, "solves": solves["eigsh"] + solves["triplets"]})
    Path(os.environ["CLIENT_REPORT"]).write_text(text)
