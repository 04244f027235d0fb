"""Arrays of torch and JAX for tests, and a stand-in for torch where it is not installed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

LIBRARIES = ("pretended", "torch", "jax")


def host_copies(run: Callable[[], Any]) -> tuple[Any, list[int]]:
    """Run something; return its result and the bytes of each copy between host and GPU, by CUDA's profiler.

    The list is empty where the profiler cannot be used.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        result = run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    copies = [event for event in events if event.get("cat") == "gpu_memcpy"]
    return result, [
        int(event["args"]["bytes"]) for event in copies if any(d in event["name"] for d in ("DtoH", "HtoD"))
    ]


def stencil(n: int) -> Callable[[Any, Any], None]:
    """Make the product of `laplace3d` with a block, for every library whose arrays can be written to."""

    def apply(X: Any, out: Any) -> None:
        u, y = (block.reshape(n, n, n, -1) for block in (X, out))
        y[...] = u
        y *= 6
        y[1:] -= u[:-1]
        y[:-1] -= u[1:]
        y[:, 1:] -= u[:, :-1]
        y[:, :-1] -= u[:, 1:]
        y[:, :, 1:] -= u[:, :, :-1]
        y[:, :, :-1] -= u[:, :, 1:]

    return apply


class Library:
    """What tests need of a library: its arrays, sparse matrices, functions, and addresses."""

    name = "torch"
    sparse: dict[str, Callable[[Any], Any]]
    array: Callable[[Any], Any]
    array_type: type
    compile: Callable[[Any], Any] = staticmethod(lambda function: function)

    @staticmethod
    def address(array: Any) -> int:
        return int(array.data_ptr())

    def is_mine(self, array: Any) -> bool:
        return isinstance(array, self.array_type)


class Torch(Library):
    def __init__(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        self.array, self.array_type = torch.as_tensor, torch.Tensor

        def compressed(make: Any, form: str) -> Callable[[Any], Any]:
            def tensor(A: Any) -> Any:
                A = A.asformat(form)
                return make(*map(torch.as_tensor, (A.indptr, A.indices, A.data)), size=A.shape)

            return tensor

        def coo(A: Any) -> Any:
            A = sp.coo_array(A)
            rows, columns = (np.tile(part, 2).astype(np.int64) for part in A.coords)
            values = torch.as_tensor(np.tile(A.data / 2, 2))  # each entry in two parts
            return torch.sparse_coo_tensor(torch.as_tensor(np.stack([rows, columns])), values, A.shape)

        self.sparse = {
            "csr": compressed(torch.sparse_csr_tensor, "csr"),
            "csc": compressed(torch.sparse_csc_tensor, "csc"),
            "coo": coo,
        }


class Jax(Library):
    name = "jax"

    def __init__(self) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # three quarters of a GPU's memory
        jax = pytest.importorskip("jax", reason="JAX is not installed")
        from jax.experimental import sparse

        self.array, self.array_type, self.compile = jax.numpy.asarray, jax.Array, jax.jit
        padded = 7  # entries beyond the shape, as compiled functions leave them

        def bcoo(A: Any) -> Any:
            return sparse.BCOO.fromdense(A.toarray(), nse=A.nnz + padded)

        self.sparse = {"bcoo": bcoo, "bcsr": lambda A: sparse.BCSR.from_bcoo(bcoo(A))}

    @staticmethod
    def address(array: Any) -> int:
        return int(array.unsafe_buffer_pointer())


class Tensor:
    """The part of a torch tensor that blockvec uses."""

    layout, requires_grad = "torch.strided", False

    def __init__(self, array: Any) -> None:
        self.host = np.asarray(array)
        self.shape, self.ndim = self.host.shape, self.host.ndim
        self.dtype = type("dtype", (), {"__str__": lambda _: f"torch.{self.host.dtype.name}"})()
        self.__dlpack_device__ = self.host.__dlpack_device__

    def __dlpack__(self, **options: Any) -> Any:
        return self.host.__dlpack__(**options)

    def detach(self) -> Tensor:
        return self

    resolve_conj = resolve_neg = detach

    def data_ptr(self) -> int:
        return self.host.ctypes.data

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.host[index])

    def __mul__(self, factor: float) -> Tensor:
        return Tensor(self.host * factor)

    __rmul__ = __mul__

    def __rmatmul__(self, matrix: Any) -> Tensor:
        return Tensor(matrix @ self.host)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.host

    __array_ufunc__ = None


class SparseTensor(Tensor):
    """A sparse tensor in CSR form."""

    layout = "torch.sparse_csr"

    def __init__(self, A: Any) -> None:
        super().__init__(A.data)
        self.shape, self._matrix = A.shape, A

    def values(self) -> Tensor:
        return Tensor(self._matrix.data)

    def col_indices(self) -> Tensor:
        return Tensor(self._matrix.indices.astype(np.int64))

    def crow_indices(self) -> Tensor:
        return Tensor(self._matrix.indptr.astype(np.int64))


class Pretended(Library):
    array, array_type = Tensor, Tensor
    sparse = {"csr": lambda A: SparseTensor(A.tocsr())}  # noqa: RUF012


Tensor.__module__ = SparseTensor.__module__ = "torch"


@contextlib.contextmanager
def library(name: str) -> Iterator[Library]:
    """Provide a library by its name, in double precision; skip the test where it is not installed."""
    if name == "jax":
        lent = Jax()
        import jax

        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", True)
        with jax.default_device(jax.devices("cpu")[0]):
            yield lent
        jax.config.update("jax_enable_x64", before)
    elif name == "torch":
        yield Torch()
    else:
        with pytest.MonkeyPatch.context() as patch:
            torch: Any = types.ModuleType("torch")
            torch.Tensor, torch.from_dlpack = Tensor, lambda array: Tensor(np.from_dlpack(array))
            patch.setitem(sys.modules, "torch", torch)
            yield Pretended()
