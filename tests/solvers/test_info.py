"""What a result says about its call: the arguments as given, reasons, and times from the call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec.models import model
from solvers import eigsh
from solvers.iterations.base import MOST_UNLOOKED, Run

GRID = model("laplace2d:n=20")
MASS = sp.diags_array(np.linspace(1, 2, 400), format="csr")
CALLS: list[dict[str, Any]] = [
    {"sigma": 0},
    {"sigma": 0, "which": "SM"},
    {"which": "SM"},
    {"which": "BE"},
    {"sigma": 2.1},
    {"sigma": 2.1, "which": "LA"},
    {"sigma": 2.1, "mode": "cayley"},
    {"sigma": 2.1, "which": "SM", "mode": "cayley"},
    {"sigma": 2.1, "method": "dense"},
    {"sigma": 2.1, "method": "filter"},
    {"sigma": -0.5, "M": MASS},
    {"which": "SA", "M": MASS},
    {"which": "SM", "M": MASS},
]


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_the_info_holds_the_arguments_as_given(options: dict[str, Any]) -> None:
    given = {"sigma": None, "which": "LM", "mode": "normal", "method": "auto"} | options
    # Cayley's mode and "LA" with sigma have values that converge slowly, which is not the matter here.
    result = eigsh(GRID, 3, **options, rng=0, tol=1e-4, return_info=True, on_unconverged="return")
    assert {name: result.info[name] for name in ("sigma", "which", "mode")} == {
        name: given[name] for name in ("sigma", "which", "mode")
    }
    assert ("asked for" in result.info["why"]) == (given["method"] != "auto")


def test_no_second_factorisation_follows_once_the_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    A = model("laplace3d:n=12")
    factorise, calls = blockvec.Factorization.refactorize, []

    def counted(self: Any, sigma: float) -> Any:
        calls.append(sigma)
        return factorise(self, sigma)

    monkeypatch.setattr(blockvec.Factorization, "refactorize", counted)
    result = eigsh(A, interval=(0.0, 0.7), time_limit=1e-9, return_info=True, on_unconverged="return")
    assert (result.info["stopped"], result.info["missing"]) == ("time_limit", 1)
    assert len(calls) <= 1
    calls.clear()
    result = eigsh(
        A, 4, sigma=1.0, time_limit=1e-9, verify="always", return_info=True, on_unconverged="return"
    )
    assert result.info["stopped"] == "time_limit"
    assert len(calls) <= 1


def test_processes_look_for_a_stop_after_few_steps_however_short_these_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Any] = []
    layout = SimpleNamespace(largest=lambda values: looks.append(values) or values)
    operator = SimpleNamespace(layout=layout)
    problem: Any = SimpleNamespace(operator=operator, rng=None, time_limit=None, is_late=lambda: False)
    monkeypatch.setattr("solvers.iterations.base.time.perf_counter", lambda: 0.0)
    run = Run(problem, lambda: False)
    assert not any(run._stopped() for _ in range(10 * MOST_UNLOOKED))
    assert len(looks) >= 10
