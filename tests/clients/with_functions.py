"""A plugin of pytest: run SciPy's tests with blockvec's functions of matrices in the place of SciPy's.

What SciPy's functions compute with raises meanwhile. Calls of ours are counted.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse.linalg
import scipy.sparse.linalg._expm_multiply as scipy_expm
import scipy.sparse.linalg._funm_multiply_krylov as scipy_krylov

from blockvec import expm_multiply, funm_multiply_krylov

ends: dict[str, str] = {}
calls: Counter[str] = Counter()
OF_EXPM = "_fragment_3_1 traceest _exact_inf_norm _expm_multiply_simple_core " + " ".join(
    f"_expm_multiply_interval_core_{status}" for status in range(3)
)
OF_KRYLOV = "_funm_multiply_krylov_arnoldi _funm_multiply_krylov_lanczos"


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        calls[function.__name__] += 1
        return function(*arguments, **options)

    return call


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("SciPy's own function was called")


ours = counted(expm_multiply)


def simple(A: Any, B: Any, t: float = 1.0, traceA: Any = None) -> Any:
    return ours(t * A, B, traceA=traceA)


def interval(A: Any, B: Any, status_only: bool = False, **options: Any) -> Any:
    return refused() if status_only else (ours(A, B, **options), 0)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Replace names before the tests import them."""
    for module, names in ((scipy_expm, OF_EXPM), (scipy_krylov, OF_KRYLOV)):
        for name in names.split():
            assert hasattr(module, name)
            setattr(module, name, refused)
    scipy_expm._expm_multiply_simple, scipy_expm._expm_multiply_interval = simple, interval
    for place in (scipy.sparse.linalg, scipy_expm):
        place.expm_multiply = ours
    for place in (scipy.sparse.linalg, scipy_krylov):
        place.funm_multiply_krylov = counted(funm_multiply_krylov)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        ends[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    text = json.dumps({"outcomes": ends, "solves": calls.total()})
    Path(os.environ["CLIENT_REPORT"]).write_text(text)
