"""Matrices, blocks and functions of torch and JAX share their memory with blockvec."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.errors import DeviceError, DTypeError, OptionError, ShapeError
from blockvec.interchange import ArrayKind, library_of, native
from tests.array_libraries import Library, library

# torch calls its sparse matrices a beta version.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse ")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def jax() -> Iterator[Any]:
    with library("jax"):
        import jax

        yield jax


def block(n: int, m: int, dtype: str = "float64") -> Any:
    """Random numbers at an address that JAX shares, too: a multiple of 64 bytes."""
    values = BlockVector.random(n, m, dtype, rng=1).array
    memory = np.empty(values.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    array = memory[begin : begin + values.nbytes].view(dtype).reshape(n, m)
    array[...] = values
    return array


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_arrays_share_memory_both_ways(lib: Library, dtype: str) -> None:
    X = block(50, 3, dtype)
    shared = ArrayKind(lib.name).share(X)
    assert lib.is_mine(shared)
    assert lib.address(shared) == X.ctypes.data
    back = BlockVector(shared).array
    assert back.dtype == dtype
    assert back.ctypes.data == X.ctypes.data
    assert library_of(shared) == lib.name


def test_sparse_matrices_keep_their_values_where_they_are(lib: Library) -> None:
    A = sp.csr_array(models.model("laplace2d:n=5") + sp.random_array((25, 25), density=0.1, rng=3))
    for name, form in lib.sparse.items():
        theirs = form(A)
        ours = native(theirs)
        assert sp.issparse(ours), name
        assert abs(ours - A).max() == 0
        X = block(25, 2)
        np.testing.assert_allclose(as_operator(theirs).apply(X).array, A @ X, atol=1e-14)
        if "csr" in name:
            data = theirs.values() if lib.name == "torch" else theirs.data
            assert ours.data.ctypes.data == lib.address(data)


def test_dense_matrices_are_multiplied_where_they_are(lib: Library) -> None:
    A, X = block(20, 20), block(20, 4)
    theirs = ArrayKind(lib.name).share(A)
    np.testing.assert_allclose(as_operator(theirs).apply(lib.array(X)).array, A @ X)
    assert native(theirs).ctypes.data == A.ctypes.data


def test_a_function_gets_views_of_blocks_as_arrays_of_its_library(lib: Library) -> None:
    seen: list[Any] = []

    def double(X: Any) -> Any:
        seen.append(X)
        return 2 * X

    X = block(30, 2)
    op = as_operator(double, shape=(30, 30), like=lib.name)
    np.testing.assert_array_equal((op @ BlockVector(X)).array, 2 * X)
    assert lib.is_mine(seen[0])
    assert lib.address(seen[0]) == X.ctypes.data
    # A range of columns: JAX, which has no such views, gets a copy.
    np.testing.assert_array_equal((op @ BlockVector(X)[:, 1]).array, 2 * X[:, 1:])


def test_an_example_gives_type_and_device_of_a_function(lib: Library) -> None:
    example = lib.array(np.zeros(0, np.float32))
    op = as_operator(lambda X: X, shape=(4, 4), like=example)
    assert (op.dtype, op.device) == ("float32", "cpu")
    assert as_operator(lambda X: X, shape=(4, 4), dtype="complex64", like=example).dtype == "complex64"


def test_functions_of_a_library_need_no_like(jax: Any) -> None:
    A = jax.numpy.diag(jax.numpy.arange(4.0))
    op = as_operator(jax.jit(lambda X: A @ X), shape=(4, 4))
    np.testing.assert_array_equal((op @ np.eye(4)).array, np.diag(np.arange(4.0)))


def test_modules_of_torch_need_no_like(torch: Any) -> None:
    layer = torch.nn.Linear(4, 4, bias=False)
    op = as_operator(lambda X: layer(X.T).T, shape=(4, 4), dtype="float32", like=torch)
    wanted = layer.weight.detach().numpy()  # the product carries a gradient
    np.testing.assert_allclose((op @ np.eye(4, dtype=np.float32)).array, wanted, rtol=1e-6)
    rows = as_operator(torch.nn.Identity(), shape=(4, 4), dtype="float32")
    np.testing.assert_array_equal((rows @ np.eye(4, dtype=np.float32)).array, np.eye(4))


def test_a_tensor_function_writes_its_output_in_place(torch: Any, device: str) -> None:
    if device == "gpu" and not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    addresses: list[int] = []

    def product(X: Any, out: Any) -> None:
        addresses.append(out.data_ptr())
        torch.mul(X, 3, out=out)

    V = BlockVector.random(1000, 4, rng=1, device=device)
    op = as_operator(product, shape=(1000, 1000), like="torch", device=device)
    Y = op @ V
    assert addresses == [ArrayKind("torch").share(Y.array).data_ptr()]
    assert bool((Y.array == 3 * V.array).all())
    assert bool(((op @ V[:, 1:3]).array == 3 * V.array[:, 1:3]).all())


def test_tensors_with_gradients_or_pending_conjugation_are_taken(torch: Any) -> None:
    A = torch.eye(3, dtype=torch.float64, requires_grad=True)
    np.testing.assert_array_equal(native(A), np.eye(3))
    np.testing.assert_array_equal(native(torch.tensor([[1j]]).conj()), [[-1j]])


def test_integers_become_float64(torch: Any) -> None:
    A = torch.arange(3) * torch.eye(3, dtype=torch.int64)
    for matrix in (A, A.to_sparse()):
        assert as_operator(matrix).dtype == np.float64


REFUSED = {
    "as_operator(torch.eye(3, dtype=torch.float16))": DTypeError,
    "as_operator(torch.eye(3, dtype=torch.bfloat16))": DTypeError,
    "as_operator(torch.eye(3, dtype=torch.float16).to_sparse())": DTypeError,
    "as_operator(torch.zeros(2, 2).to_sparse_bsr((1, 1)))": DTypeError,
    "as_operator(torch.zeros(2, 3, 3).to_sparse())": ShapeError,
    "BlockVector(torch.eye(3).to_sparse())": DTypeError,
    "as_operator(torch.eye(3, device='meta'))": (DTypeError, DeviceError),
    "as_operator(torch.zeros(2).to_mkldnn())": (DTypeError, DeviceError),
}


@pytest.mark.parametrize("attempt", REFUSED)
def test_what_cannot_be_shared_is_refused(torch: Any, attempt: str) -> None:
    with pytest.raises(REFUSED[attempt]):
        eval(attempt, {"torch": torch, "as_operator": as_operator, "BlockVector": BlockVector})


def test_jax_without_double_precision_is_refused_with_the_remedy(jax: Any) -> None:
    jax.config.update("jax_enable_x64", False)
    assert ArrayKind("jax").share(np.ones((2, 2), np.float32)).dtype == "float32"
    with pytest.raises(DTypeError, match="jax_enable_x64"):
        ArrayKind("jax").share(np.ones((2, 2)))


@pytest.mark.parametrize("like", ["tensorflow", 3, [1.0], sp, sp.eye_array(2)])
def test_an_unknown_like_is_refused_and_that_of_a_matrix(like: Any) -> None:
    with pytest.raises(OptionError, match="like: got"):
        as_operator(lambda X: X, shape=(2, 2), like=like)
    with pytest.raises(OptionError, match="leave it out"):
        as_operator(np.eye(2), like="numpy")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match="torch cannot be imported"):
        as_operator(lambda X: X, shape=(2, 2), like="torch")
