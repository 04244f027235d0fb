"""Filters in single precision within solves in double precision: the same pairs, residuals and copies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator, models
from blockvec.errors import OptionError
from blockvec.kernels.problem import SpmmvProblem
from solvers import EigenResult, eigsh
from solvers.blocks import ColumnBlock, in_precision
from solvers.iterations import filter, filtering
from solvers.iterations.chebyshev import ChebyshevOperator
from solvers.iterations.filter import LEAST_LIMIT, UNIT, Filter, SingleCopy
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


def test_vectors_whose_refinement_stalls_keep_their_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixtures of them would converge from the beginning again."""
    for name, value in {"LEAST_REFINEMENT": math.inf, "MOST_DAMPING": 1.0, "LEAST_DEGREE": 2}.items():
        monkeypatch.setattr(filtering, name, value)  # too little damping by the first refinement
    kept, adopt = [], filtering.Filtering._adopt

    def watched(self: Any, filter: Any, *, keeps: bool = False) -> None:
        kept.append((len(seen), keeps))
        adopt(self, filter, keeps=keeps)

    monkeypatch.setattr(filtering.Filtering, "_adopt", watched)
    A, seen = disordered(models.model("laplace2d:n=34")), list[float]()
    result = solve(
        A,
        10,
        tol=3e-10,
        precision="mixed",
        method="filter",
        callback=lambda state: seen.append(float(state.residuals.max())),
    )
    check(A, result, np.linalg.eigvalsh(A.toarray())[:10])
    cycle = next(cycle for cycle, keeps in kept if keeps)
    assert max(seen[cycle:]) < 10 * seen[cycle - 1]


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


@pytest.mark.parametrize("which", ["SA", "LA"])
@pytest.mark.parametrize("case", CASES)
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


def test_both_ends_are_mixed_and_locked_columns_stay_out() -> None:
    A = disordered(models.model("laplace2d:n=34"))
    values, vectors = np.linalg.eigh(A.toarray())
    both = solve(A, 8, which="BE", precision="mixed")
    check(A, both, np.r_[values[:4], values[-4:]])
    assert both.info["single_columns"] > 0
    rest = solve(A, 6, precision="mixed", orthogonal_to=vectors[:, :5])
    check(A, rest, values[5:11])
    assert rest.info["single_columns"] > 0


def test_values_of_largest_magnitude_are_mixed() -> None:
    A = disordered(models.model("graphene:nx=30,ny=30"), 0.1)
    values = np.linalg.eigvalsh(A.toarray())
    result = solve(A, 8, which="LM", precision="mixed")
    check(A, result, np.sort(values[np.argsort(-np.abs(values))[:8]]))
    assert result.info["single_columns"] > 0


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
    monkeypatch.setattr(filter, "HOST_BYTES", 0.0)
    A = disordered(models.model("laplace2d:n=34"))
    result = solve(A, 6, tol=share * LEAST_LIMIT, method="filter")
    assert (result.info["single_columns"] > 0) == mixes
    assert (
        solve(A, 6, tol=share * LEAST_LIMIT, method="filter", precision="double").info["single_columns"] == 0
    )
    check(A, result, np.linalg.eigvalsh(A.toarray())[:6])


def test_auto_stays_in_double_precision_where_a_value_far_out_leaves_low_degrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a regular graph is its degree; amplified, it would drown the others in rounding errors."""
    monkeypatch.setattr(filter, "HOST_BYTES", 0.0)
    A = matrix("regular_graph:n=1500,degree=8,seed=436").tocsr()
    auto, mixed = (solve(A, 20, which="LA", method="filter", precision=p) for p in ("auto", "mixed"))
    for result in (auto, mixed):
        check(A, result, np.linalg.eigvalsh(A.toarray())[-20:])
    assert auto.info["single_columns"] == 0 < mixed.info["single_columns"]
    assert auto.info["degree"] > 1.5 * mixed.info["degree"]


def test_auto_mixes_only_where_products_are_those_of_memory() -> None:
    small = as_operator(models.model("laplace3d:n=20"))
    large = as_operator(models.model("laplace3d:n=64"))
    assert not filter.saves_time(small, 8)
    assert filter.saves_time(large, 8)


def test_a_copy_that_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free must not choose the precision: the same call would give other bits at another time."""
    monkeypatch.setattr(filter, "HOST_BYTES", 0.0)
    monkeypatch.setattr("solvers.runtime.memory.SMALL_BYTES", 0)
    A = models.model("laplace2d:n=34")
    asked: list[int] = []
    monkeypatch.setattr("solvers.sizes.require_memory", lambda op, needed, *text: asked.append(needed))
    solve(A, 6, method="filter", precision="double")
    copy = filter.copy_bytes(as_operator(A), 4)
    assert solve(A, 6, method="filter", precision="auto").info["single_columns"] > 0
    assert asked[-1] == asked[0] + copy
    monkeypatch.undo()
    monkeypatch.setattr(filter, "HOST_BYTES", 0.0)
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


@given(
    exponent=st.integers(-300, 300),
    degree=st.integers(2, 60),
    wanted=st.floats(1.001, 1.2),
    seed=st.integers(0, 2**32 - 1),
    by_columns=st.booleans(),
)
def test_a_filter_in_single_precision_has_rounding_errors_of_its_result(
    exponent: int, degree: int, wanted: float, seed: int, by_columns: bool
) -> None:
    rng = np.random.default_rng(seed)
    scale = math.ldexp(1.0, exponent)
    values = scale * np.r_[rng.uniform(-1, 1, 200), wanted]
    Q = np.linalg.qr(rng.standard_normal((201, 201)))[0]
    A = sp.csr_array((Q * values) @ Q.T)
    designed = Filter(-scale, scale, degree, 1.0, "LA")
    X = BlockVector(rng.standard_normal((201, 3)))
    exact = ChebyshevOperator(as_operator(A), designed, None).apply(X.copy())
    single = ChebyshevOperator(SingleCopy(as_operator(A), scale), designed, None)
    given = ColumnBlock.of(X) if by_columns else X.copy()
    found = single.apply(given)
    assert type(found) is type(given)
    assert found.dtype == np.float64
    # Each of d steps has an error of some u, which the rest of the recurrence amplifies like its result, or
    # by at most d inside of the interval.
    size = np.linalg.norm(exact.array) + degree * np.linalg.norm(X.array)
    error = np.linalg.norm(found.array - exact.array)
    assert error <= 20 * UNIT * degree * size
    assert error > 0


def test_a_block_keeps_its_kind_in_another_precision() -> None:
    for block in (BlockVector(np.eye(4, 2)), ColumnBlock(np.asfortranarray(np.eye(4, 2)))):
        single = in_precision(block, np.float32)
        assert type(single) is type(block)
        assert single.dtype == np.float32
        assert np.array_equal(single.array, np.eye(4, 2))


def test_the_refining_filter_damps_by_what_the_residuals_need(monkeypatch: pytest.MonkeyPatch) -> None:
    A = disordered(models.model("laplace2d:n=34"))
    seen: list[tuple[float, float]] = []
    refine = filtering.Filtering._refine

    def watched(self: Any, filter: Any, worst: float) -> None:
        before = self.loop.counts.operator_columns
        refine(self, filter, worst)
        seen.append((worst, self.loop.counts.operator_columns - before))

    monkeypatch.setattr(filtering.Filtering, "_refine", watched)
    result = solve(A, 6, precision="mixed")
    ((worst, columns),) = seen  # once
    assert worst > 1
    assert columns < 0.3 * result.info["operator_columns"]
    states = [state.residuals.max() / state.limits.max() for state in result.history]
    assert states[-1] <= 1 < states[-2]


@pytest.mark.parametrize("case", ["laplacian", "complex"])
def test_a_gpu_runs_the_recurrence_of_a_mixed_filter_in_single_precision(case: str) -> None:
    A = CASES[case]()
    with pretended_gpu() as watched:
        found: Any = solve(A, 10, precision="mixed", method="filter", device="gpu")
    info = found.info
    assert info["device"] == "cuda:0"
    on_host = {name: getattr(found, name).get() for name in ("eigenvalues", "eigenvectors")}
    check(A, replace(found, **on_host), np.linalg.eigvalsh(A.toarray())[:10])
    products = [request for request in watched.solves[-1].requests if isinstance(request, SpmmvProblem)]
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


def test_a_copy_of_a_chain_takes_memory_for_blocks_alone() -> None:
    spec = "xxz:sites=12,up=6"
    chain, matrix = models.operator(spec), as_operator(models.model(spec))
    assert filter.copy_bytes(chain, 2) == 2 * 924 * 2 * 4
    assert filter.copy_bytes(matrix, 2) > filter.copy_bytes(chain, 2) + 4 * chain.nnz - 1
