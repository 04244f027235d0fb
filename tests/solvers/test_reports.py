"""What a solve says: its plan, which it keeps to, the arguments as given, summaries, messages, times."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import as_operator
from blockvec.errors import OptionError
from blockvec.models import model
from solvers import EigenResult, plan
from solvers.__main__ import main
from solvers.iterations.base import MOST_UNLOOKED, Run
from solvers.planning import warn_of_processes
from tests.solvers.answers import solve

PLANE = model("laplace2d:n=40").tocsr()
GRID = model("laplace2d:n=20")
MASS = sp.diags_array(np.linspace(1, 2, 1600), format="csr")
CALLS: dict[str, dict[str, Any]] = {
    "an end": {"k": 6, "which": "LA"},
    "both ends": {"k": 6, "which": "BE"},
    "a filter": {"k": 4, "which": "SA", "method": "filter", "tol": 1e-6},
    "corrections": {"k": 4, "which": "SA", "method": "jd", "tol": 1e-6},
    "a shift": {"k": 6, "sigma": 0.1},
    "a pair": {"k": 6, "M": MASS, "which": "LA"},
    "a pair and a shift": {"k": 6, "M": MASS, "sigma": 0.3},
    "sizes": {"k": 3, "which": "LA", "ncv": 30, "block_size": 3},
    "an interval": {"interval": (0.0, 0.02)},
    "many pairs": {"k": 600, "which": "LA"},
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CALLS)
def test_a_solve_does_what_its_plan_says(name: str, dtype: Any) -> None:
    A = PLANE.astype(dtype)
    planned = plan(A, **CALLS[name])
    result = solve(A, **CALLS[name])
    info, stages = result.info, [stage for stage in planned.stages if stage.name != "end"]
    assert info["plan"] == planned
    methods = {stage.method for stage in stages}
    assert info["method"] in (methods | {"lanczos"} if "filter" in methods else methods)
    if stages[0].ncv is not None and info["method"] != "shift-invert":
        assert (info["block_size"], info["ncv"]) == (stages[0].block_size, stages[0].ncv)
    assert json.loads(json.dumps(result.to_dict()))["info"]["plan"]["n"] == 1600


def test_processes_that_take_longer_than_one_are_warned_of() -> None:
    made = plan(PLANE, 6, which="LA")
    seconds = made.stages[0].seconds
    layout = SimpleNamespace(rank=0, n_local=100_000)
    op = SimpleNamespace(layout=layout, halo_rows=99_000)
    slow = replace(made, n=200_000, processes=2, alone_s=seconds / 2)
    with pytest.warns(UserWarning, match=r"2 processes .* alone .* 99000 rows .* beside 100000 own ones"):
        warn_of_processes(slow, op)
    for quick in (made, replace(slow, alone_s=seconds), replace(slow, n=50_000)):
        warn_of_processes(quick, op)


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a product")


@pytest.mark.parametrize("name", CALLS)
def test_a_plan_multiplies_and_factorises_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A = as_operator(PLANE)
    for product in ("apply", "apply_columns", "affine"):
        monkeypatch.setattr(type(A), product, refuse)
    monkeypatch.setattr(blockvec.Factorization, "__init__", refuse)
    assert plan(A, **CALLS[name]).n == 1600
    assert plan(PLANE, **CALLS[name]).stages


def test_a_function_is_planned_for_without_a_call() -> None:
    A = as_operator(refuse, shape=(9000, 9000), dtype=np.float64)
    assert plan(A, 4, which="LA").stages[0].method == "lanczos"
    around = plan(A, 4, sigma=1.0)
    assert [stage.name for stage in around.stages] == ["end", "iterate", "window"]
    assert "If corrections stagnate" in " ".join(str(around).split())


def test_a_plan_refuses_what_a_solve_refuses() -> None:
    for k in (0, 1601):
        with pytest.raises(OptionError, match="k: got"):
            plan(PLANE, k)
    with pytest.raises(OptionError, match="ncv: got 4"):
        plan(PLANE, 6, ncv=4)


def test_the_command_prints_a_plan_and_stops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laplace2d:n=40", "--plan", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("Compute 6 eigenpairs of 1600 rows on cpu")
    assert main(["laplace2d:n=40", "--plan", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["name"] == "iterate"


@pytest.mark.parametrize(
    "options",
    [
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
        {"sigma": -0.5, "M": MASS[:400, :400]},
        {"which": "SA", "M": MASS[:400, :400]},
        {"which": "SM", "M": MASS[:400, :400]},
    ],
    ids=str,
)
def test_the_info_holds_the_arguments_as_given(options: dict[str, Any]) -> None:
    given = {"sigma": None, "which": "LM", "mode": "normal", "method": "auto"} | options
    # Cayley's mode and "LA" with sigma have values that converge slowly, which is not the matter here.
    result = solve(GRID, 3, **options, tol=1e-4, on_unconverged="return")
    assert all(result.info[name] == given[name] for name in ("sigma", "which", "mode"))
    assert ("asked for" in result.info["why"]) == (given["method"] != "auto")


def test_no_second_factorisation_follows_once_the_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    A = model("laplace3d:n=12")
    factorise, calls = blockvec.Factorization.refactorize, []

    def counted(self: Any, sigma: float) -> Any:
        calls.append(sigma)
        return factorise(self, sigma)

    monkeypatch.setattr(blockvec.Factorization, "refactorize", counted)
    for asked in ({"interval": (0.0, 0.7)}, {"k": 4, "sigma": 1.0, "verify": "always"}):
        calls.clear()
        info = solve(A, **asked, time_limit=1e-9, on_unconverged="return").info
        assert info["stopped"] == "time_limit"
        assert "interval" not in asked or info["missing"] == 1
        assert len(calls) <= 1


def test_processes_look_for_a_stop_after_few_steps_however_short_these_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Any] = []
    layout = SimpleNamespace(largest=lambda values: looks.append(values) or values)
    operator = SimpleNamespace(layout=layout)
    limits: dict[str, Any] = {"time_limit": None, "begin_s": 0.0, "is_late": lambda: False}
    problem: Any = SimpleNamespace(operator=operator, rng=None, **limits)
    monkeypatch.setattr("solvers.iterations.base.time.perf_counter", lambda: 0.0)
    run = Run(problem, lambda: False)
    assert not any(run._stopped() for _ in range(10 * MOST_UNLOOKED))
    assert len(looks) >= 10


def solved(**options: Any) -> EigenResult:
    return solve(GRID, 5, which="LA", method="lanczos", **options)


def test_the_summary_tells_convergence_copies_and_costs() -> None:
    result = solved(tol=1e-8)
    summary = result.summary()
    assert summary.startswith("5 eigenvalues, all converged; no copy of a multiple eigenvalue is missing")
    assert "(checked). Method lanczos: " in summary
    assert f"{result.info['operator_columns']} products of A" in summary
    assert str(result).endswith(summary)


def test_the_summary_counts_pairs_that_did_not_converge() -> None:
    result = solved(maxiter=1, tol=1e-14, on_unconverged="return")
    assert result.summary().startswith(f"5 eigenvalues, {int(result.converged.sum())} converged")
    assert "1 restart," in result.summary()


def test_a_result_unpacks_and_is_one_line_in_a_list_and_a_table_in_a_notebook() -> None:
    result = solved(tol=1e-8, verify="never").with_info(verification="1 < 2")
    w, X = result
    assert w is result.eigenvalues
    assert X is result.eigenvectors
    assert repr(result).startswith("EigenResult(k=5, converged 5/5, copies skipped, residual <= ")
    assert len(repr(result)) < 120
    page = result._repr_html_()
    assert page.count("<tr>") == 6
    assert "1 &lt; 2" in page


def test_the_logger_tells_decisions_restarts_and_the_outcome(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "blockvec"):
        result = solved(tol=1e-8)
    levels = {level: [r.getMessage() for r in caplog.records if r.levelno == level] for level in (10, 20)}
    assert any("block size" in message for message in levels[logging.DEBUG])
    assert len([m for m in levels[logging.INFO] if m.startswith("restart")]) == len(result.history)
    assert levels[logging.INFO][-1] == result.summary()
