"""Scripts whose records of small cases are right: densities, functions of matrices, intervals, systems."""

from __future__ import annotations

import pytest

from blockvec import models
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks import densities, functions, interval, systems
from tests.contract.blocks import CEILINGS
from tests.pretended_gpu import pretended_gpu


def test_a_density_compares_the_moments_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(densities, "ceilings", lambda backend: CEILINGS)
    record = densities.measured("graphene:nx=12,ny=12", 32, "cpu")
    assert record["difference"] < 1e-12
    assert record["fraction"] > 0
    assert record["speedup"] == record["peers"]["scipy"] / record["column_s"]


def test_an_exponential_has_equal_errors_and_the_products() -> None:
    one = functions.compared("chain", -2j * models.model("xxz:sites=8,up=4"), 2)
    assert max(one["error"].values()) < 1e-13
    assert one["method"] == "chebyshev"
    assert one["products"] == one["degree"] > 10


def test_an_exponential_on_a_gpu_has_fractions_of_its_limits() -> None:
    with pretended_gpu():
        one = functions.evolved("xxz:sites=8,up=4", 2, Ceilings(4500, 4500, 4200, {"float64": 66e3}))
    assert one["norm_error"] < 1e-13
    assert 0 < one["memory_fraction"] < 1


def test_an_interval_of_a_small_plate_misses_nothing() -> None:
    K, M, values = interval.plate(24)
    one = interval.record(interval.case("plate", K, M, values, 20, 50), "cpu")
    assert one["k"] == one["counted"] == one["found"] == one["converged"]
    assert one["missed"] == 0
    assert one["orthogonality"] < 1e-12
    assert one["peers"]["one shift"]["k"] == one["k"]
    assert interval.line(one).startswith("plate ")


def test_systems_are_solved_to_the_same_accuracy() -> None:
    pytest.importorskip("pyamg", reason="multigrid: pip install pyamg")
    for name, A, near_null in systems.problems(scale=0.05):
        assert abs(A - A.T).max() <= 1e-12 * abs(A).max()
        one = systems.record(name, A, near_null, "jacobi", 3, turns=1)
        assert max(one["residual"], one["scipy_residual"]) <= 1.1e-8
        assert 0 < one["iterations"] < 1000
