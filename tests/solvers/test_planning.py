"""The plan of a solve: made without a product, what the solve then does, and in words."""

from __future__ import annotations

import json
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
from solvers import eigsh, plan
from solvers.__main__ import main
from solvers.call import _warn_of_processes

PLANE = model("laplace2d:n=40").tocsr()
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
    result = eigsh(A, **CALLS[name], rng=0, return_info=True)
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
    call: Any = SimpleNamespace(op=SimpleNamespace(layout=layout, halo_rows=99_000))
    slow = replace(made, n=200_000, processes=2, alone_s=seconds / 2)
    with pytest.warns(UserWarning, match=r"2 processes .* alone .* 99000 rows .* beside 100000 own ones"):
        _warn_of_processes(call, slow)
    for quick in (made, replace(slow, alone_s=seconds), replace(slow, n=50_000)):
        _warn_of_processes(call, quick)


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
