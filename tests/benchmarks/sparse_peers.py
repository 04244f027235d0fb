"""Sparse products of other libraries on a GPU: cuSPARSE by algorithm and order of the block, and CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockvec.backends.cuda.device_csr import DeviceCsr
from blockvec.bench.cases import Call, turns
from blockvec.blocks.blockvector import BlockVector
from blockvec.kernels.problem import TYPES
from blockvec.operations.arrays import memory_of
from blockvec.operators.sparse import SparseOperator

# Values of cusparseSpMMAlg_t that CuPy's binding lacks.
SPMM_CSR_ALG1, SPMM_CSR_ALG2, SPMM_CSR_ALG3 = 4, 6, 12


def peers(
    operators: Sequence[SparseOperator], X: Sequence[BlockVector], Y: Sequence[BlockVector]
) -> dict[str, Call]:
    """Make calls of Y = A X on sets of operands, by name of the peer.

    Column-major ones read the memory of X as a column-major block of the same shape: the result differs, the
    work is that of column-major blocks.
    """
    matrices: list[Any] = [operator.prepared for operator in operators]
    calls = {
        "cupy": turns(lambda S, V: S @ V, [_cupy_matrix(S) for S in matrices], [block.array for block in X])
    }
    if X[0].n_cols > 1:
        for name, algorithm, row_major in (
            ("cusparse_alg2", SPMM_CSR_ALG2, True),
            ("cusparse_alg3", SPMM_CSR_ALG3, True),
            ("cusparse_columns", SPMM_CSR_ALG1, False),
        ):
            operands = zip(matrices, X, Y, strict=True)
            products = [_Product(*each, algorithm, row_major) for each in operands]
            calls[name] = turns(_Product.run, products)
    return calls


def _cupy_matrix(S: DeviceCsr) -> Any:
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix((S.data, S.indices, S.indptr), shape=S.shape)


class _Product:
    """One product, described to cuSPARSE once, so that a call only launches the kernel."""

    def __init__(self, S: DeviceCsr, X: BlockVector, Y: BlockVector, algorithm: int, row_major: bool) -> None:
        import cupy
        from cupy.cuda import device
        from cupy_backends.cuda.libs import cusparse

        self._kept = (S, X, Y)
        dtype = X.dtype.name
        self._factors = np.array([1, 0], dtype)
        order = cusparse.CUSPARSE_ORDER_ROW if row_major else cusparse.CUSPARSE_ORDER_COL
        cuda_type, plain = TYPES[dtype].cuda, cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE
        self._blocks = [
            cusparse.createDnMat(
                *block.shape,
                block.shape[1 if row_major else 0],
                memory_of(block.array).address,
                cuda_type,
                order,
            )
            for block in (X, Y)
        ]
        alpha = self._factors.ctypes.data
        beta = alpha + self._factors.itemsize
        left, right = self._blocks
        head = (device.get_cusparse_handle(), plain, plain)
        self._operands = (*head, alpha, S.descriptor(dtype), left, beta, right)
        size = cusparse.spMM_bufferSize(*self._operands, cuda_type, algorithm)
        self._workspace = cupy.empty(max(size, 1), np.int8)
        self._how = (cuda_type, algorithm, self._workspace.data.ptr)
        self._library = cusparse

    def run(self) -> None:
        """Queue the product on the current stream."""
        self._library.spMM(*self._operands, *self._how)

    def __del__(self) -> None:
        """Destroy the descriptors of the blocks."""
        for block in getattr(self, "_blocks", ()):
            self._library.destroyDnMat(block)
