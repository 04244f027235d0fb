"""The two products of tall blocks through cuBLAS, on row-major CuPy arrays.

cuBLAS is column-major, where a row-major K x M block is an M x K matrix, so the transposed products are
asked for,

    C^T = B^T conj(A)        B^T = C^T A^T

and no operand is copied or transposed. Where types differ, the narrower operand is converted, a chunk of rows
at a time; a real block times a complex matrix is a real product.

CuPy refuses cuBLAS calls while a stream is being captured into a graph.
"""

from __future__ import annotations

from ...kernels.limits import ceil_div, round_up
from ...kernels.problem import TYPES, TsmmProblem, TsmttsmProblem, is_complex, itemsize, promote, real_type
from ..base import DeviceArray as Array
from ..base import leading_dimension
from .device import MAX_INT, Gpu, scalar_pointers, type_name
from .elementwise import copy, fold, scale

WORKSPACE_BYTES = 64 << 20  # partial products at a time
CHUNK_BYTES = 32 << 20  # converted or copied rows at a time: read again while they are in L2
INPLACE_BYTES = 256 << 20  # copied rows at a time of what is overwritten: with fewer, calls take longest
MAX_BATCH = 1 << 14
PARTS_PER_MULTIPROCESSOR = 8
MIN_PART_ROWS = 512  # shorter parts spend their time on the epilogue
MAX_SINGLE_PART_ROWS = 4096  # single precision: bounds the chains that cuBLAS sums up in single precision


def _gemm(
    dtype: str,
    op: str,
    sizes: tuple[int, int, int],
    left: tuple[int, int],
    right: tuple[int, int],
    out: tuple[int, int],
    alpha: complex = 1,
    beta: complex = 0,
    batch: tuple[int, int, int, int] | None = None,
) -> None:
    """Z (m x n) = alpha X op(Y) + beta Z in column-major terms; operands are (address, leading dimension).

    `op` is "N", "T" or "C".
    `batch` holds the distances in elements between the X, Y and Z of a batch, and their number.
    """
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    handle = device.get_cublas_handle()
    operations = cublas.CUBLAS_OP_N, getattr(cublas, f"CUBLAS_OP_{op}")
    _memory, (p_alpha, p_beta) = scalar_pointers(dtype, alpha, beta)
    mode = cublas.getPointerMode(handle)  # a user may have left the handle with scalars on the device
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    try:
        if batch is None:
            call = getattr(cublas, TYPES[dtype].letter + "gemm")
            call(handle, *operations, *sizes, p_alpha, *left, *right, p_beta, *out)
        else:
            step_x, step_y, step_z, count = batch
            call = getattr(cublas, TYPES[dtype].letter + "gemmStridedBatched")
            operands = (p_alpha, *left, step_x, *right, step_y, p_beta, *out, step_z, count)
            call(handle, *operations, *sizes, *operands)
    finally:
        cublas.setPointerMode(handle, mode)


def _rows(
    gpu: Gpu, array: Array, begin: int, end: int, dtype: str, *, copies: bool = False
) -> tuple[Array, tuple[int, int]]:
    """Return rows of a type (kept alive by the first result) and their address and leading dimension."""
    import cupy

    rows = array[begin:end]
    if copies or type_name(array) != dtype:
        source, rows = rows, cupy.empty(rows.shape, dtype)
        copy(gpu, source, rows)
    return rows, (rows.data.ptr, leading_dimension(rows))


def is_faster(problem: TsmmProblem) -> bool:
    """Check whether cuBLAS is faster than our kernels: real blocks times more than 32 complex columns.

    These are more columns than the tensor-core kernels take; at 64 cuBLAS has 0.66 of the roofline,
    multiply-adds 0.39 (one H200, CUDA 13.0). In 240 drawn products without mixed types it never was the best
    by 10 per cent or more but once.
    """
    types = (problem.dtype_a, problem.dtype_c)
    return types == ("float64", "complex128") and min(problem.M, problem.N) > 32


def tsmttsm(
    gpu: Gpu, problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex
) -> None:
    """C = alpha A^H B + beta C (A^T B when the problem is not `conj`).

    A batch of products of parts, enough to fill the device and with short chains in single precision, as many
    at a time as the workspace holds, and a sum in a fixed order. One call for all rows would take seconds for
    one complex column of many rows.
    """
    import cupy

    K, M, N, dtype = problem.K, problem.M, problem.N, problem.dtype
    if 0 in (M, N):
        return
    part = ceil_div(K, PARTS_PER_MULTIPROCESSOR * gpu.info.multiprocessors)
    if real_type(dtype) == "float32":
        part = min(part, MAX_SINGLE_PART_ROWS)
    part = min(max(MIN_PART_ROWS, round_up(part, 64)), MAX_INT // max(problem.lda, problem.ldb))
    batch = min(MAX_BATCH, WORKSPACE_BYTES // (M * N * itemsize(dtype)))
    if problem.dtype_a != problem.dtype_b:
        converted_rows = max(1, CHUNK_BYTES // (max(M, N) * itemsize(dtype)))
        part = min(part, converted_rows)
        batch = min(batch, converted_rows // part)
    group = max(1, batch) * part
    n_groups = ceil_div(K, group)
    if n_groups < 2:
        sums = _products(gpu, problem, A, B, 0, K, part)
    else:
        sums = cupy.empty((n_groups, M, N), promote(dtype, "float64"))
        for g in range(n_groups):
            fold(gpu, _products(gpu, problem, A, B, g * group, min((g + 1) * group, K), part), sums[g], 1, 0)
    fold(gpu, sums, C, alpha, beta, hermitian=problem.same)


def _products(
    gpu: Gpu, problem: TsmttsmProblem, A: Array, B: Array, begin: int, end: int, part_rows: int
) -> Array:
    """Compute the products of parts of `part_rows` rows, of which the last may have fewer."""
    import cupy

    m, n, dtype = problem.M, problem.N, problem.dtype
    partials = cupy.empty((ceil_div(end - begin, part_rows), m, n), dtype)
    op, (count, rest) = "C" if problem.conj else "T", divmod(end - begin, part_rows)
    kept_a, (a, lda) = _rows(gpu, A, begin, end, dtype)
    kept_b, (b, ldb) = _rows(gpu, B, begin, end, dtype)
    if count:
        steps = (part_rows * ldb, part_rows * lda, m * n, count)
        _gemm(dtype, op, (n, m, part_rows), (b, ldb), (a, lda), (partials.data.ptr, n), batch=steps)
    if rest:
        done = count * part_rows * itemsize(dtype)
        tail_b, tail_a = (b + done * ldb, ldb), (a + done * lda, lda)
        _gemm(dtype, op, (n, m, rest), tail_b, tail_a, (partials[count].data.ptr, n))
    del kept_a, kept_b  # CuPy's pool hands their memory out again in stream order
    return partials


def tsmm(gpu: Gpu, problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex) -> None:
    """B = alpha A C + beta B; B may be the leading columns of A itself, which are then copied in chunks."""
    K, M, N = problem.K, problem.M, problem.N
    if K == 0 or N == 0:
        return
    if M == 0:
        scale(gpu, B, beta)
        return
    work, parts = problem.dtype, 1
    C = C.astype(work, copy=False)
    if is_complex(work) and not is_complex(problem.dtype_a) and complex(beta).imag == 0:
        # Real rows times a complex matrix: its real view has the columns of B's.
        if complex(alpha).imag != 0:
            C, alpha = C * alpha, 1
        work, parts = real_type(work), 2
        C = C.astype(problem.dtype, copy=False).view(work)
    ldb = problem.ldb * parts
    chunk = MAX_INT // max(problem.lda, ldb)
    converts = type_name(A) != work
    copies = problem.inplace or converts
    if copies:
        copied_bytes = CHUNK_BYTES if converts else INPLACE_BYTES
        chunk = min(chunk, max(1, copied_bytes // (M * itemsize(work))))
    for begin in range(0, K, chunk):
        end = min(begin + chunk, K)
        _kept, left = _rows(gpu, A, begin, end, work, copies=copies)
        out = (B.data.ptr + begin * ldb * itemsize(work), ldb)
        sizes = (N * parts, end - begin, M)
        _gemm(work, "N", sizes, (C.data.ptr, N * parts), left, out, alpha, beta)


def square_product(A: Array, B: Array, C: Array) -> None:
    """Multiply two square matrices densely, for the arithmetic ceiling."""
    n = A.shape[0]
    _gemm(type_name(A), "N", (n, n, n), (B.data.ptr, n), (A.data.ptr, n), (C.data.ptr, n))
