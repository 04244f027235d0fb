"""`eigsh` takes matrices, functions and start blocks of torch and JAX, and returns the caller's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import as_operator, models
from blockvec.errors import DTypeError, OptionError
from blockvec.interchange import native
from solvers import JacobiPreconditioner, NoConvergence, eigsh
from tests.array_libraries import Library, library

# torch calls its sparse matrices a beta version.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse ")

N = 12
A = models.laplace2d(n=N)
VALUES = np.linalg.eigvalsh(A.toarray())[:4]
ITERATE: Any = {"k": 4, "which": "SA", "rng": 0, "method": "lanczos"}


def check(lib: Library, w: Any, V: Any) -> None:
    """Check that values and vectors are arrays of a library and solve the problem."""
    assert lib.is_mine(w)
    assert lib.is_mine(V)
    w, V = native(w), native(V)
    np.testing.assert_allclose(w, VALUES, atol=1e-12)
    assert np.linalg.norm(A @ V - V * w) < 1e-10
    assert np.linalg.norm(V.T @ V - np.eye(4)) < 1e-12


def test_results_are_arrays_of_the_kind_of_a(lib: Library) -> None:
    for theirs in (lib.array(A.toarray()), *(form(A) for form in lib.sparse.values())):
        check(lib, *eigsh(theirs, **ITERATE))
        check(lib, *eigsh(theirs, 4, which="SA", method="dense"))
        check(lib, *eigsh(theirs, 4, sigma=0.0))


def test_like_selects_the_kind_of_results(lib: Library) -> None:
    check(lib, *eigsh(A, **ITERATE, like=lib.name))
    check(lib, *eigsh(A, **ITERATE, like=lib.array(np.zeros(0))))
    check(lib, *eigsh(as_operator(A), **ITERATE, like=lib.name))
    w, V = eigsh(lib.array(A.toarray()), **ITERATE, like="numpy")
    assert type(w) is type(V) is np.ndarray


def test_results_are_the_same_bits_in_every_library(lib: Library) -> None:
    w, V = eigsh(A, **ITERATE)
    for theirs in (next(iter(lib.sparse.values()))(A), A):
        w_shared, V_shared = eigsh(theirs, **ITERATE, like=lib.name)
        assert (native(w_shared) == w).all()
        assert (native(V_shared) == V).all()


def test_functions_and_blocks_are_those_of_the_caller(lib: Library) -> None:
    dense = lib.array(A.toarray())
    product = lib.compile(lambda X: dense @ X) if lib.name != "torch" else lambda X: dense @ X
    if type(dense).__name__ == "Tensor" and not hasattr(dense, "numpy"):  # the stand-in multiplies NumPy's
        product = lambda X: A @ X  # noqa: E731
    given: list[Any] = []

    def halve(R: Any) -> Any:
        given.append(R)
        return R * 0.25

    start = lib.array(np.linspace(1.0, 2.0, 2 * N * N).reshape(-1, 2))
    problem: Any = {
        "k": 4,
        "which": "SA",
        "shape": A.shape,
        "like": lib.array(np.zeros(0)),
        "rng": 0,
        "v0": start,
    }
    check(lib, *eigsh(product, **problem, method="lanczos"))
    check(lib, *eigsh(product, **problem, preconditioner=halve, maxiter=3000))
    assert given
    assert all(map(lib.is_mine, given))
    jacobi = JacobiPreconditioner(dense)
    check(lib, *eigsh(product, **problem, preconditioner=jacobi))
    first = eigsh(dense, k=1, which="SA", rng=0)[1]
    w = eigsh(dense, k=3, which="SA", rng=0, orthogonal_to=first, return_eigenvectors=False)
    np.testing.assert_allclose(native(w), VALUES[1:], atol=1e-12)


def test_whole_results_and_errors_hold_the_callers_arrays(lib: Library) -> None:
    result = eigsh(A, **ITERATE, like=lib.name, return_info=True)
    check(lib, result.eigenvalues, result.eigenvectors)
    assert result.multiplicities[1][1] == 2
    assert result.to_dict()["eigenvalues"] == native(result.eigenvalues).tolist()
    assert "4 eigenvalues, all converged" in str(result)
    with pytest.raises(NoConvergence) as caught:
        eigsh(A, **ITERATE, like=lib.name, maxiter=1)
    assert lib.is_mine(caught.value.eigenvectors)
    values = eigsh(A, **ITERATE, like=lib.name, return_eigenvectors=False)
    assert lib.is_mine(values)


def test_arrays_that_a_library_lacks_are_refused_before_the_solve() -> None:
    with library("jax"):
        import jax

        jax.config.update("jax_enable_x64", False)
        with pytest.raises(DTypeError, match="jax_enable_x64"):
            eigsh(A, **ITERATE, like="jax", callback=lambda state: pytest.fail("a solve"))
    with pytest.raises(OptionError, match="like: got 'sparse'"):
        eigsh(A, 4, like="sparse")
