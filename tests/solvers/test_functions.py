"""Functions of matrices times blocks: closed forms, identities, dense references, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.special
from numpy.testing import assert_allclose
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from blockvec import (
    BlockVector,
    as_operator,
    evolve,
    expm_multiply,
    funm_multiply,
    funm_multiply_krylov,
    models,
    spectral_bounds,
)
from blockvec.errors import BreakdownError, DTypeError, OptionError, ShapeError
from solvers import ConvergenceWarning
from solvers.functions.bounds import SpectralBounds
from solvers.functions.expm import States
from solvers.functions.operands import operands
from tests.array_libraries import LIBRARIES, library
from tests.contract.blocks import DTYPES, host, on
from tests.matrices import kinked, normal, random_sparse, unit
from tests.pretended_gpu import pretended_gpu

D, ONES, UPPER = np.diag([1.0, 2.0, 3.0]), np.ones(3), np.triu(np.ones((3, 3)))
LARGE = 20 * np.eye(3), np.full(3, 1e307)
BLOCK = np.arange(6.0).reshape(3, 2)


def assert_near(found: Any, expected: Any, tol: float) -> None:
    found = host(found)
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= tol * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1, -2, -3j, 0.5 - 1j])
def test_multiples_of_hermitian_matrices_are_recognised(device: str, dtype: str, factor: complex) -> None:
    rng, n = np.random.default_rng(1), 40
    H = random_sparse(rng, n, dtype=dtype)
    A = factor * H
    A = A.astype(np.result_type(dtype, np.complex64) if isinstance(factor, complex) else dtype)
    for kind in ("float32", dtype, "complex128") if factor != 0.5 - 1j else ("float32", dtype):
        B = normal(rng, n, 3, dtype=kind)
        found, info = expm_multiply(A, B, device=device, return_info=True)
        expected = scipy.linalg.expm(A.toarray().astype(complex)) @ B
        assert info["method"] == "chebyshev"
        assert found.dtype == np.result_type(A.dtype, kind)
        assert_near(found, expected, 60 * unit(found.dtype))
        assert info["error_bound"] < 1e6 * unit(found.dtype)
        assert info["products"] == info["degree"] > 5
        assert str(info["bounds"]) in info["plan"]


@pytest.mark.parametrize("ends", [(2.0, 0.0, 5), (1.0, -1.0, 7)])
@pytest.mark.parametrize("kind", ["Hermitian", "general"])
def test_times_that_run_back_have_the_errors_of_each_alone(kind: str, ends: tuple[Any, ...]) -> None:
    A = normal(0, 60, 60)
    A = A + A.T if kind == "Hermitian" else A
    b = normal(1, 60, 1)[:, 0]
    found = expm_multiply(sp.csr_array(A), b, *ends)
    for t, psi in zip(np.linspace(*ends), found, strict=True):
        assert_near(psi, scipy.linalg.expm(t * A) @ b, 1e-12)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_peak_at_an_eigenvalue_is_seen_though_all_other_values_underflow(columns: int) -> None:
    L = models.model("laplace1d:n=300")
    values, U = np.linalg.eigh(L.toarray())
    b = normal(0, 300, columns)
    for place in (150, 260):
        found = funm_multiply(lambda x, c=values[place]: np.exp(-1e7 * (x - c) ** 2), L, b)
        expected = U @ (np.exp(-1e7 * (values - values[place]) ** 2)[:, None] * (U.T @ b))
        assert np.linalg.norm(found - expected) <= 1e-9 * np.linalg.norm(b)


@pytest.mark.parametrize("first", [8, 12, 16, 25])
def test_small_terms_that_larger_ones_follow_do_not_end_a_sum(first: int) -> None:
    """Along a chain that begins with weak hops, terms fall below rounding before they grow."""
    A = np.diag(np.where(np.arange(59) < first, 1.0, 1e3), -1)
    b = np.eye(60)[0]
    expected = scipy.linalg.expm(A) @ b
    got = expm_multiply(sp.csr_array(A), b)
    assert np.linalg.norm(got - expected) <= 1e-7 * np.linalg.norm(expected)


def test_large_elements_off_the_diagonal_are_no_trace() -> None:
    A = sp.csr_array(np.diag(10.0 ** np.linspace(-6, 4, 19), -1))
    b = np.eye(20)[0]
    (_, info), (found, other) = (
        expm_multiply(form, b, return_info=True, dtype=float) for form in (A, lambda X: A @ X)
    )
    assert_near(found, scipy.linalg.expm(A.toarray()) @ b, 1e-13)
    assert other["products"] <= 2 * info["products"]


@pytest.mark.filterwarnings("ignore:Trace of LinearOperator")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "form", [sp.csr_array, sp.csr_array.toarray, aslinearoperator, as_operator, lambda A: lambda X: A @ X]
)
def test_other_matrices_take_taylor_polynomials(form: Any, dtype: str) -> None:
    rng, n = np.random.default_rng(2), 30
    A = sp.csr_array(normal(rng, n, n, dtype=dtype) / 3 + np.diag(np.arange(n) / 5).astype(dtype))
    expected = scipy.linalg.expm(A.toarray().astype(complex))
    for B in (normal(rng, n, dtype=dtype), normal(rng, n, 4, dtype="complex128")):
        found, info = expm_multiply(form(A), B, return_info=True, dtype=dtype)
        assert info["method"] == "taylor"
        assert_near(found, expected @ B, 100 * unit(dtype))


@pytest.mark.parametrize("t", [0.3, 12.0, -150.0])
def test_a_free_chain_spreads_as_bessel_functions(t: float) -> None:
    n, middle = 601, 300
    H = sp.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1], format="csr")
    psi = expm_multiply(-0.5j * t * H, np.eye(n)[middle])
    distance = np.abs(np.arange(n) - middle)
    expected = (-1j) ** distance * scipy.special.jv(distance, t)
    inside = np.abs(np.arange(n) - middle) < 150  # before reflections
    assert_allclose(psi[inside], expected[inside], atol=2e-14)


def test_heat_is_exact_relative_to_what_is_left() -> None:
    values = np.linspace(0, 50, 200)
    A = sp.diags_array(values, format="csr")
    B = np.zeros((200, 2))
    B[:, 0], B[120:, 1] = 1, 1  # the second has nothing at the slow end
    found, info = expm_multiply(-2 * A, B, return_info=True)
    assert_allclose(found[:, 0], np.exp(-2 * values), atol=1e-14)
    assert np.linalg.norm(found[:, 1] - np.exp(-2 * values) * B[:, 1]) <= info["error_bound"] * np.exp(-60)
    assert info["error_bound"] < 1e-9


@pytest.mark.parametrize("factor", [-0.4j, -0.3, "general"])
def test_times_are_those_of_linspace(factor: Any) -> None:
    rng, n = np.random.default_rng(5), 25
    A = normal(rng, n, n, dtype="float64") / 4 if factor == "general" else factor * random_sparse(rng, n)
    dense = A if factor == "general" else A.toarray()
    for B in (rng.standard_normal(n), rng.standard_normal((n, 2))):
        for ends in (
            {"start": 0, "stop": 2, "num": 9},
            {"start": -1, "stop": 40, "num": 3, "endpoint": False},
        ):
            found = expm_multiply(A, B, **ends)
            for psi, t in zip(found, np.linspace(**ends), strict=True):
                assert_near(psi, scipy.linalg.expm(t * dense) @ B, 1e-12)


@pytest.mark.parametrize(
    ("A", "B", "expected"),
    [
        (sp.csr_array((3, 3)), BLOCK, BLOCK),
        (np.eye(3), np.empty((3, 0)), np.empty((3, 0))),
        (np.empty((0, 0)), np.empty((0, 2)), np.empty((0, 2))),
        (np.eye(3), np.zeros(3), np.zeros(3)),
        (np.full((1, 1), 2.0), np.ones(1), np.exp([2.0])),
        (np.eye(3, dtype=int), BLOCK.astype(int), np.e * BLOCK),
        ((1 - 5j) * np.eye(3), sp.csr_array(BLOCK), np.exp(1 - 5j) * BLOCK),
        (D, BLOCK * 1e150, np.exp([[1], [2], [3]]) * BLOCK * 1e150),
        (np.eye(3) + 0j, ONES, np.e * ONES + 0j),
        (1j * np.eye(3), ONES, np.exp(1j) * ONES),
        (UPPER + 0j, ONES, scipy.linalg.expm(UPPER) @ ONES + 0j),
    ],
)
def test_trivial_problems_are_answered(A: Any, B: Any, expected: Any) -> None:
    found = expm_multiply(A, B)
    assert_near(found, expected, 1e-15)
    assert found.dtype == expected.dtype
    zero, B = 0 * as_operator(A), B.toarray() if sp.issparse(B) else B
    assert_allclose(expm_multiply(A, B, start=0, stop=0, num=2), [B, B])
    assert_allclose(next(evolve(zero, B, [1.0]))[1], B)
    assert_near(expm_multiply(zero, B, traceA=0.0), B, 0)
    assert_near(funm_multiply(np.cos, zero, B), B, 1e-14)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ShapeError, "square", lambda: expm_multiply(np.ones((3, 2)), ONES)),
        (ShapeError, "A is 3 x 3, but B has 4 rows", lambda: expm_multiply(D, np.ones(4))),
        (ShapeError, "B has shape", lambda: expm_multiply(D, np.ones((3, 1, 1)))),
        (DTypeError, "B is a str", lambda: expm_multiply(D, "B")),
        (OptionError, "B holds NaN or Inf", lambda: expm_multiply(D, ONES * np.nan)),
        (OptionError, "B holds NaN or Inf", lambda: expm_multiply(D, ONES * np.inf)),
        (BreakdownError, "NaN or Inf", lambda: expm_multiply(np.diag([1.0, np.nan, 0.0]), ONES)),
        (BreakdownError, "NaN or Inf", lambda: expm_multiply(np.diag([1.0, np.inf, 0.0]), ONES)),
        (OptionError, "finite factor", lambda: expm_multiply(np.nan * aslinearoperator(D), ONES)),
        (OptionError, "stop: got None", lambda: expm_multiply(D, ONES, start=0)),
        (OptionError, "stop", lambda: expm_multiply(D, ONES, start=0, stop=np.inf)),
        (OptionError, "num", lambda: expm_multiply(D, ONES, start=0, stop=1, num=1)),
        (OptionError, "overflows", lambda: expm_multiply(1000 * D, ONES)),
        (OptionError, "overflows", lambda: expm_multiply(*LARGE)),
        (OptionError, "overflows", lambda: expm_multiply(35 * LARGE[0], 1e-250 * LARGE[1])),
        (OptionError, "overflows", lambda: funm_multiply(np.exp, *LARGE)),
        (OptionError, "overflows", lambda: funm_multiply(lambda x: 1e308 * np.cos(x), D, 100 * ONES)),
        (OptionError, "overflows", lambda: funm_multiply_krylov(scipy.linalg.expm, *LARGE)),
        (BreakdownError, "NaN or Inf", lambda: funm_multiply_krylov(scipy.linalg.expm, D * np.nan, ONES)),
        (OptionError, "f: has NaN", lambda: funm_multiply_krylov(lambda T: T * np.nan, D, ONES)),
        (OptionError, "not Hermitian", lambda: funm_multiply(np.exp, UPPER, ONES)),
        (OptionError, "imaginary", lambda: funm_multiply(np.exp, -1j * D, ONES)),
        (OptionError, "give domain=", lambda: funm_multiply(np.log, D - 2 * np.eye(3), ONES)),
        (
            OptionError,
            "an eigenvalue of A is about -1",
            lambda: funm_multiply(np.sqrt, D - 2 * np.eye(3), ONES, domain=(0, None)),
        ),
        (OptionError, "not Hermitian", lambda: spectral_bounds(UPPER)),
        (OptionError, "not Hermitian", lambda: evolve(UPPER, ONES, [1.0])),
        (OptionError, "give H without the factor i", lambda: evolve(-1j * D, ONES, [1.0])),
        (OptionError, "times:", lambda: evolve(D, ONES, [np.nan])),
        (OptionError, "times:", lambda: evolve(D, ONES, "now")),
        (OptionError, "times:", lambda: evolve(D, ONES, [[1.0, 2.0]])),
        (
            OptionError,
            "'gershgorin' needs a matrix on the host",
            lambda: spectral_bounds(lambda X: D @ X, shape=(3, 3), method="gershgorin"),
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(error: Any, message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call()


def test_bounds_that_are_too_narrow_become_wider() -> None:
    rng = np.random.default_rng(6)
    values = rng.uniform(-1, 1, 300)
    H, X = as_operator(sp.diags_array(values, format="csr")), BlockVector(rng.standard_normal((300, 2)))
    guess = SpectralBounds(-0.3, 0.4, False, "a guess")
    run = States(operands(H, X), np.ones(1), -30j)
    run.work.bounds = guess
    (found,) = run
    assert_near(found, np.exp(-30j * values)[:, None] * X.array, 1e-13)
    assert run.work.bounds[0] < -1 < 1 < run.work.bounds[1]
    run = States(operands(np.triu(np.ones((40, 40))), np.ones(40)), np.ones(1), -30j)
    run.work.bounds = guess
    with pytest.raises(BreakdownError, match="check that A is Hermitian"):
        list(run)


def test_linear_operators_without_an_adjoint_are_enough() -> None:
    rng, n = np.random.default_rng(7), 40
    A = rng.standard_normal((n, n))
    operator = LinearOperator((n, n), matvec=lambda x: A @ x, matmat=lambda X: A @ X, dtype=A.dtype)
    with pytest.warns(UserWarning, match="Trace of LinearOperator not available"):
        found = expm_multiply(operator, np.ones(n))
    assert_near(found, scipy.linalg.expm(A) @ np.ones(n), 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_near(expm_multiply(operator, np.ones(n), traceA=3.0), scipy.linalg.expm(A) @ np.ones(n), 1e-12)
        lazy = expm_multiply(-1j * aslinearoperator(A + A.T), np.ones(n))
    assert_near(lazy, scipy.linalg.expm(-1j * (A + A.T)) @ np.ones(n), 1e-12)


@pytest.mark.parametrize("name", LIBRARIES)
def test_arrays_are_those_of_the_caller(name: str) -> None:
    rng, A = np.random.default_rng(8), models.laplace2d(n=6)
    B = rng.standard_normal((36, 2))
    expected = scipy.linalg.expm(-0.1 * A.toarray()) @ B
    with library(name) as lib:
        for found in (
            expm_multiply(lib.array(-0.1 * A.toarray()), lib.array(B)),
            expm_multiply(-0.1 * A, lib.array(B)),
            expm_multiply(-0.1 * A, B, like=lib.name),
        ):
            assert lib.is_mine(found)
            assert_allclose(np.asarray(found), expected, atol=1e-13)
        several = expm_multiply(-0.1 * A, lib.array(B), start=0, stop=1, num=3)
        assert lib.is_mine(several)
        assert_allclose(np.asarray(several)[-1], expected, atol=1e-13)
        for t, psi in evolve(A, lib.array(B), [1.0, 2.0]):
            assert lib.is_mine(psi)
            assert_allclose(np.asarray(psi), expm_multiply(-1j * t * A, B), atol=1e-13)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_a_gpu_stay_there(dtype: str) -> None:
    rng, n = np.random.default_rng(9), 200
    H, C = random_sparse(rng, n, dtype=dtype), sp.csr_array(normal(rng, n, n, dtype=dtype) / 20)
    B = normal(rng, n, 8, dtype="complex128")
    for A in (H, C):
        found = expm_multiply(as_operator(A, device="gpu"), on("gpu", B))
        assert type(found).__module__.startswith("cupy")
        assert_near(found, scipy.linalg.expm(A.toarray().astype(complex)) @ B, 1e3 * unit(A.dtype))
    chain = models.operator("xxz:sites=12,up=6", device="gpu")
    psi = normal(rng, chain.shape[0], 4, dtype="complex128")
    found = expm_multiply(
        lambda X: -2j * chain.apply(X).array, on("gpu", psi), device="gpu", dtype="complex128"
    )
    assert_near(found, expm_multiply(-2j * models.model("xxz:sites=12,up=6"), psi), 1e-13)


def test_a_gpu_computes_the_same_and_compiles_nothing_beside_blockvecs_kernels() -> None:
    rng, A = np.random.default_rng(13), models.laplace2d(n=8)
    C = sp.csr_array(rng.standard_normal((64, 64)) / 5)
    B = rng.standard_normal((64, 4)) + 1j * rng.standard_normal((64, 4))
    with pretended_gpu() as watched:
        watched.compiled.clear()
        states = evolve(as_operator(A, device="gpu"), B, np.arange(1, 7) * 9.0)
        found = [
            (expm_multiply(-2j * A, B, device="gpu"), scipy.linalg.expm(-2j * A.toarray()) @ B),
            (expm_multiply(-0.5 * A, B, 0, 2, 3, device="gpu")[-1], scipy.linalg.expm(-A.toarray()) @ B),
            (list(states)[-1][1], scipy.linalg.expm(-54j * A.toarray()) @ B),  # by recorded steps
            (funm_multiply(np.cos, A, B, tol=1e-13, device="gpu"), scipy.linalg.cosm(A.toarray()) @ B),
        ]
        assert not watched.compiled
        found.append((expm_multiply(C, B, device="gpu"), scipy.linalg.expm(C.toarray()) @ B))
        for one, expected in found:
            assert_near(one, expected, 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("f", "domain", "method"),
    [
        (np.exp, (None, None), "chebyshev"),
        (np.sqrt, (0, None), "chebyshev"),
        (lambda x: 1 / (x + 2j), (None, None), "chebyshev"),
        (lambda x: np.abs(x - 1.5) * (1 + 2j), (None, None), "lanczos"),
        (lambda x: 3.0, (None, None), "chebyshev"),
    ],
)
def test_functions_are_those_of_eigenvalues(
    device: str, dtype: str, f: Any, domain: Any, method: str
) -> None:
    rng = np.random.default_rng(10)
    L = models.laplace2d(nx=9, ny=7).astype(dtype)
    w, V = np.linalg.eigh(L.toarray())
    for B in (normal(rng, 63, dtype=dtype), np.c_[normal(rng, 63, 2, dtype=dtype), np.zeros(63, dtype)]):
        found, info = funm_multiply(f, L, B, domain=domain, device=device, return_info=True)
        assert info["method"] == method
        assert_near(found, V * f(w) @ V.conj().T @ B, max(1e-9, 200 * unit(dtype)))


def test_logarithms_and_inverses_need_no_domain_where_the_bounds_reach_zero() -> None:
    L, b = models.laplace2d(n=20), np.random.default_rng(3).standard_normal(400)
    w, V = np.linalg.eigh(L.toarray())
    assert spectral_bounds(L)[0] == 0
    for f in (np.log, lambda x: 1 / x):
        assert_near(funm_multiply(f, L, b), V @ (f(w) * (V.T @ b)), 1e-9)


def test_a_tolerance_that_is_not_reached_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.functions.funm.MOST_STEPS", 30)
    with pytest.warns(ConvergenceWarning, match=r"30 steps of Lanczos reach an error of about \d"):
        funm_multiply(np.sqrt, models.laplace1d(n=500), np.ones(500), domain=(0, None))


def test_a_jump_at_an_eigenvalue_is_no_silent_error() -> None:
    Q, values = np.linalg.qr(normal(0, 40, 40))[0], np.r_[np.zeros(4), np.linspace(-2, 2, 36)]
    b = normal(1, 40)
    with pytest.warns(ConvergenceWarning, match="of Lanczos reach an error of"):
        found, info = funm_multiply(np.sign, Q * values @ Q.T, b, return_info=True)
    assert np.linalg.norm(found - Q * np.sign(values) @ Q.T @ b) <= info["error_bound"] * np.linalg.norm(b)


def test_krylov_spaces_are_restarted_until_they_converge() -> None:
    rng, n = np.random.default_rng(11), 120
    A = rng.standard_normal((n, n)) / 4
    b = rng.standard_normal(n)
    for f in (scipy.linalg.expm, scipy.linalg.cosm):
        found = funm_multiply_krylov(f, A, b, t=2.0, rtol=1e-12, restart_every_m=15)
        assert_near(found, f(2 * A) @ b, 1e-10)
    with pytest.warns(ConvergenceWarning, match="the last of 1 cycles"):
        funm_multiply_krylov(scipy.linalg.expm, 10 * A, b, restart_every_m=5, max_restarts=1)


@pytest.mark.parametrize("method", ["auto", "gershgorin", "lanczos"])
def test_bounds_hold_all_eigenvalues(method: Any) -> None:
    rng = np.random.default_rng(12)
    for A in (
        models.model("laplace2d:n=12"),
        models.model("hofstadter:nx=12,ny=12,p=1,q=4"),
        random_sparse(rng, 150, dtype="complex128"),
        np.diag(np.r_[np.zeros(99), 7.0]),
        np.zeros((5, 5)),
        np.full((1, 1), -3.0),
    ):
        values = np.linalg.eigvalsh(A.toarray() if sp.issparse(A) else A)
        low, high = bounds = spectral_bounds(A, method=method)
        scale = max(np.ptp(values), np.abs(values).max())
        assert low <= values[0] + 1e-14 * scale
        assert high >= values[-1] - 1e-14 * scale
        assert (high - low) <= (5 if method == "gershgorin" else 1.2) * scale
        assert ("proven" if bounds.is_proven else "estimated") in repr(bounds)
        assert bounds.is_proven or method != "gershgorin"
    assert not spectral_bounds(lambda X: A @ X, shape=(1, 1)).is_proven


def test_errors_are_within_bounds_though_no_ritz_value_may_see_a_kink() -> None:
    for seed in range(50):
        values, f = kinked(seed)
        rng = np.random.default_rng(seed)
        b = rng.standard_normal(len(values)) * np.exp(rng.uniform(-20, 20) * np.linspace(0, 1, len(values)))
        found, info = funm_multiply(f, np.diag(values), b, return_info=True)
        error = np.linalg.norm(found - f(values) * b) / np.linalg.norm(b) / np.abs(f(values)).max()
        assert error <= info["error_bound"] + 1e-12  # rounding errors
        assert info["error_bound"] <= 1e-10


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, as_operator, aslinearoperator])
def test_imaginary_matrices_may_be_hermitian(form: Any) -> None:
    H = np.array([[0, -1j], [1j, 0]])
    psi0 = np.array([1.0, 0.0])
    ((_, psi),) = evolve(form(H), psi0, [0.3])
    assert_near(psi, scipy.linalg.expm(-0.3j * H) @ psi0, 1e-14)
    assert_near(funm_multiply(np.exp, form(H), psi0), scipy.linalg.expm(H) @ psi0, 1e-9)
    assert np.allclose(spectral_bounds(form(H)), [-1, 1], atol=0.1)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_entries_of_any_size_have_the_results_of_ordinary_ones(scale: float) -> None:
    rng = np.random.default_rng(5)
    A = random_sparse(rng, 40).toarray() / 4 + 2 * np.eye(40)
    b = rng.standard_normal(40)
    expected = scipy.linalg.expm(A) @ b
    assert_near(expm_multiply(scale * A, b, 0, 1 / scale, 2)[1], expected, 1e-12)
    assert_near(funm_multiply(lambda x: np.exp(x / scale), scale * A, b), expected, 1e-9)
    found = funm_multiply_krylov(scipy.linalg.expm, scale * A, b, t=1 / scale, rtol=1e-12)
    assert_near(found, expected, 1e-10)
    low, high = np.array(spectral_bounds(scale * A)) / scale
    values = np.linalg.eigvalsh(A)
    assert low <= values[0]
    assert high >= values[-1]
