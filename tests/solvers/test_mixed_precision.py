"""Filters in single precision within solves in double precision: the same pairs, residuals and copies."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from blockvec.errors import OptionError
from blockvec.kernels.problem import SpmmvProblem
from solvers import EigenResult, costs
from solvers.costs import require_memory
from solvers.iterations.chebyshev import REACH
from tests.benchmarks.drawn_problems import matrix
from tests.pretended_gpu import pretended_gpu
from tests.solvers import answers
from tests.solvers.answers import eigenvalues

LIMIT: dict[str, Any] = {"tol": 1e-8, "convergence": "norm"}


def solve(A: Any, k: int, **options: Any) -> EigenResult:
    return answers.solve(A, k, **{"which": "SA", **LIMIT, **options})


def check(A: Any, k: int, **options: Any) -> EigenResult:
    return answers.answered(A, k, loss=1e-13, **{"which": "SA", **LIMIT, **options})


def disordered(A: Any, strength: float = 1.0) -> Any:
    """A matrix whose entries are no numbers of single precision."""
    noise = np.random.default_rng(5).uniform(-strength, strength, A.shape[0])
    return (A + sp.diags_array(noise)).tocsr()


def crowded_rows() -> Any:
    """A matrix with so many entries per row that factor and shift of a filter are part of each product."""
    B = sp.random_array((1000, 1000), density=0.012, rng=np.random.default_rng(2), format="csr")
    return (B + B.T + sp.diags_array(np.linspace(0, 20, 1000))).tocsr()


DISORDERED = disordered(models.model("laplace2d:n=34"))
CASES = {
    "laplacian": lambda: models.model("laplace3d:n=10"),
    "disorder": lambda: DISORDERED,
    "complex": lambda: disordered(models.model("hofstadter:nx=36,ny=36")),
    "crowded rows": crowded_rows,
    "tiny numbers": lambda: 1e-60 * DISORDERED,
    "huge numbers": lambda: 1e60 * DISORDERED,
}


@pytest.mark.parametrize(("case", "which"), list(zip(CASES, itertools.cycle(["SA", "LA"]))))
def test_mixed_solves_have_the_pairs_of_double_precision(case: str, which: str) -> None:
    A = CASES[case]()
    exact = eigenvalues(A / abs(A).max()) * abs(A).max()
    mixed, double = (
        check(A, 10, exact=exact, which=which, **how).info
        for how in ({"precision": "mixed"}, {"precision": "double", "method": "filter"})
    )
    assert 0.5 * mixed["operator_columns"] < mixed["single_columns"] < mixed["operator_columns"]
    assert double["single_columns"] == 0
    assert mixed["operator_columns"] < 3 * double["operator_columns"]


@pytest.mark.parametrize("block_size", [1, 2, 8])
def test_every_copy_is_found_also_after_the_change_of_precision(block_size: int) -> None:
    A = models.model("laplace3d:n=9")  # values of multiplicity three and six
    info = check(A, 17, precision="mixed", method="filter", block_size=block_size, verify="always").info
    assert info["single_columns"] > 0
    assert info["verification"].startswith("passed")
    assert info["missing"] == 0


@pytest.mark.parametrize("tol", [1e-5, 1e-11, 0])
def test_a_mixed_solve_ends_in_double_precision_where_its_limits_are_tighter(tol: float) -> None:
    info = check(DISORDERED, 6, precision="mixed", tol=tol).info
    assert info["single_columns"] > 0
    # At a loose limit the errors of single precision need not be removed.
    degrees = info["operator_columns"] - info["single_columns"]
    assert degrees < 300 if tol == 1e-5 else degrees > 300


@pytest.mark.parametrize(("share", "mixes"), [(1.01, True), (0.5, False)])
def test_auto_mixes_from_a_known_tolerance_on(
    share: float, mixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "HOST", dataclasses.replace(costs.HOST, mixed_s=0.0))
    for precision in ("auto", "double"):
        result = check(DISORDERED, 6, tol=share * REACH, method="filter", precision=precision)
        assert (result.info["single_columns"] > 0) == (mixes and precision == "auto")


def test_a_copy_that_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free must not choose the precision: the same call would give other bits at another time."""
    monkeypatch.setattr(costs, "HOST", dataclasses.replace(costs.HOST, mixed_s=0.0))
    monkeypatch.setattr("solvers.costs.SMALL_BYTES", 0)
    A = models.model("laplace2d:n=34")
    asked: list[int] = []
    monkeypatch.setattr("solvers.sizes.require_memory", lambda op, needed, *text: asked.append(needed))
    solve(A, 6, method="filter", precision="double")
    copy = costs.copy_bytes(as_operator(A), 4)
    assert solve(A, 6, method="filter", precision="auto").info["single_columns"] > 0
    assert asked[-1] == asked[0] + copy
    monkeypatch.setattr("solvers.sizes.require_memory", require_memory)
    monkeypatch.setattr("solvers.costs.available_memory", lambda: asked[0] + copy - 1)
    for precision in ("auto", "mixed"):
        with pytest.raises(OptionError, match=r"copy of A in single precision.*or use precision='double'"):
            solve(A, 6, method="filter", precision=precision)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "single"}, "precision: got 'single'; give one of 'auto', 'double', 'mixed'"),
        ({"method": "lanczos"}, "one of filters, but method is 'lanczos'"),
        ({"method": "jd"}, "one of filters, but method is 'jd'"),
        ({"sigma": 0.5, "which": "LM"}, "without M, sigma"),
        ({"M": sp.eye_array(100, format="csr")}, "without M, sigma"),
        ({"interval": (0.0, 1.0), "which": "LM"}, "without M, sigma, interval"),
        ({"preconditioner": lambda X: X}, "preconditioner and jd_options"),
    ],
)
def test_mixed_where_nothing_can_be_mixed_is_an_error(options: dict[str, Any], message: str) -> None:
    A = models.model("laplace2d:n=10")
    with pytest.raises(OptionError, match=message):
        solve(A, 3, **{"precision": "mixed", **options})


def test_mixed_needs_a_sparse_matrix_in_double_precision() -> None:
    A = models.model("laplace2d:n=10")
    function: Any = {"A": lambda X: A @ X, "shape": A.shape}
    for given, message in (
        (function, "needs a sparse matrix A, whose entries can be converted"),
        ({"A": A.toarray()}, "needs a sparse matrix A"),
        ({"A": A.astype(np.float32)}, r"from double precision; got SparseOperator\(.*, float32, cpu\)"),
    ):
        with pytest.raises(OptionError, match=message):
            solve(k=3, precision="mixed", **given)
    assert solve(k=3, **function).converged.all()  # by default


@pytest.mark.parametrize("case", ["laplacian", "complex"])
def test_a_gpu_runs_the_recurrence_of_a_mixed_filter_in_single_precision(case: str) -> None:
    A = CASES[case]()
    with pretended_gpu() as watched:
        info = check(A, 10, exact=eigenvalues(A), precision="mixed", method="filter", device="gpu").info
    assert info["device"] == "cuda:0"
    last = [solve for solve in watched.solves if solve.method != "begin"][-1]
    products = [request for request in last.requests if isinstance(request, SpmmvProblem)]
    single = np.dtype("complex64" if case == "complex" else "float32").name
    steps = [(p.dtype_matrix, p.dtype_x) for p in products if p.beta != "zero"]
    assert (single, single) in steps
    assert (A.dtype.name, A.dtype.name) in steps  # of the refining filter
    assert {p.width for p in products if p.dtype_x == single} == {info["block_size"]}


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["laplacian", "disorder", "complex", "crowded rows"])
def test_mixed_solves_on_a_gpu_have_the_pairs_of_double_precision(case: str) -> None:
    result = check(CASES[case](), 10, precision="mixed", device="gpu")
    assert result.info["single_columns"] > 0


def test_auto_stays_in_double_precision_where_a_value_far_out_leaves_low_degrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a regular graph is its degree; amplified, it would drown the others in rounding errors."""
    monkeypatch.setattr(costs, "HOST", dataclasses.replace(costs.HOST, mixed_s=0.0))
    A = matrix("regular_graph:n=1500,degree=8,seed=436").tocsr()
    how: Any = {"which": "LA", "method": "filter", "exact": eigenvalues(A)}
    auto, mixed = (check(A, 20, precision=precision, **how) for precision in ("auto", "mixed"))
    assert auto.info["single_columns"] == 0 < mixed.info["single_columns"]
    assert auto.info["degree"] > 1.5 * mixed.info["degree"]
