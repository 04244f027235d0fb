"""SpMMV through cuSPARSE on row-major CuPy blocks, without the column-major copies of CuPy's own product.

cuSPARSE takes row-major blocks with any leading dimension through its generic interface. A real matrix
times a complex block is a product of twice as many real columns. Terms that cuSPARSE lacks (a shift, a
complex factor on real data) take a pass of blockvec's own over Y.

CuPy refuses cuSPARSE calls while a stream is being captured into a graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...kernels.problem import TYPES, SpmmvProblem, is_complex, promote, real_type
from ..base import DeviceArray as Array
from ..base import leading_dimension
from .device import Gpu, scalar_pointers, type_name
from .device_csr import DeviceCsr
from .elementwise import copy, scale, weighted_sum

# Values of enumerations that CuPy's binding lacks.
SPMM_CSR_ALG2 = 6  # NVIDIA's choice for row-major blocks
SPMV_CSR_ALG1 = 2
SPMV_CSR_ALG2 = 3  # bit-identical from run to run


def spmmv(
    gpu: Gpu,
    problem: SpmmvProblem,
    S: DeviceCsr,
    X: Array,
    Y: Array,
    alpha: complex,
    beta: complex,
    shift: Any,
) -> None:
    """Y = alpha (S - shift I) X + beta Y; `shift`: one value or one per column. Y must not overlap X."""
    import cupy

    if 0 in Y.shape:
        return
    by_parts = is_complex(problem.dtype_x) and not is_complex(problem.dtype_matrix)
    if S.nnz == 0:
        # cuSPARSE's kernels need not support a matrix without entries.
        scale(gpu, Y, beta)
    elif by_parts and complex(alpha).imag == complex(beta).imag == 0:
        _multiply(gpu, problem, S, X, Y, complex(alpha).real, complex(beta).real)
    elif by_parts:
        product = Y if problem.beta == "zero" else cupy.empty(Y.shape, Y.dtype)
        _multiply(gpu, problem, S, X, product, 1, 0)
        weighted_sum(gpu, product, None if product is Y else Y, Y, (alpha, None), (beta, None))
    else:
        _multiply(gpu, problem, S, X, Y, alpha, beta)
    if problem.shift == "scalar":
        weighted_sum(gpu, X, Y, Y, (-alpha * shift, None), (1, None))
    elif problem.shift == "column":
        weighted_sum(gpu, X, Y, Y, (-alpha, shift), (1, None))


def _multiply(
    gpu: Gpu, problem: SpmmvProblem, S: DeviceCsr, X: Array, Y: Array, alpha: complex, beta: complex
) -> None:
    """Y = alpha S X + beta Y in one call of cuSPARSE; X is converted if its type is narrower than Y's."""
    import cupy

    dtype, parts = problem.dtype, 1
    if is_complex(dtype) and not is_complex(problem.dtype_matrix):
        dtype, parts = real_type(dtype), 2
    wide = promote(type_name(X), dtype)
    contiguous = leading_dimension(X) == X.shape[1]
    # One column is a vector; one of several columns is copied, as cuSPARSE has no strided vectors.
    if type_name(X) != wide or (X.shape[1] * parts == 1 and not contiguous):
        source, X = X, cupy.empty(X.shape, wide)
        copy(gpu, source, X)
    width = X.shape[1] * parts
    if width == 1:
        target = Y if leading_dimension(Y) == 1 else cupy.empty(Y.shape, Y.dtype)
        if target is Y:
            _spmv(S, X, Y, dtype, alpha, beta)
        else:
            _spmv(S, X, target, dtype, 1, 0)
            weighted_sum(gpu, target, None if beta == 0 else Y, Y, (alpha, None), (beta, None))
    else:
        _spmm(S, X, Y, dtype, width, parts, alpha, beta)


def _spmm(
    S: DeviceCsr, X: Array, Y: Array, dtype: str, width: int, parts: int, alpha: complex, beta: complex
) -> None:
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse

    handle = device.get_cusparse_handle()
    _memory, (p_alpha, p_beta) = scalar_pointers(dtype, alpha, beta)
    cuda_type, plain = TYPES[dtype].cuda, cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE
    blocks = []
    try:
        for block in (X, Y):
            ld = leading_dimension(block) * parts
            extents = (block.shape[0], width, ld, block.data.ptr)
            blocks.append(cusparse.createDnMat(*extents, cuda_type, cusparse.CUSPARSE_ORDER_ROW))
        operands = (handle, plain, plain, p_alpha, S.descriptor(dtype), blocks[0], p_beta, blocks[1])
        size = cusparse.spMM_bufferSize(*operands, cuda_type, SPMM_CSR_ALG2)
        workspace = cupy.empty(max(size, 1), np.int8)
        cusparse.spMM(*operands, cuda_type, SPMM_CSR_ALG2, workspace.data.ptr)
    finally:
        for descriptor in blocks:
            cusparse.destroyDnMat(descriptor)


def _spmv(S: DeviceCsr, x: Array, y: Array, dtype: str, alpha: complex, beta: complex) -> None:
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cusparse

    handle = device.get_cusparse_handle()
    _memory, (p_alpha, p_beta) = scalar_pointers(dtype, alpha, beta)
    cuda_type, plain = TYPES[dtype].cuda, cusparse.CUSPARSE_OPERATION_NON_TRANSPOSE
    # The second algorithm of cuSPARSE before 13.0 ignores y if there is one row or one column.
    algorithm = SPMV_CSR_ALG1 if min(S.shape) == 1 else SPMV_CSR_ALG2
    vectors = []
    try:
        for vector in (x, y):
            vectors.append(cusparse.createDnVec(vector.shape[0], vector.data.ptr, cuda_type))
        operands = (handle, plain, p_alpha, S.descriptor(dtype), vectors[0], p_beta, vectors[1])
        size = cusparse.spMV_bufferSize(*operands, cuda_type, algorithm)
        workspace = cupy.empty(max(size, 1), np.int8)
        cusparse.spMV(*operands, cuda_type, algorithm, workspace.data.ptr)
    finally:
        for descriptor in vectors:
            cusparse.destroyDnVec(descriptor)
