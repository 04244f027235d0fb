"""Several Lanczos steps in one launch on a GPU, and small problems of a GPU that the host solves."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from solvers import eigsh, planning
from solvers.iterations.krylov import krylov_of
from solvers.problem import Counts

pytestmark = pytest.mark.gpu


def matrix(kind: str, dtype: str) -> Any:
    """Make a matrix with rows of a few entries, or one with a long row and an empty one."""
    if kind != "long":
        A = models.model("laplace2d:nx=130,ny=101").tocsr()
    else:
        rng = np.random.default_rng(0)
        A = sp.random_array((5003, 5003), density=1e-3, format="lil", rng=rng)
        A[7, :] = rng.standard_normal(5003)
        A[100, :] = A[:, 100] = 0
        A = A + A.T
    return sp.csr_array(A).astype(dtype)


def operator_of(kind: str, A: Any) -> Any:
    """Make a matrix of the GPU, or a function that multiplies by it, an operator."""
    operator = as_operator(A, device="gpu")
    if kind != "function":
        return operator
    return as_operator(
        lambda X: (operator @ BlockVector(X)).array, shape=A.shape, dtype=A.dtype, device="gpu"
    )


@pytest.mark.parametrize("kind", ["lattice", "long", "function"])
@pytest.mark.parametrize(("dtype", "b"), [("float64", b) for b in (1, 2, 4, 8)] + [("complex128", 4)])
@pytest.mark.parametrize(("several", "pending"), [(True, 0), (False, 0), (True, 1), (True, 11)])
def test_the_decomposition_holds(
    kind: str, dtype: str, b: int, several: bool, pending: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with more pending columns than a step takes."""
    A = matrix(kind, dtype)
    operator = operator_of(kind, A)
    scale = float(abs(A).sum(axis=0).max())
    buffer = BlockVector.zeros(A.shape[0], 11 * b + pending, dtype, device="gpu")
    basis = krylov_of(operator, buffer, 0, b, np.random.default_rng(1), Counts())
    assert basis.takes_launches
    basis.append_random(b + pending)
    if kind != "long":  # whose blocks are well conditioned: no launch fails
        monkeypatch.setattr(basis, "_take_carefully", None)
    for restart in range(3):
        if restart:
            basis.restart(basis.ritz(), np.arange(2 * b))
        while basis.can_expand():
            basis.expand(basis.capacity if several else 0)
        H = basis.snapshot()["H"]
        V, used = basis.columns(0, basis.m), basis.columns(0, basis.m + basis.w)
        product = used @ buffer.backend.from_host(np.ascontiguousarray(H.astype(dtype)))
        assert float((operator @ V).axpy(-1, product).norms().max()) < 1e-13 * scale
        assert float(abs(used.gram() - buffer.backend.xp.eye(basis.m + basis.w)).max()) < 1e-13


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("out", [False, True])
def test_functions_of_a_gpu_have_the_pairs_of_their_matrices(dtype: str, out: bool) -> None:
    A = matrix("lattice", dtype)
    operator, columns = as_operator(A, device="gpu"), 0

    def returning(X: Any) -> Any:
        nonlocal columns
        columns += X.shape[1]
        return (operator @ BlockVector(X)).array

    def writing(X: Any, out: Any) -> None:
        out[...] = returning(X)

    function = writing if out else returning
    options: dict[str, Any] = {"which": "LA", "rng": 0, "return_info": True, "tol": 1e-5}
    result = eigsh(function, 5, shape=A.shape, dtype=dtype, device="gpu", **options)
    expected = eigsh(A, 5, device="gpu", **options)
    assert abs(result.eigenvalues - expected.eigenvalues).max() < 1e-4
    assert columns == result.info["operator_columns"]


def test_threads_on_streams_of_their_own_get_the_same_bits() -> None:
    import cupy

    A = as_operator(matrix("lattice", "float64"), device="gpu")
    alone = eigsh(A, k=4, which="LA", rng=0)[0].get()
    found: list[Any] = []

    def work() -> None:
        with cupy.cuda.Stream(non_blocking=True):
            found.extend(eigsh(A, k=4, which="LA", rng=0)[0].get() for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(np.array_equal(alone, values) for values in found)


@pytest.mark.parametrize("form", ["operator", "cupy", "scipy"])
def test_small_matrices_are_solved_on_the_host(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    monkeypatch.setattr(planning, "HOST_WORK", 40_000)
    host = models.model("laplace2d:nx=30,ny=31").tocsr()
    A = {"operator": lambda: as_operator(host, device="gpu"), "cupy": lambda: csr_matrix(host)}
    given = A.get(form, lambda: host)()
    v0 = cupy.random.default_rng(0).standard_normal(930)
    for options in ({}, {"v0": v0}, {"orthogonal_to": v0}, {"return_eigenvectors": False}):
        result = eigsh(given, k=4, which="SA", rng=0, device="gpu", return_info=True, **options)
        assert isinstance(result.eigenvalues, cupy.ndarray)
        assert "on the host" in result.info["why"]
    assert isinstance(eigsh(given, k=4, which="SA", rng=0, device="gpu")[1], cupy.ndarray)
