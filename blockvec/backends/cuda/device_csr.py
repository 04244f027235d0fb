"""Sparse matrices on a GPU."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse

from ...kernels.problem import SpmmvProblem
from ...kernels.sparse import pieces
from ...kernels.sparse.codes import encode
from ...kernels.sparse.csr_plan import MOST_SHORT_ROWS, Plan
from ..base import DeviceArray as Array
from ..base import is_cupy
from .device import Gpu
from .elementwise import weighted_sum

# Of the matrices that launches of several steps multiply by: bytes of an index, and most entries of a row per
# lane, for which all other lanes would wait.
INDEX_BYTES, LONG = 4, 32
CODE_BLOCKS = 4  # per multiprocessor, of the kernel that encodes entries


class DeviceCsr(Plan):
    """A sparse matrix in CSR form on a GPU; the arrays of a CuPy matrix are shared as far as possible."""

    def __init__(self, matrix: Any, gpu: Gpu) -> None:
        import cupy

        self.shape, self._gpu = (int(matrix.shape[0]), int(matrix.shape[1])), gpu
        structure = getattr(matrix, "structure", None)
        indptr, indices = matrix.indptr, matrix.indices
        fits = max(len(indices), self.shape[1]) <= np.iinfo(np.int32).max
        if fits and self.shape[0] <= MOST_SHORT_ROWS:  # most kernels take no other indices
            indptr, indices = (part.astype(np.int32, copy=False) for part in (indptr, indices))
        if not is_cupy(matrix.data):
            structure = pieces.structure_of(indptr, indices)
        indptr, indices, data = map(cupy.asarray, (indptr, indices, matrix.data))
        super().__init__(indptr, indices, data, structure=structure, load=gpu.load)
        blocks = gpu.info.multiprocessors * CODE_BLOCKS
        with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):
            self.codes = encode(self, self.shape[1], blocks, gpu.load)
        self.coded = self.codes is not None
        # Launches of blockvec's kernels and their bytes of workspace, by family and problem.
        self.bound: dict[tuple[str, SpmmvProblem], tuple[Callable[..., None], int]] = {}
        self.forms: dict[str, Any] = {}  # by family; None if the matrix has no such form, see `sparse`
        self.waited: Counter[str] = Counter()  # products that a family's form would have made faster

    def to_host(self) -> Any:
        """Copy the matrix to SciPy's CSR form."""
        arrays = self.data.get(), self.indices.get(), self.indptr.get()
        return scipy.sparse.csr_array(arrays, shape=self.shape)

    def transposed(self) -> Any:
        """Make the transpose in CuPy's CSR form, for indices of 32 bits.

        CuPy's `T` would compile two kernels for a check of the indices.
        """
        from cupyx.scipy import sparse

        arrays = self.data, self.indices, self.indptr
        return sparse.csc_matrix(arrays, shape=self.shape[::-1]).tocsr()

    def scaled(self, factor: float, dtype: np.dtype[Any]) -> Any:
        """Multiply the entries and convert them to a type; row pointers and columns are shared."""
        import cupy

        data = cupy.empty(self.data.shape, dtype)
        weighted_sum(self._gpu, self.data[:, None], None, data[:, None], float(factor))
        arrays = {"indptr": self.indptr, "indices": self.indices, "data": data}
        known = {"shape": self.shape, "dtype": data.dtype, "nnz": self.nnz}
        return SimpleNamespace(**known, **arrays, structure=self.structure)


def lanes_per_row(matrix: Any, dtype: Any) -> int:
    """Choose the lanes that multiply a row; zero where launches of steps do not multiply by the matrix."""
    is_alike = isinstance(matrix, DeviceCsr) and matrix.data.dtype == dtype
    if not is_alike or matrix.index_bytes != INDEX_BYTES:
        return 0
    mean = matrix.nnz / max(matrix.shape[0], 1)
    lanes = next((lanes for lanes in (2, 4, 8, 16) if 2 * lanes > mean), 32)
    return lanes if matrix.longest <= LONG * lanes else 0


def diagonal(gpu: Gpu, matrix: Any) -> Array:
    """Compute the diagonal of a Hermitian matrix of CuPy; its own method compiles for seconds, and sorts it.

    A matrix in CSC form has the same one.
    """
    return pieces.diagonal(matrix.indptr, matrix.indices, matrix.data, gpu.load)


def to_device(array: np.ndarray[Any, Any]) -> Array:
    """Copy an array, and wait: other streams will read it, too."""
    import cupy

    copy = cupy.asarray(array)
    cupy.cuda.get_current_stream().synchronize()
    return copy


def csr(_gpu: Gpu, matrix: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a sparse or dense matrix, of the host or a GPU, to CuPy's CSR form in canonical format."""
    from cupyx.scipy import sparse

    if isinstance(matrix, np.ndarray):  # CuPy takes dense matrices of its own, and sparse ones of SciPy
        matrix = scipy.sparse.csr_array(matrix)
    rows = sparse.csr_matrix(matrix)
    if rows.dtype != dtype:
        rows = rows.astype(dtype)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    if rows.indices.dtype != np.int32 and rows.nnz <= np.iinfo(np.int32).max:
        arrays = rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
        rows = sparse.csr_matrix(arrays, shape=rows.shape)
    return rows
