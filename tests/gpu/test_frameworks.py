"""Tensors of torch and arrays of JAX on a GPU: CuPy's results, on the device, without long host copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, as_operator, models
from blockvec.backends import backend_for
from blockvec.interchange import ArrayKind, native
from solvers import eigsh
from tests.array_libraries import Torch, stencil

pytestmark = [
    pytest.mark.gpu,
    # torch calls its sparse matrices a beta version, and its profiler and JAX comment on the machine.
    pytest.mark.filterwarnings("default"),
]

N = 20
A = models.laplace3d(n=N)
VECTOR = 8 * N**3  # bytes
HOW: Any = {"k": 8, "which": "SA", "method": "filter", "tol": 1e-8, "rng": 0, "ncv": 40, "block_size": 8}


@pytest.fixture
def torch(cp: Any) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    return torch


@pytest.fixture
def jax(cp: Any) -> Iterator[Any]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX finds no GPU")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def copied(cp: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of the copies that blockvec makes between host and GPU."""
    sizes: list[int] = []

    def count(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            sizes.append(max(getattr(argument, "nbytes", 0) for argument in arguments))
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    for name in ("to_host", "from_host", "start_copies"):
        count(type(backend_for("gpu")), name)
    count(cp, "asnumpy")
    return sizes


def reference() -> tuple[Any, Any]:
    return eigsh(as_operator(A, device="gpu"), **HOW)


def laplacian(X: Any) -> Any:
    """Apply A, in any library whose arrays can be written to."""
    Y = 0 * X
    stencil(N)(X, Y)
    return Y


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dense"])
def test_tensors_give_the_values_of_cupy_on_the_device(torch: Any, copied: list[int], form: str) -> None:
    host = torch.as_tensor(A.toarray()) if form == "dense" else Torch().sparse[form](A)
    theirs = host.cuda()
    ours = native(theirs)
    if form == "csr":
        assert ours.data.data.ptr == theirs.values().data_ptr()
    if form == "dense":
        assert ours.data.ptr == theirs.data_ptr()
    wanted, vectors = reference()
    copied.clear()
    w, X = eigsh(theirs, **HOW)
    assert max(copied) < VECTOR
    assert w.is_cuda
    assert X.is_cuda
    if form == "csr":
        assert (native(w) == wanted).all()
        assert (native(X) == vectors).all()
    np.testing.assert_allclose(native(w).get(), wanted.get(), atol=1e-10)
    residual = as_operator(A, device="gpu").apply(X).array - native(X) * native(w)
    assert float(abs(residual).max()) < 1e-6


def test_a_tensor_function_works_on_the_blocks_themselves(torch: Any, cp: Any, copied: list[int]) -> None:
    pointers: list[int] = []

    def seen(X: Any) -> Any:
        assert X.is_cuda
        pointers.append(X.data_ptr())
        return laplacian(X)

    example = torch.zeros(0, device="cuda", dtype=torch.float64)
    op = as_operator(seen, shape=A.shape, like=example)
    assert op.device.startswith("cuda")
    V = BlockVector.random(N**3, 4, rng=1, device="gpu")
    Y = op @ V
    assert pointers == [V.array.data.ptr]
    assert float(abs((Y - as_operator(A, device="gpu") @ V).array).max()) < 1e-13
    copied.clear()
    w, X = eigsh(seen, **HOW, shape=A.shape, like=example)
    assert max(copied) < VECTOR
    assert X.is_cuda
    np.testing.assert_allclose(w.cpu().numpy(), reference()[0].get(), atol=1e-10)


def test_start_blocks_and_results_share_memory(torch: Any, cp: Any) -> None:
    tensor = torch.ones(1000, 2, device="cuda", dtype=torch.float64)
    assert BlockVector(tensor).array.data.ptr == tensor.data_ptr()
    array = cp.ones((1000, 2))
    assert ArrayKind("torch").share(array).data_ptr() == array.data.ptr
    v0 = torch.ones(N**3, 1, device="cuda", dtype=torch.float64)
    w = eigsh(as_operator(A, device="gpu"), **HOW, v0=v0, like=torch, return_eigenvectors=False)
    np.testing.assert_allclose(w.cpu().numpy(), reference()[0].get(), atol=1e-10)


def test_a_function_runs_on_the_stream_of_its_blocks(torch: Any, cp: Any) -> None:
    def product(X: Any) -> Any:
        assert torch.cuda.current_stream().cuda_stream == cp.cuda.get_current_stream().ptr
        return laplacian(X)

    how = {**HOW, "shape": A.shape, "like": torch.zeros(0, device="cuda", dtype=torch.float64)}
    wanted = eigsh(product, **how)
    with cp.cuda.Stream(non_blocking=True) as stream:
        first = eigsh(product, **how)
        stream.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        second = eigsh(product, **how)
    torch.cuda.synchronize()
    for w, X in (first, second):
        assert torch.equal(w, wanted[0])
        assert torch.equal(X, wanted[1])


def test_jax_arrays_and_functions_stay_on_the_gpu(jax: Any, cp: Any, copied: list[int]) -> None:
    from jax.experimental import sparse

    matrix = sparse.BCSR.from_scipy_sparse(A.tocsr())
    wanted = reference()[0].get()
    copied.clear()
    for w, X in (
        eigsh(matrix, **HOW),
        eigsh(jax.jit(lambda X: matrix @ X), **HOW, shape=A.shape, device="gpu"),
    ):
        assert {w.device.platform, X.device.platform} == {"gpu"}
        np.testing.assert_allclose(np.asarray(w), wanted, atol=1e-10)
    assert max(copied) < VECTOR
