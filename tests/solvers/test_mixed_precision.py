"""Filters in single precision within solves in double precision: the same pairs, residuals and copies."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from blockvec.errors import OptionError
from blockvec.kernels.problem import SpmmvProblem
from solvers import EigenResult, eigsh
from solvers.iterations import chebyshev
from solvers.iterations.chebyshev import LEAST_LIMIT
from tests.benchmarks.drawn_problems import matrix
from tests.pretended_gpu import pretended_gpu

TOL = 1e-8


def solve(A: Any, k: int, **options: Any) -> EigenResult:
    result = eigsh(
        A, k, **{"which": "SA", "tol": TOL, "convergence": "norm", "rng": 0, **options}, return_info=True
    )
    assert isinstance(result, EigenResult)
    return result


def disordered(A: Any, strength: float = 1.0) -> Any:
    """A matrix whose entries are no numbers of single precision."""
    noise = np.random.default_rng(5).uniform(-strength, strength, A.shape[0])
    return (A + sp.diags_array(noise)).tocsr()


def check(A: Any, result: EigenResult, values: np.ndarray) -> None:
    """Compare with all eigenvalues of A, and compute residuals and orthogonality in double precision."""
    w, X = result.eigenvalues, result.eigenvectors
    norm = np.abs(values).max()
    assert X.dtype == A.dtype
    residuals = np.linalg.norm(A @ X - X * w, axis=0)
    assert (residuals <= 1.01 * result.limits + 1e-14 * norm).all()
    assert np.allclose(residuals, result.residuals, rtol=0.1, atol=1e-14 * norm)
    assert np.abs(X.conj().T @ X - np.eye(len(w))).max() < 1e-13
    # Values are compared in order: none is missed.
    assert np.abs(w - values).max() <= result.limits.max() + 1e-14 * norm


def crowded_rows() -> Any:
    """A matrix with so many entries per row that factor and shift of a filter are part of each product."""
    B = sp.random_array((1000, 1000), density=0.012, rng=np.random.default_rng(2), format="csr")
    return (B + B.T + sp.diags_array(np.linspace(0, 20, 1000))).tocsr()


CASES = {
    "laplacian": lambda: models.model("laplace3d:n=10"),
    "disorder": lambda: disordered(models.model("laplace2d:n=34")),
    "complex": lambda: disordered(models.model("hofstadter:nx=36,ny=36")),
    "crowded rows": crowded_rows,
    "tiny numbers": lambda: 1e-60 * disordered(models.model("laplace2d:n=34")),
    "huge numbers": lambda: 1e60 * disordered(models.model("laplace2d:n=34")),
}


@pytest.mark.parametrize(("case", "which"), list(zip(CASES, itertools.cycle(["SA", "LA"]))))
def test_mixed_solves_have_the_pairs_of_double_precision(case: str, which: str) -> None:
    A = CASES[case]()
    k = 10
    result = solve(A, k, which=which, precision="mixed")
    info, values = result.info, np.linalg.eigvalsh(A.toarray() / abs(A).max()) * abs(A).max()
    check(A, result, values[:k] if which == "SA" else values[-k:])
    assert result.converged.all()
    assert 0.5 * info["operator_columns"] < info["single_columns"] < info["operator_columns"]
    double = solve(A, k, which=which, precision="double", method="filter")
    assert double.info["single_columns"] == 0
    assert info["operator_columns"] < 3 * double.info["operator_columns"]


@pytest.mark.parametrize("block_size", [1, 2, 8])
def test_every_copy_is_found_also_after_the_change_of_precision(block_size: int) -> None:
    A = models.model("laplace3d:n=9")  # values of multiplicity three and six
    values = np.linalg.eigvalsh(A.toarray())
    result = solve(A, 17, precision="mixed", method="filter", block_size=block_size, verify="always")
    check(A, result, values[:17])
    assert result.info["single_columns"] > 0
    assert result.info["verification"].startswith("passed")
    assert result.info["missing"] == 0


@pytest.mark.parametrize("tol", [1e-5, 1e-11, 0])
def test_a_mixed_solve_ends_in_double_precision_where_its_limits_are_tighter(tol: float) -> None:
    A = disordered(models.model("laplace2d:n=34"))
    result = solve(A, 6, precision="mixed", tol=tol)
    check(A, result, np.linalg.eigvalsh(A.toarray())[:6])
    single, columns = result.info["single_columns"], result.info["operator_columns"]
    assert result.converged.all()
    assert single > 0
    # At a loose limit the errors of single precision need not be removed.
    degrees = columns - single
    assert degrees < 300 if tol == 1e-5 else degrees > 300


@pytest.mark.parametrize(("share", "mixes"), [(1.01, True), (0.5, False)])
def test_auto_mixes_from_a_known_tolerance_on(
    share: float, mixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chebyshev, "HOST_BYTES", 0.0)
    A = disordered(models.model("laplace2d:n=34"))
    result = solve(A, 6, tol=share * LEAST_LIMIT, method="filter")
    assert (result.info["single_columns"] > 0) == mixes
    assert (
        solve(A, 6, tol=share * LEAST_LIMIT, method="filter", precision="double").info["single_columns"] == 0
    )
    check(A, result, np.linalg.eigvalsh(A.toarray())[:6])


def test_a_copy_that_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free must not choose the precision: the same call would give other bits at another time."""
    monkeypatch.setattr(chebyshev, "HOST_BYTES", 0.0)
    monkeypatch.setattr("solvers.runtime.memory.SMALL_BYTES", 0)
    A = models.model("laplace2d:n=34")
    asked: list[int] = []
    monkeypatch.setattr("solvers.sizes.require_memory", lambda op, needed, *text: asked.append(needed))
    solve(A, 6, method="filter", precision="double")
    copy = chebyshev.copy_bytes(as_operator(A), 4)
    assert solve(A, 6, method="filter", precision="auto").info["single_columns"] > 0
    assert asked[-1] == asked[0] + copy
    monkeypatch.undo()
    monkeypatch.setattr(chebyshev, "HOST_BYTES", 0.0)
    monkeypatch.setattr("solvers.runtime.memory.SMALL_BYTES", 0)
    monkeypatch.setattr("solvers.runtime.memory.available_memory", lambda: asked[0] + copy - 1)
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
    with pytest.raises(OptionError, match="needs a sparse matrix A, whose entries can be converted"):
        solve(lambda X: A @ X, 3, shape=A.shape, precision="mixed")
    with pytest.raises(OptionError, match="needs a sparse matrix A"):
        solve(A.toarray(), 3, precision="mixed")
    with pytest.raises(OptionError, match="needs A in double precision, it is float32"):
        solve(A.astype(np.float32), 3, precision="mixed")
    # The default takes all of them.
    assert solve(lambda X: A @ X, 3, shape=A.shape).converged.all()


@pytest.mark.parametrize("case", ["laplacian", "complex"])
def test_a_gpu_runs_the_recurrence_of_a_mixed_filter_in_single_precision(case: str) -> None:
    A = CASES[case]()
    with pretended_gpu() as watched:
        found: Any = solve(A, 10, precision="mixed", method="filter", device="gpu")
    info = found.info
    assert info["device"] == "cuda:0"
    on_host = {name: getattr(found, name).get() for name in ("eigenvalues", "eigenvectors")}
    check(A, replace(found, **on_host), np.linalg.eigvalsh(A.toarray())[:10])
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
    A = CASES[case]()
    result = solve(A, 10, precision="mixed", device="gpu")
    values = np.linalg.eigvalsh(A.toarray())[:10]
    w, X = result.eigenvalues.get(), result.eigenvectors.get()
    assert result.converged.all()
    assert result.info["single_columns"] > 0
    assert (np.linalg.norm(A @ X - X * w, axis=0) <= 1.01 * result.limits).all()
    assert np.abs(w - values).max() <= result.limits.max()


def test_auto_stays_in_double_precision_where_a_value_far_out_leaves_low_degrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a regular graph is its degree; amplified, it would drown the others in rounding errors."""
    monkeypatch.setattr(chebyshev, "HOST_BYTES", 0.0)
    A = matrix("regular_graph:n=1500,degree=8,seed=436").tocsr()
    auto, mixed = (solve(A, 20, which="LA", method="filter", precision=p) for p in ("auto", "mixed"))
    for result in (auto, mixed):
        check(A, result, np.linalg.eigvalsh(A.toarray())[-20:])
    assert auto.info["single_columns"] == 0 < mixed.info["single_columns"]
    assert auto.info["degree"] > 1.5 * mixed.info["degree"]
