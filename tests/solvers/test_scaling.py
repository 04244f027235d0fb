"""Eigenvalues of matrices of every finite scale: w(s A) = s w(A), with residuals, limits and histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator, models
from blockvec.errors import BreakdownError, OptionError
from solvers import EigenResult, JacobiPreconditioner, block_gmres, block_minres
from solvers.blocks import to_host
from tests.solvers import answers
from tests.solvers.answers import eigenvalues

FAR = [-900, 900]
DTYPES = ["float32", "float64", "complex64", "complex128"]
REQUESTS: list[dict[str, Any]] = [
    *({"method": method, "which": which} for method in ("lanczos", "filter", "jd") for which in ("SA", "LM")),
    *({"method": "dense", "which": which} for which in ("SA", "LA", "BE")),
    *({"which": which} for which in ("LA", "SM", "BE")),
    *({"sigma": 2.1} | more for more in ({}, {"mode": "cayley"})),
    *({"sigma": 2.1, "method": method} for method in ("filter", "jd", "dense")),
]


def hermitian(dtype: str) -> sp.csr_array:
    """Return a sparse matrix with simple, well separated values in [-3, 5]."""
    A = sp.csr_array(models.model("laplace2d:nx=7,ny=9"))
    A = A + sp.diags_array(np.linspace(-3, 1, A.shape[0]))
    upper = sp.triu(A, 1)
    return sp.csr_array(A + 0.3j * (upper - upper.T) if np.dtype(dtype).kind == "c" else A).astype(dtype)


def scaled(value: Any, exponent: int) -> Any:
    """Multiply by 2^exponent, in two steps, each of which is in the range of the numbers."""
    return value * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)


def solve(A: Any, exponent: int = 0, **options: Any) -> EigenResult:
    """Find three pairs of a matrix times 2^exponent, whose sigma is scaled, too."""
    if options.get("sigma"):
        options["sigma"] = scaled(options["sigma"], exponent)
    return answers.solve(scaled(A, exponent) if sp.issparse(A) else A, 3, **options)


def unscaled(values: Any, exponent: int) -> Any:
    return np.ldexp(np.asarray(values, np.float64), -exponent)


def assert_same_bits(one: EigenResult, other: EigenResult, exponent: int = 0) -> None:
    assert np.array_equal(one.eigenvectors, other.eigenvectors)
    for name in ("eigenvalues", "residuals", "limits"):
        assert np.array_equal(np.ldexp(getattr(one, name), -exponent), getattr(other, name))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), request=st.sampled_from(REQUESTS))
def test_values_and_residuals_scale_with_the_matrix(data: Any, dtype: str, request: dict[str, Any]) -> None:
    info = np.finfo(dtype)
    exponent = data.draw(st.integers(int(info.minexp) + 3, int(info.maxexp) - 5))
    A = hermitian(dtype)
    usual, result = solve(A, **request), solve(A, exponent, **request)
    norm = float(np.abs(eigenvalues(A)).max())
    values = unscaled(result.eigenvalues, exponent)
    np.testing.assert_allclose(values, usual.eigenvalues, atol=200 * info.eps * norm)
    X = result.eigenvectors.astype(np.complex128)
    residuals = np.linalg.norm(A.astype(np.complex128) @ X - X * values, axis=0)
    assert (residuals <= unscaled(result.limits, exponent) + 10 * info.eps * norm).all()
    np.testing.assert_allclose(X.conj().T @ X, np.eye(3), atol=100 * info.eps)
    assert result.converged.all()
    np.testing.assert_allclose(unscaled(result.info["norm"], exponent), usual.info["norm"], rtol=0.2)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("method", ["lanczos", "jd", "filter", "dense"])
def test_the_bits_of_a_scaled_problem_are_those_of_the_usual_one(method: str, dtype: str) -> None:
    A, far = hermitian(dtype), int(np.finfo(dtype).maxexp) * 3 // 4
    usual = solve(A, method=method, which="SA")
    for exponent in (-far, far):
        assert_same_bits(solve(A, exponent, method=method, which="SA"), usual, exponent)


@pytest.mark.parametrize(("of_a", "of_m"), [(-900, 0), (0, -600), (900, 600), (-500, 400), (0, 900)])
@pytest.mark.parametrize(
    "request_",
    [
        {"which": "SA"},
        {"which": "LA", "method": "jd"},
        {"sigma": 0.7},
        {"sigma": 0.7, "mode": "cayley"},
        {"sigma": 0.7, "mode": "buckling"},
        {"which": "SM"},
    ],
)
def test_both_matrices_of_a_pair_may_have_any_scale(of_a: int, of_m: int, request_: dict[str, Any]) -> None:
    n = 60
    A = sp.csc_array(models.model(f"laplace1d:n={n}") + sp.eye_array(n))
    M = sp.diags_array(np.linspace(1, 2, n), format="csc")
    usual = solve(A, M=M, **request_)
    sigma = {"sigma": scaled(request_["sigma"], of_a - of_m)} if "sigma" in request_ else {}
    result = answers.solve(scaled(A, of_a), 3, scaled(M, of_m), **request_ | sigma)
    np.testing.assert_allclose(unscaled(result.eigenvalues, of_a - of_m), usual.eigenvalues, atol=1e-11)
    inner, of_inner = (A, of_a) if request_.get("mode") == "buckling" else (M, of_m)
    X = scaled(result.eigenvectors, of_inner // 2)
    np.testing.assert_allclose(X.T @ (inner @ X), np.eye(3), atol=1e-12)
    R = np.linalg.norm(A @ X - (M @ X) * usual.eigenvalues, axis=0)
    stated = unscaled(result.residuals, of_a - of_inner // 2)
    np.testing.assert_allclose(stated, R, atol=1e-11)
    assert result.converged.all()


@pytest.mark.parametrize("exponent", FAR)
@pytest.mark.parametrize("request_", [{"which": "SA"}, {"sigma": 2.1}, {"sigma": 2.1, "method": "filter"}])
def test_absolute_tolerances_and_the_norm_are_those_of_the_user(
    exponent: int, request_: dict[str, Any]
) -> None:
    A, asked = hermitian("float64"), {"method": "lanczos", "convergence": "absolute"} | request_
    result = solve(A, exponent, tol=scaled(1e-6, exponent), norm=scaled(8.0, exponent), **asked)
    usual = solve(A, tol=1e-6, norm=8.0, **asked)
    np.testing.assert_allclose(unscaled(result.limits, exponent), usual.limits)
    assert result.info["norm"] == scaled(8.0, exponent)
    assert result.info["operator_columns"] == usual.info["operator_columns"] + 1  # of the measurement


def test_a_checkpoint_of_another_scale_is_refused(tmp_path: Path) -> None:
    A, asked = hermitian("float64"), {"method": "lanczos", "which": "SA", "checkpoint": tmp_path / "state"}
    solve(A, -700, **asked, block_size=2, ncv=8, maxiter=2, on_unconverged="return")
    for exponent, message in ((0, r"another matrix|exponent of two"), (-720, "exponent of two")):
        with pytest.raises(OptionError, match=message):
            solve(A, exponent, **asked, block_size=2, ncv=8)


@pytest.mark.parametrize("exponent", FAR)
def test_preconditioners_and_inverses_are_those_of_the_matrix_as_given(exponent: int) -> None:
    B = hermitian("float64") + 5 * sp.eye_array(63)
    A, usual = scaled(B, exponent), solve(B, which="SA", method="dense")
    followed: list[float] = []

    class Following(JacobiPreconditioner):
        def update(self, theta: float) -> None:
            followed.append(theta)
            super().update(theta)

    inverse = np.linalg.inv(B.toarray())
    results = [
        solve(A, which="SA", preconditioner=Following(A)),
        solve(A, which="SA", preconditioner=scaled(inverse, -exponent)),
        solve(A, which="SA", preconditioner=lambda X: inverse @ X),  # its scale is free
        solve(A, which="SA", method="jd"),
        solve(A, sigma=0.0, OPinv=scaled(inverse, -exponent)),
        solve(lambda X: A @ X, sigma=0.0, OPinv=lambda X: scaled(inverse @ X, -exponent), shape=A.shape),
    ]
    for result in results:
        assert result.converged.all()
        np.testing.assert_allclose(unscaled(result.eigenvalues, exponent), usual.eigenvalues, atol=1e-11)
    assert abs(unscaled(followed[-1], exponent)) < 10


def test_a_problem_beyond_the_range_is_an_error_by_name() -> None:
    A = hermitian("float64")
    tiny, huge = scaled(A, -900), scaled(A, 900)
    null, one = (sp.diags_array(d, format="csc") for d in (np.arange(0.0, 63), np.ones(63)))
    function: Any = {"A": lambda X: tiny @ X, "shape": A.shape, "check_hermitian": False}
    lopsided = sp.csr_array(np.triu(np.full((30, 30), 1e250)))
    common = {"A": scaled(null, -900), "M": null, "sigma": scaled(5.0, -900)}
    for options, error, message in (
        (
            {"A": tiny, "sigma": 1.0},
            OptionError,
            "sigma: got 1, from which no eigenvalue can be told in float64",
        ),
        (
            {"A": huge, "M": scaled(one, -600)},
            BreakdownError,
            r"an eigenvalue is .* \* 2\^.* beyond the range",
        ),
        (function, BreakdownError, r"the norm of A is .* give norm=, or check_hermitian=True"),
        ({"A": huge * np.inf}, BreakdownError, "A returned NaN or Inf"),
        ({"A": lopsided}, OptionError, "A is not Hermitian"),
        (common, OptionError, "A and M have a null vector in common"),
    ):
        with pytest.raises(error, match=message) as caught:
            answers.solve(k=3, **options)
    assert "belong to the scaled problem, A / 2^-" in caught.value.__notes__[0]


@pytest.mark.parametrize("exponent", [-1000, 0, 1000])
def test_start_and_deflated_vectors_may_have_any_length(exponent: int) -> None:
    A = hermitian("float64")
    X = np.linalg.eigh(A.toarray())[1]
    lengths = np.array([2.0**-300, 1.0, 2.0**300]) if exponent == 0 else scaled(1.0, exponent)
    first = solve(A, which="SA", v0=X[:, :3] * lengths, method="lanczos")
    np.testing.assert_allclose(np.abs(X[:, :3].T @ first.eigenvectors), np.eye(3), atol=1e-10)
    others = solve(A, which="SA", orthogonal_to=X[:, :3] * lengths)
    np.testing.assert_allclose(np.abs(X[:, 3:6].T @ others.eigenvectors), np.eye(3), atol=1e-10)


@pytest.mark.parametrize("solve_systems", [block_minres, block_gmres])
def test_a_right_hand_side_whose_squares_vanish_is_not_called_solved(solve_systems: Any) -> None:
    A, B = hermitian("float64"), BlockVector(np.ones((63, 3)))
    B.scale(np.array([1.0, 0.0, 2.0**-900]))
    assert solve_systems(A, B, shift=-6.0).reasons == ("converged", "converged", "underflow")
    with np.errstate(all="ignore"), pytest.raises(BreakdownError, match="squares overflow"):
        solve_systems(A, BlockVector(np.full((63, 1), 2.0**900)))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    "request_", [{"which": "SA"}, {"which": "LA", "method": "filter"}, {"sigma": 2.1, "method": "jd"}]
)
def test_scales_are_the_same_on_every_device(device: str, dtype: str, request_: dict[str, Any]) -> None:
    A, far = hermitian(dtype), int(np.finfo(dtype).maxexp) * 7 // 8
    usual = solve(A, device=device, **request_)
    for exponent in (-far, far):
        B, sigma = scaled(A, exponent), {}
        if "sigma" in request_:
            sigma = {"sigma": scaled(request_["sigma"], exponent)}
        for given_ in (B, as_operator(B, device=device)):
            result = answers.solve(given_, 3, device=device, **request_ | sigma)
            w = unscaled(to_host(result.eigenvalues), exponent)
            atol = 300 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(w, to_host(usual.eigenvalues), atol=atol)
            assert result.converged.all()
