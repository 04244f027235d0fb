"""`cg`, `minres`, `gmres` and `solve`: identities, for one right-hand side and many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import threadpoolctl
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import blockvec
from blockvec import BlockVector, cg, gmres, minres, solve
from blockvec.errors import BreakdownError, DTypeError, OptionError, ShapeError
from blockvec.models import model
from solvers import ConvergenceWarning, FactorPreconditioner, JacobiPreconditioner, Linear
from solvers.linear import calls
from tests.contract.blocks import host
from tests.matrices import normal
from tests.pretended_gpu import pretended_gpu

LAPLACE = model("laplace2d:n=30")
N = LAPLACE.shape[0]
L = sp.csgraph.laplacian(sp.csr_array(abs(LAPLACE - sp.diags_array(LAPLACE.diagonal()))))
TOLERANCE = {"f": 1e-4, "d": 1e-9, "F": 1e-4, "D": 1e-9}


@pytest.fixture(params=["blocks", "vectors"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Solve for the columns of blocks together, or one by one."""
    monkeypatch.setattr(calls, "SHORT_BLOCK", 0 if request.param == "blocks" else 1 << 30)
    return str(request.param)


in_blocks = pytest.mark.parametrize("way", ["blocks"], indirect=True)


def drawn(b: int | tuple[int, ...], dtype: Any = np.float64, n: int = N, seed: int = 3) -> Any:
    return normal(seed, *((n, b) if isinstance(b, int) else b), dtype=dtype)


def residuals(A: Any, X: Any, B: Any) -> Any:
    """Residual norms, relative to the right-hand sides that are not zero."""
    lengths = np.linalg.norm(B, axis=0)
    return np.linalg.norm(A @ X - B, axis=0) / np.where(lengths > 0, lengths, 1)


@pytest.mark.parametrize("call", [cg, minres, gmres])
@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("b", [1, 3])
def test_true_residuals_are_as_small_as_asked_for(call: Any, dtype: str, b: int, way: str) -> None:
    A = (LAPLACE + sp.eye_array(N)).astype(dtype)
    B = drawn(b, dtype)
    X, info = call(A, B, rtol=TOLERANCE[dtype])
    assert info == 0
    assert (X.shape, X.dtype) == (B.shape, B.dtype)
    assert residuals(A.astype("D"), X, B).max() <= 1.01 * TOLERANCE[dtype]
    block, _ = call(A, BlockVector(B), rtol=TOLERANCE[dtype])
    assert isinstance(block, BlockVector)
    assert np.array_equal(block.array, X)


@in_blocks
def test_dependent_repeated_and_zero_columns_are_no_special_case(way: str) -> None:
    B = drawn(3)
    B = np.column_stack([B, B[:, 0], B.sum(axis=1), 1e-12 * B[:, 1], np.zeros(N)])
    solved = cg(LAPLACE, B, rtol=1e-9, return_info=True)
    assert solved.converged
    assert residuals(LAPLACE, solved.X, B).max() <= 1e-9
    assert not solved.X[:, -1].any()
    assert np.allclose(solved.X[:, 0], solved.X[:, 3])


@in_blocks
def test_a_right_hand_side_in_an_invariant_subspace_ends_early_and_others_go_on(way: str) -> None:
    w, V = np.linalg.eigh(LAPLACE.toarray())
    B = np.column_stack([V[:, 3], V[:, 5] + V[:, 9], drawn(1)[:, 0]])
    solved = cg(LAPLACE, B, rtol=1e-10, return_info=True)
    assert solved.iterations[:2].tolist() == [1, 2]
    assert residuals(LAPLACE, solved.X, B).max() <= 1e-10
    assert np.allclose(solved.X[:, 0], V[:, 3] / w[3])


@pytest.mark.parametrize("b", [1, 4])
def test_what_is_not_definite_is_found_out(b: int, way: str) -> None:
    signs = sp.diags_array(np.where(np.arange(N) % 2, 1.0, -1.0))
    for call, A, M in (
        (cg, LAPLACE - 2 * sp.eye_array(N), None),
        (cg, LAPLACE, signs),
        (minres, LAPLACE, signs),
    ):
        with pytest.warns(ConvergenceWarning, match=f"{'A' if M is None else 'M'} is not positive definite"):
            X, info = call(A, drawn(b), M=M)
        assert info == -1
        assert np.isfinite(X).all()


STIFF = sp.csr_array(LAPLACE + sp.diags_array(np.linspace(0, 30, N) ** 3))
INVERSE = sp.diags_array(1 / STIFF.diagonal(), format="csr")


@pytest.mark.parametrize("call", [cg, minres, gmres])
@pytest.mark.parametrize(
    "M", [INVERSE, lambda X: INVERSE @ X, aslinearoperator(INVERSE), JacobiPreconditioner(STIFF)]
)
def test_preconditioners_save_iterations(call: Any, M: Any, way: str) -> None:
    B, x0 = drawn(3), drawn(3, seed=5)
    solved = call(STIFF, B, x0, M=M, rtol=1e-9, return_info=True)
    assert residuals(STIFF, solved.X, B).max() <= 1e-9
    assert solved.iterations.max() < 70
    assert solved.preconditioner_columns > 0
    assert np.array_equal(x0, drawn(3, seed=5))


@in_blocks
@pytest.mark.parametrize("shape", [(N,), (N, 3)])
def test_all_shifts_have_one_krylov_space(shape: tuple[int, ...], way: str) -> None:
    shifts, B = [-0.5, 0.0, -4.0], drawn(shape)
    solved = cg(LAPLACE, B, shifts=shifts, rtol=1e-9, return_info=True)
    assert solved.X.shape == (3, *shape)
    assert solved.converged
    for sigma, X in zip(shifts, solved.X, strict=True):
        exact = np.linalg.solve(LAPLACE.toarray() - sigma * np.eye(N), B)
        assert np.linalg.norm(X - exact) <= 1e-6 * np.linalg.norm(exact)
    alone = cg(LAPLACE, B, rtol=1e-9, return_info=True)
    extra = 4 * len(shifts) * (B.size // N)  # true residuals
    assert solved.operator_columns <= alone.operator_columns + extra


def test_singular_systems_with_a_solution_are_told_from_those_without(way: str) -> None:
    B = drawn(2)
    B[:, 0] -= B[:, 0].mean()
    with pytest.warns(ConvergenceWarning, match="right-hand side 1: A or M is singular"):
        solved = minres(L, B, rtol=1e-8, return_info=True)
    assert solved.reasons == ("converged", "singular")
    assert solved.codes.tolist() == [0, -1]
    assert solved.info == -1
    assert residuals(L, solved.X, B)[0] <= 1e-8
    best = B[:, 1] - B[:, 1].mean()  # the residual is what lies outside of the range
    assert np.allclose(L @ solved.X[:, 1], best, atol=1e-4)


@pytest.mark.parametrize("M", [None, sp.diags_array(1.0 + np.arange(N) % 2)])
@pytest.mark.parametrize("call", [minres, gmres])
@pytest.mark.filterwarnings("ignore::solvers.ConvergenceWarning")
def test_no_solution_is_worse_than_zero(call: Any, M: Any, way: str) -> None:
    B = np.column_stack([np.ones(N), L @ drawn(1), drawn(1)])
    solved = call(L, B, M=M, rtol=1e-8, maxiter=20 if call is gmres else 300, return_info=True)
    assert not solved.converged
    assert np.all(solved.residuals <= 1.0001 * np.linalg.norm(B, axis=0))
    assert np.allclose(solved.residuals, np.linalg.norm(L @ solved.X - B, axis=0), atol=1e-6)


def test_the_code_is_the_limit_of_iterations_and_results_hold_more(way: str) -> None:
    B = drawn(2)
    solved = cg(LAPLACE, B, rtol=1e-12, maxiter=5, return_info=True)
    assert isinstance(solved, Linear)
    assert (solved.info, *solved.codes) == (5, 5, 5)
    assert np.allclose(solved.residuals, np.linalg.norm(LAPLACE @ solved.X - B, axis=0))


def test_rounding_errors_end_an_iteration_that_asks_for_too_much(way: str) -> None:
    A, B = LAPLACE.astype("f"), drawn(2, "f")
    solved = cg(A, B, rtol=1e-9, return_info=True)
    assert set(solved.reasons) == {"stagnated"}
    assert solved.info > 0
    assert solved.iterations.max() < 400


@pytest.mark.parametrize("call", [cg, minres])
def test_callbacks_see_the_solutions_of_every_iteration(call: Any, way: str) -> None:
    for B in (drawn(1)[:, 0], drawn(2)):
        seen: list[Any] = []
        call(LAPLACE, B, rtol=1e-6, callback=lambda X, seen=seen: seen.append(X.shape))
        assert len(seen) > 10
        assert call is minres or set(seen) == {B.shape}


def test_solve_says_what_it_did() -> None:
    B = drawn(2)
    for A, method in (
        (LAPLACE, "factors"),
        (LAPLACE - 2 * sp.eye_array(N), "factors"),
        (lambda X: LAPLACE @ X, "cg"),
        (lambda X: LAPLACE @ X - 2 * X, "minres"),
        (LAPLACE + sp.diags_array(np.ones(N - 1), offsets=1), "gmres"),
    ):
        solved = solve(A, B, return_info=True)
        assert solved.method == method
        product = A(solved.X) if callable(A) else A @ solved.X
        assert np.all(np.linalg.norm(product - B, axis=0) <= 1e-8 * np.linalg.norm(B, axis=0))
    assert np.array_equal(solve(LAPLACE, B), solve(LAPLACE, B, return_info=True).X)
    assert np.allclose(LAPLACE @ solve(LAPLACE, 1j * B), 1j * B)
    with pytest.raises(
        BreakdownError, match=r"solve: minres ended with a residual of .* for right-hand side"
    ):
        solve(lambda X: LAPLACE @ X - 2 * X, B, maxiter=3)


def test_solve_returns_the_best_of_what_it_has_tried() -> None:
    B = drawn(2)
    best = solve(STIFF, B, rtol=0, return_info=True).residuals.max()
    assert all(best <= call(STIFF, B, rtol=0, return_info=True).residuals.max() for call in (cg, minres))


def test_operators_of_vectors_and_wider_preconditioners_are_taken(way: str) -> None:
    A, M = (LinearOperator((N, N), matvec=S.__matmul__, dtype=S.dtype) for S in (STIFF.astype("f"), INVERSE))
    with pytest.warns(UserWarning, match="matvec only") as told:
        assert all(call(A, drawn(3, "f"), M=M, rtol=1e-4)[1] == 0 for call in (cg, minres, gmres))
    assert len(told) == 3  # once per call
    X, info = cg(STIFF, drawn(3, "D"), M=FactorPreconditioner(STIFF))
    assert (X.dtype, info) == ("D", 0)
    turned = INVERSE + 0.1j * sp.diags_array([1.0, -1.0], offsets=[1, -1], shape=(N, N)) / abs(STIFF).max()
    X, info = cg(STIFF, drawn(3), M=turned)
    assert (X.dtype, info) == ("d", 0)


@pytest.mark.parametrize(
    ("call", "error", "text", "arguments"),
    [
        (cg, ShapeError, "give 900 rows", {"B": np.ones(5)}),
        (cg, ShapeError, "dimensions", {"B": np.ones((N, 1, 1))}),
        (cg, ShapeError, "x0", {"x0": np.ones(4)}),
        (cg, OptionError, "atol", {"atol": -1}),
        (cg, OptionError, "rtol", {"rtol": np.nan}),
        (cg, OptionError, "shifts", {"shifts": [0.0], "M": LAPLACE}),
        (cg, OptionError, "shifts", {"shifts": [np.inf]}),
        (cg, OptionError, "shifts", {"shifts": "near"}),
        (cg, DTypeError, "B is a NoneType", {"B": None}),
        (cg, DTypeError, "B is a csr_array", {"B": LAPLACE}),
        (cg, OptionError, "squares of residuals", {"B": np.full(N, 1e-200)}),
        (cg, OptionError, "side 1 .*squares", {"B": np.c_[np.zeros(N), np.full(N, 1e-151)], "rtol": 1e-8}),
        (cg, BreakdownError, "NaN", {"B": np.full(N, np.nan)}),
        (minres, ShapeError, "square", {"A": LAPLACE[:4], "B": np.ones(4)}),
        (minres, OptionError, "shift", {"shift": 1j}),
        (minres, OptionError, "shift", {"shift": "near"}),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: Any, text: str, arguments: Any) -> None:
    with pytest.raises(error, match=text):
        call(**{"A": LAPLACE, "B": np.ones(N), **arguments})


def test_systems_are_solved_on_every_device(device: str) -> None:
    A, B = blockvec.as_operator(LAPLACE, device=device), drawn(20)
    inverse = 1 / blockvec.array_namespace(cg(A, B)[0]).asarray(LAPLACE.diagonal())
    for call, options in ((cg, {}), (minres, {}), (cg, {"M": lambda X: X * inverse[:, None]})):
        solved = call(A, B, rtol=1e-8, return_info=True, **options)
        assert solved.converged
        assert residuals(LAPLACE, host(solved.X), B).max() <= 1.001e-8
    assert cg(A, B[:, :3], shifts=[0.0, -1.0], rtol=1e-8, return_info=True).converged


def test_on_a_gpu_no_kernel_of_cupy_is_compiled(tmp_path: Path) -> None:
    stored = LAPLACE.data, LAPLACE.indices.astype(np.int32), LAPLACE.indptr.astype(np.int32)
    B = np.column_stack([drawn(18), drawn(2), drawn(1)[:, 0] * 0])
    with blockvec.option_context(cache_dir=tmp_path), pretended_gpu(modules=()) as watched:
        A = blockvec.as_operator(sp.csr_array(stored, shape=LAPLACE.shape), device="gpu")
        for solved in (
            cg(A, B, rtol=1e-8, return_info=True),
            cg(A, B, M=A, rtol=1e-6, return_info=True),
            minres(A, B[:, :4], rtol=1e-6, return_info=True),
            gmres(A, B[:, :2], rtol=1e-4, restart=80, return_info=True),
        ):
            assert solved.converged
        start = BlockVector(drawn(4)).to_device()
        w, _ = blockvec.lobpcg(A, start, tol=1e-3, maxiter=200, largest=False)
        assert np.allclose(w.get(), np.linalg.eigvalsh(LAPLACE.toarray())[:4], atol=1e-4)
        assert dict(watched.compiled) == {}


@pytest.mark.parametrize("columns", [1, 4])
def test_products_of_sparse_matrices_have_blas_with_one_thread_beside(columns: int) -> None:
    """Threads of BLAS that wait beside those of products made a system take forty times as long."""
    A, seen = model("laplace2d:n=150"), []
    B = np.random.default_rng(0).standard_normal((A.shape[0], columns))

    def note(_: Any) -> None:
        blas = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
        seen.append(max((pool["num_threads"] for pool in blas), default=1))

    for solver in (cg, minres):
        solver(A, B[:, 0] if columns == 1 else B, rtol=1e-3, maxiter=5, callback=note)
    assert seen
    assert set(seen) == {1}


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
@pytest.mark.parametrize("solver", [blockvec.cg, blockvec.minres, blockvec.gmres, blockvec.solve])
def test_an_empty_system_has_an_empty_solution(solver: Any, shape: tuple[int, ...]) -> None:
    assert solver(sp.csr_array((0, 0)), np.ones(shape), return_info=True).X.shape == shape
