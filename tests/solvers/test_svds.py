"""`svds`: triplets of every kind of matrix against dense LAPACK, and the identities that they satisfy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import blockvec
from blockvec.errors import BreakdownError, OptionError, ShapeError
from solvers import ConvergenceWarning, NoConvergence, SvdResult, svds
from solvers.problem import Verification
from tests.matrices import orthonormal, random_sparse, unit
from tests.pairwise import pairwise
from tests.pretended_gpu import pretended_gpu

TYPES = ("float32", "float64", "complex64", "complex128")
rng = np.random.default_rng(0)


def check(A: Any, result: SvdResult, which: str = "LM", errors: float = 100.0) -> None:
    """Check values against LAPACK, and both residuals, orthonormality and the order."""
    D = A.toarray() if sp.issparse(A) else np.asarray(A)
    u, s, vh = result
    k, wide = len(s), np.complex128 if D.dtype.kind == "c" else np.float64
    expected = np.sort(scipy.linalg.svdvals(D.astype(wide)))
    size, eps = expected[-1], unit(u.dtype)
    expected = expected[-k:] if which == "LM" else expected[:k]
    assert (np.diff(s) >= 0).all()
    assert np.abs(s - expected).max() <= errors * eps * size
    assert result.converged.all()
    u, vh = u.astype(wide), vh.astype(wide)
    assert np.linalg.norm(D @ vh.conj().T - u * s, axis=0).max() <= 400 * eps * size
    assert np.linalg.norm(u.conj().T @ D - s[:, None] * vh, axis=1).max() <= 400 * eps * size
    for Q in (u.conj().T @ u, vh @ vh.conj().T):
        assert np.abs(Q - np.eye(k)).max() <= 200 * eps
    largest = u[np.abs(u).argmax(axis=0), np.arange(k)]
    assert np.abs(largest - np.abs(largest)).max() <= 10 * eps


def with_values(values: Any, m: int) -> Any:
    """Make a dense matrix of known singular values."""
    n = len(values)
    return (orthonormal(1, m, n) * np.asarray(values)) @ orthonormal(2, n).T


@pytest.mark.parametrize(
    ("dtype", "shape", "solver"), pairwise(TYPES, [(300, 220), (220, 300), (400, 40)], ["lanczos", "auto"])
)
def test_triplets_of_every_type_and_shape_are_those_of_lapack(
    dtype: str, shape: tuple[int, int], solver: str
) -> None:
    A = random_sparse(2, *shape, 12, dtype)
    result = svds(A, 5, solver=solver, rng=0, return_info=True)
    assert result.u.dtype == result.vh.dtype == dtype
    check(A, result)
    check(A.toarray(), svds(A.toarray(), 5, solver=solver, rng=0, return_info=True))


SPECTRA = {
    "decaying": 10.0 ** -np.linspace(0, 14, 200),
    "fast": 10.0 ** -np.linspace(0, 300, 200),
    "flat": np.linspace(1, 1.1, 200),
    "doubled": np.repeat(np.linspace(1, 2, 100), 2),
    "rank": np.r_[np.linspace(1, 2, 5), np.zeros(195)],
}


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("is_wide", [False, True])
def test_no_spectrum_loses_digits_or_copies(spectrum: str, is_wide: bool) -> None:
    A = with_values(SPECTRA[spectrum], 260)
    A = np.ascontiguousarray(A.T) if is_wide else A
    result = svds(A, 10, solver="lanczos", rng=0, return_info=True, verify="auto")
    check(A, result)
    assert result.verification.is_decided
    assert result.info["stages"] >= (2 if spectrum == "fast" else 1)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (30, 30)])
@pytest.mark.parametrize("which", ["LM", "SM"])
@pytest.mark.parametrize("solver", ["auto", "lanczos", "dense"])
def test_all_values_of_a_matrix_can_be_asked_for(shape: tuple[int, int], which: str, solver: str) -> None:
    A = rng.standard_normal(shape)
    result = svds(A, min(shape), which=which, solver=solver, rng=0, return_info=True)
    check(A, result)
    np.testing.assert_allclose(result.u * result.s @ result.vh, A, atol=1e-12)


@pytest.mark.parametrize("gap", [3e-5, 1e-8])
def test_a_missed_copy_just_below_the_last_value_is_found(gap: float) -> None:
    A = sp.diags_array(np.r_[1, 1, 1 + gap, np.linspace(2, 9, 2497)])
    result = svds(A, 2, which="SM", rng=0, return_info=True, on_unconverged="return")
    assert result.info["method"] == "inverse"
    assert result.info["missing"] == 1 or abs(result.s - 1).max() <= 1e-12


@pytest.mark.parametrize("solver", ["auto", "lanczos", "dense"])
def test_zeros_are_singular_values(solver: str) -> None:
    A = random_sparse(2, 300, 200, 8).toarray()
    A[::2], A[:, 50:] = 0, 0
    for matrix, k in ((np.zeros((30, 20)), 3), (sp.csr_array((400, 300)), 3), (A, 60)):
        check(matrix, svds(matrix, k, solver=solver, rng=0, return_info=True))


@pytest.mark.parametrize("is_wide", [False, True])
def test_rows_or_columns_may_be_full(is_wide: bool) -> None:
    A = random_sparse(2, 3000, 500, 8).tolil()
    A[:, 7] = 1
    A = A.tocsr().T.tocsr() if is_wide else A.tocsr()
    check(A, svds(A, 4, rng=0, return_info=True))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("size", [1e8, 1e11])
def test_values_that_squares_hide_have_no_false_copies(size: float, is_sparse: bool, dtype: str) -> None:
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal(shape).astype(dtype) for shape in ((400, 5), (5, 150), (400, 150))]
    A = size * factors[0] @ factors[1] + factors[2]
    result = svds(sp.csr_array(A) if is_sparse else A, 10, rng=0, return_info=True, maxiter=100)
    check(A, result)
    assert result.verification.is_decided
    assert result.info["operator_columns"] < 1000


def test_a_sparse_matrix_may_be_full() -> None:
    A = np.random.default_rng(0).standard_normal((3000, 300))
    s = svds(sp.csr_array(A), 20, tol=1e-2, return_singular_vectors=False, rng=0)
    assert np.abs(np.sort(s) / np.linalg.svd(A, compute_uv=False)[:20][::-1] - 1).max() <= 1e-2


@pytest.mark.parametrize("zeros", [1, 4, 12])
def test_a_square_matrix_may_have_several_zero_values(zeros: int) -> None:
    A = (random_sparse(2, 420, 420, 6) + sp.eye_array(420)).tolil()
    A[5 : 5 + zeros] = 0
    result = svds(A.tocsr(), 8, which="SM", rng=0, return_info=True)
    check(A.toarray(), result, "SM")
    assert result.verification.is_decided


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_the_unit_of_a_matrix_changes_nothing(scale: float) -> None:
    A = random_sparse(2, 300, 200, 8)
    one, other = (svds(factor * A, 4, rng=0, return_info=True, solver="lanczos") for factor in (1, scale))
    np.testing.assert_allclose(other.s / scale, one.s, rtol=1e-13)
    assert other.converged.all()


@pytest.mark.parametrize("condition", [1e8, 1e10])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_smallest_values_are_accurate_to_rounding_errors_of_the_matrix(
    condition: float, is_sparse: bool
) -> None:
    n = 700
    values = np.r_[np.linspace(1, 2, n - 5), np.array([2, 2, 2, 2, 9]) / condition]
    A: Any = with_values(values, n + 20)
    if is_sparse:  # rotations of neighbouring rows and columns
        A = sp.diags_array(values).tocsr()
        for first in (0, 1, 0):
            blocks = sp.block_diag([scipy.linalg.qr(rng.standard_normal((2, 2)))[0]] * (n // 2 - first))
            rotation = sp.block_diag([sp.eye_array(first), blocks, sp.eye_array(first)]).tocsr()
            A = rotation @ A @ rotation
    result = svds(A, 5, which="SM", rng=0, return_info=True)
    assert result.info["method"] == "inverse"
    assert np.abs(result.s - np.sort(values)[:5]).max() <= 20 * unit("float64") * 2
    assert result.converged.all()
    assert result.verification.is_decided


def test_small_values_of_an_operator_are_corrected_without_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.singular.methods.FEW_ROWS", 0)
    values = np.r_[np.linspace(1, 2, 296), 1e-2, 1e-3, 1e-4, 1e-5]
    A = with_values(values, 400)
    result = svds(spla.aslinearoperator(A), 3, which="SM", rng=0, return_info=True)
    assert result.info["method"] == "jd"
    check(A, result, "SM")


@pytest.mark.parametrize("solver", ["lanczos", "dense"])
def test_centring_gives_principal_components(solver: str) -> None:
    A = abs(random_sparse(2, 400, 90, 10))
    for matrix in (A, A.T.tocsr(), A.toarray()):
        centred = matrix - matrix.mean(axis=0)
        result = svds(matrix, 6, center=True, solver=solver, rng=0, return_info=True)
        check(centred, result)
        assert result.info["center"]
    # Of centred entries that are far below their means, or rounding errors, u ||A|| is the accuracy.
    far = np.sqrt(np.arange(90)) + np.zeros((400, 1))
    equal = np.full((3000, 90), 0.1), np.ones((90, 3000)), far, sp.csr_array(far)
    for matrix in (*equal, far + 1e-9 * A, 1e-3 * far + A.toarray()):
        D = matrix.toarray() if sp.issparse(matrix) else matrix
        result = svds(matrix, 3, center=True, solver=solver, rng=0, return_info=True)
        centred = (D - D.mean(axis=0, dtype=np.longdouble)).astype(float)
        expected, floor = scipy.linalg.svdvals(centred)[2::-1], unit("float64") * np.linalg.norm(D)
        assert np.abs(result.s - expected).max() <= 100 * floor
        assert result.residuals.max() <= 100 * floor
        assert result.verification.is_decided


@pytest.mark.parametrize("center", [False, True])
def test_sums_of_very_many_equal_terms_are_accurate(center: bool) -> None:
    # A constant column and one that is nearly so: sums of 20,000 terms.
    A = sp.random_array((20_000, 60), density=0.02, rng=np.random.default_rng(12)).tolil()
    A[:9000, 3], A[2000:16_000, 7] = 1, 0.5
    D = A.toarray() - center * A.toarray().mean(axis=0)
    for matrix in (A.tocsr(), A.tocsc()):
        before = matrix.copy()
        check(D, svds(matrix, 8, center=center, solver="lanczos", rng=0, return_info=True))
        assert (matrix.data == before.data).all()
        assert (matrix.indices == before.indices).all()


@pytest.mark.parametrize(("center", "m"), [(False, 16_000), (True, 1000)])
def test_equal_rows_of_dense_matrices_are_no_obstacle(center: bool, m: int) -> None:
    A = np.tile([0.0] * 5 if center else [1.0, -2.0, 0.3, 4.0, 0.7], (m, 1))
    A[range(5), range(5)] = 1, 0, 2, 1, 3
    C = (A - center * A.mean(axis=0))[:6]
    C[5] *= np.sqrt(m - 5)  # one row for all equal ones
    s, expected = svds(A, 2, center=center, return_singular_vectors=False), scipy.linalg.svdvals(C)[1::-1]
    assert np.abs(s - expected).max() <= 100 * unit("float64") * expected[-1]


def test_the_error_of_an_approximation_is_bounded() -> None:
    A = with_values(0.9 ** np.arange(200), 300)
    for passes in (2, 3, 5):
        found = svds(A, 10, solver="randomized", options={"passes": passes}, rng=0, return_info=True)
        error = np.linalg.norm(A - found.u * found.s @ found.vh, 2)
        assert error <= found.info["error"] <= 40 * error
        assert found.verification is Verification.SKIPPED
    np.testing.assert_allclose(found.s, np.sort(0.9 ** np.arange(10)), rtol=1e-2)


@pytest.mark.parametrize("which", ["LM", "SM"])
@pytest.mark.parametrize("convert", [sp.csc_array, sp.coo_array, spla.aslinearoperator, blockvec.as_operator])
def test_every_form_of_a_matrix_has_the_same_triplets(which: str, convert: Any) -> None:
    A = random_sparse(2, 200, 120, 8)
    check(A, svds(convert(A), 4, which=which, rng=0, return_info=True), which)


def test_integers_and_lists_of_options_are_taken_as_scipy_takes_them() -> None:
    A = np.arange(12).reshape(4, 3)
    np.testing.assert_allclose(svds(A, 2)[1], np.sort(scipy.linalg.svdvals(A))[-2:])
    u, s, vh = svds(A, 2, return_singular_vectors="u")
    assert vh is None
    assert u.shape == (4, 2)
    assert svds(A, 2, return_singular_vectors="vh")[0] is None
    np.testing.assert_array_equal(svds(A, 2, return_singular_vectors=False), s)


@pytest.mark.parametrize("start", [{"rng": 3}, {"random_state": 3}, {"v0": np.linspace(-1, 1, 200)}])
def test_the_same_start_gives_the_same_bits_and_inputs_are_not_written(start: Any) -> None:
    A, kept = random_sparse(2, 300, 200, 8), copy.deepcopy(start)
    for first, second in zip(*(svds(A, 4, solver="lanczos", **start) for _ in range(2)), strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(A.toarray(), random_sparse(2, 300, 200, 8).toarray())
    np.testing.assert_equal(start, kept)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"k": 0}, OptionError, "from 1 to 3"),
        ({"which": "LA"}, OptionError, "which"),
        ({"solver": "qr"}, OptionError, "solver"),
        ({"tol": -1}, OptionError, "tol"),
        ({"v0": np.ones(5)}, ShapeError, "v0"),
        ({"return_singular_vectors": "v"}, OptionError, "return_singular_vectors"),
        ({"options": {"passes": 3}}, OptionError, "randomized"),
        ({"which": "SM", "solver": "randomized"}, OptionError, "largest"),
        ({"verify": "perhaps"}, OptionError, "verify"),
        ({"comm": object()}, OptionError, "comm"),
        ({"A": spla.LinearOperator((4, 3), len, matmat=len, dtype=float)}, OptionError, "adjoint"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        svds(**{"A": np.ones((4, 3)), "k": 1, **arguments})


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("solver", ["auto", "lanczos", "dense"])
def test_nan_and_inf_are_refused(number: float, solver: Any) -> None:
    with pytest.raises(BreakdownError):
        svds(np.diag([*range(20), number]), 2, solver=solver)


def test_triplets_that_do_not_converge_raise_or_warn() -> None:
    A = with_values(np.linspace(1, 1.001, 200), 300)
    arguments: Any = {"solver": "lanczos", "maxiter": 1, "ncv": 12, "rng": 0}
    with pytest.raises(NoConvergence) as caught:
        svds(A, 5, **arguments)
    assert isinstance(caught.value, spla.ArpackNoConvergence)
    assert caught.value.result.u.shape == (300, 5)
    with pytest.warns(ConvergenceWarning, match="maxiter"):
        svds(A, 5, on_unconverged="warn", **arguments)
    loose = svds(A, 5, tol=1e-1, rng=0, return_info=True, verify="never", solver="lanczos")
    assert (loose.residuals <= loose.limits).all()


def test_a_result_describes_itself() -> None:
    result = svds(random_sparse(2, 600, 300, 8), 4, solver="arpack", rng=0, return_info=True)
    assert (result.info["solver"], result.info["method"]) == ("arpack", "lanczos")
    assert "All 4 converged" in result.summary() in str(result)
    assert "of A^H A" in str(result.info["plan"])
    assert len(result.history) == result.info["restarts"]
    assert result.plot().get_ylabel()


ARGUMENTS = [{}, {"solver": "lanczos"}, {"solver": "lanczos", "center": True}, {"solver": "randomized"}]


@pytest.mark.parametrize(
    ("dtype", "rows", "arguments"),
    pairwise(TYPES, [300, 5001], [*ARGUMENTS, {"center": True}, {"which": "SM"}]),
)
def test_on_a_gpu_no_kernel_of_cupy_is_compiled(
    dtype: str, rows: int, arguments: Any, tmp_path: Path
) -> None:
    A = random_sparse(2, rows, 200, 8, dtype)
    options: dict[str, Any] = {"rng": 0, "return_info": True, **arguments}
    expected = svds(A, 5, **options)
    with blockvec.option_context(cache_dir=tmp_path), pretended_gpu(modules=()) as watched:
        stored = A.data, A.indices.astype(np.int32), A.indptr.astype(np.int32)
        op = blockvec.as_operator(sp.csr_array(stored, shape=A.shape), device="gpu")
        found = svds(op, 5, **options)
        noted = {name: place for name, place in watched.compiled.items() if not name.startswith("conj ")}
        assert noted == {} or found.info["method"] == "dense"
        u = found.u.get()
    assert found.info["device"] == "cuda:0"
    np.testing.assert_allclose(found.s.get(), expected.s, atol=2000 * unit(dtype) * expected.s.max())
    largest = u[np.abs(u).argmax(axis=0), np.arange(5)]
    assert np.allclose(largest, np.abs(largest), rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arguments", [{}, {"which": "SM"}, {"center": True}, {"solver": "dense"}])
def test_triplets_on_a_gpu_are_those_of_the_host(dtype: str, arguments: Any) -> None:
    cupy = pytest.importorskip("cupy")
    from cupyx.scipy import sparse

    A = random_sparse(2, 3000, 400, 8, dtype)
    expected = svds(A, 5, rng=0, **arguments)[1]
    u, s, vh = svds(sparse.csr_matrix(sp.csr_matrix(A)), 5, rng=0, **arguments)
    assert all(isinstance(array, cupy.ndarray) for array in (u, s, vh))
    np.testing.assert_allclose(s.get(), expected, atol=200 * unit(dtype) * expected.max() * 10)
    cupy.testing.assert_allclose(u.conj().T @ u, cupy.eye(5), atol=400 * unit(dtype))
