"""Kernels that pass over the rows of a matrix, so that these are not copied to the host.

Each warp takes a piece of the rows and stores its counts, which the host adds up, or a number per row. Where
results depend on the pieces before, a second launch takes the sums over those. See
``cuda/sparse/spmmv_pieces.cuh``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..limits import WARP, ceil_div
from ..problem import is_complex
from ..source import c_type, render
from .arrays import Array, Load, address, namespace, to_host

KERNELS = ("structure", "units", "layout", "diagonal")
_ROUNDS = 4  # blocks of rows per lane: of 32 rows each, 1e7 rows give a multiprocessor some 20 warps
_WARPS = 4  # per block of threads


def count_pieces(n_rows: int, rows: int) -> int:
    """Count the pieces of a matrix in blocks of `rows` rows."""
    return ceil_div(n_rows, rows * WARP * _ROUNDS)


def source(kernel: str, index: str, dtype: str = "float64") -> str:
    """Generate the CUDA source of one of the `KERNELS` for indices of a type, and entries of another."""
    types = {"Index": {"int32": "int", "int64": "long long"}[index], "Real": c_type(dtype)}
    constants = {"ROUNDS": _ROUNDS, "WARPS": _WARPS}
    return render(_name(kernel, index), f"sparse/spmmv_{kernel}.cu", constants, types)


def _name(kernel: str, index: str) -> str:
    return f"spmmv_{kernel}_i{8 * np.dtype(index).itemsize}"


def launch(
    load: Load, kernel: str, indptr: Array, n_warps: int, *arguments: Any, dtype: str = "float64"
) -> None:
    """Queue one of the `KERNELS`, which takes the row pointers, the number of rows, and then `arguments`.

    These are numbers of NumPy, arrays, and None in the place of an array.
    """
    index = indptr.dtype.name
    given = (a if isinstance(a, np.generic) else address(a) for a in arguments)
    rows = address(indptr), np.int64(len(indptr) - 1)
    function = load(source(kernel, index, dtype), _name(kernel, index))
    function((ceil_div(n_warps, _WARPS), 1), (WARP * _WARPS,), (*rows, *given))


def diagonal(indptr: Array, indices: Array, data: Array, load: Load) -> Array:
    """Compute the diagonal of a Hermitian matrix of the GPU, in double precision, on the GPU."""
    n_rows, dtype = len(indptr) - 1, data.dtype.name
    values, parts = namespace(indptr).empty(n_rows, np.float64), np.int32(1 + is_complex(dtype))
    if n_rows:
        pieces = count_pieces(n_rows, WARP)
        launch(load, "diagonal", indptr, pieces, indices, data, parts, values, dtype=dtype)
    return values


def add_up(counts: Array) -> tuple[Array, list[int]]:
    """Compute the sums of counts over the pieces before each, on their device, and over all; waits for it."""
    found = to_host(counts)
    sums = np.cumsum(found, axis=0)
    return namespace(counts).asarray(sums - found), sums[-1].tolist()
