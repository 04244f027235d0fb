"""The two products of tall blocks through cuBLAS, on row-major CuPy arrays.

cuBLAS is column-major, where a row-major K x M block is an M x K matrix, so the transposed products are
asked for,

    C^T = B^T conj(A)        B^T = C^T A^T

and no operand is copied or transposed. Real and complex blocks are multiplied through the interleaved real
view of the complex one (K x 2M), as on the host. Where precisions differ, the narrower operand is converted,
a chunk of rows at a time.

CuPy refuses cuBLAS calls while a stream is being captured into a graph.
"""

from __future__ import annotations

from ...kernels.limits import ceil_div, round_up
from ...kernels.problem import TYPES, TsmmProblem, TsmttsmProblem, is_complex, itemsize, promote, real_type
from ...system.frozen import frozen
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
MIN_SPLIT_BYTES = 4 << 20  # below, one call is as fast as its launch


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


@frozen
class _Rows:
    """A tall operand for cuBLAS: of type `wide`, with `parts` columns per column (2: re and im)."""

    array: Array
    wide: str
    parts: int

    @classmethod
    def of(cls, array: Array, work: str) -> _Rows:
        """View an operand of a product in type `work`, which may be real where the operand is complex."""
        own = type_name(array)
        return cls(array, promote(own, real_type(work)), 2 if is_complex(own) and not is_complex(work) else 1)

    @property
    def width(self) -> int:
        """Columns of type `work`."""
        return int(self.array.shape[1]) * self.parts

    @property
    def converts(self) -> bool:
        return self.wide != type_name(self.array)

    @property
    def row_bytes(self) -> int:
        return max(1, int(self.array.shape[1]) * itemsize(self.wide))

    def read(self, gpu: Gpu, begin: int, end: int, *, copies: bool = False) -> tuple[Array, tuple[int, int]]:
        """Return rows (kept alive by the first result) and their address and leading dimension."""
        import cupy

        rows = self.array[begin:end]
        if self.converts or copies:
            source, rows = rows, cupy.empty(rows.shape, self.wide)
            copy(gpu, source, rows)
            return rows, (rows.data.ptr, self.width)
        return rows, (rows.data.ptr, leading_dimension(self.array) * self.parts)


def split_rows(problem: TsmttsmProblem, multiprocessors: int) -> int:
    """Return the rows of a part: enough parts to fill the device, and short chains in single precision."""
    rows = ceil_div(problem.K, PARTS_PER_MULTIPROCESSOR * multiprocessors)
    if real_type(problem.dtype) == "float32":
        rows = min(rows, MAX_SINGLE_PART_ROWS)
    return max(MIN_PART_ROWS, round_up(rows, 64))


def split_refusal(problem: TsmttsmProblem, multiprocessors: int) -> str:
    """Explain why a split along the rows is not faster than one cuBLAS call; empty if it is."""
    tall_bytes = problem.K * (problem.M + problem.N) * itemsize(problem.dtype)
    is_short = tall_bytes < MIN_SPLIT_BYTES and real_type(problem.dtype) == "float64"
    if is_short or problem.K // split_rows(problem, multiprocessors) < 2:
        return "few rows: one call is as fast"
    return ""


MAX_COLUMN_ROWS = 1 << 20


def one_call_refusal(problem: TsmttsmProblem) -> str:
    """Explain why one cuBLAS call is too slow or impossible; empty if it is neither.

    With one complex column it takes 67 ns per row for any other width (one H200, CUDA 13.0): nine seconds
    for 2 GiB, of which parts take a hundredth.
    """
    if is_complex(problem.dtype) and min(problem.M, problem.N) == 1 and problem.K > MAX_COLUMN_ROWS:
        return "one complex column of so many rows takes cuBLAS seconds: it is split"
    return ""


def is_faster(problem: TsmmProblem) -> bool:
    """Check whether cuBLAS is faster than our kernels: real blocks times more than 32 complex columns.

    These are more columns than the tensor-core kernels take; at 64 cuBLAS has 0.66 of the roofline,
    multiply-adds 0.39 (one H200, CUDA 13.0). In 240 drawn products without mixed types it never was the best
    by 10 per cent or more but once.
    """
    types = (problem.dtype_a, problem.dtype_c)
    return types == ("float64", "complex128") and min(problem.M, problem.N) > 32


def tsmttsm_split(
    gpu: Gpu, problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex
) -> None:
    """C = alpha A^H B + beta C as a batch of products of `split_rows` rows and a sum in a fixed order."""
    _by_parts(gpu, problem, A, B, C, alpha, beta, split_rows(problem, gpu.info.multiprocessors))


def tsmttsm(
    gpu: Gpu, problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex
) -> None:
    """C = alpha A^H B + beta C (A^T B when the problem is not `conj`), in one call where that is possible."""
    K, M, N = problem.K, problem.M, problem.N
    mixed = problem.dtype_a != problem.dtype_b
    if mixed or problem.same or 0 in (K, M, N) or K * max(problem.lda, problem.ldb) > MAX_INT:
        _by_parts(gpu, problem, A, B, C, alpha, beta, max(K, 1))
        return
    left, right = (A.data.ptr, problem.lda), (B.data.ptr, problem.ldb)
    _gemm(problem.dtype, _op(problem), (N, M, K), right, left, (C.data.ptr, N), alpha, beta)


def _op(problem: TsmttsmProblem) -> str:
    both_complex = is_complex(problem.dtype_a) and is_complex(problem.dtype_b)
    return "C" if problem.conj and both_complex else "T"


def _by_parts(
    gpu: Gpu,
    problem: TsmttsmProblem,
    A: Array,
    B: Array,
    C: Array,
    alpha: complex,
    beta: complex,
    part_rows: int,
) -> None:
    """Multiply parts of `part_rows` rows, as many at a time as the workspace holds, and sum them up."""
    import cupy

    M, N = C.shape
    if M == 0 or N == 0:
        return
    kinds = is_complex(problem.dtype_a), is_complex(problem.dtype_b)
    work = problem.dtype if kinds[0] == kinds[1] else real_type(problem.dtype)
    left, right = _Rows.of(A, work), _Rows.of(B, work)
    part_rows = min(part_rows, MAX_INT // max(problem.lda * left.parts, problem.ldb * right.parts))
    if left.converts or right.converts:
        part_rows = min(part_rows, max(1, CHUNK_BYTES // max(left.row_bytes, right.row_bytes)))
    group = max(1, min(MAX_BATCH, WORKSPACE_BYTES // (left.width * right.width * itemsize(work)))) * part_rows
    if left.converts or right.converts:
        chunk_parts = max(1, CHUNK_BYTES // max(left.row_bytes, right.row_bytes) // part_rows)
        group = min(group, chunk_parts * part_rows)

    # Real A, complex B: neighbouring columns are real and imaginary part of an element of C.
    dtype = problem.dtype if kinds[1] else work
    shape = (left.width, right.width * itemsize(work) // itemsize(dtype))

    def products(begin: int, end: int) -> Array:
        partials = cupy.empty((ceil_div(end - begin, part_rows), *shape), dtype)
        _multiply(gpu, left, right, begin, end, part_rows, work, _op(problem), partials)
        return partials

    n_groups = ceil_div(problem.K, group)
    if n_groups < 2:
        sums = products(0, problem.K)
    else:
        sums = cupy.empty((n_groups, *shape), promote(dtype, "float64"))
        for g in range(n_groups):
            fold(gpu, products(g * group, min((g + 1) * group, problem.K)), sums[g], 1, 0)
    left_complex = kinds[0] and not kinds[1]
    fold(*(gpu, sums, C, alpha, beta), left_complex=left_complex, conj=problem.conj, hermitian=problem.same)


def _multiply(
    gpu: Gpu,
    left: _Rows,
    right: _Rows,
    begin: int,
    end: int,
    part_rows: int,
    work: str,
    op: str,
    partials: Array,
) -> None:
    """Store the products of parts of `part_rows` rows, of which the last may have fewer."""
    if begin == end:
        return
    m, n = left.width, right.width
    count, rest = divmod(end - begin, part_rows)
    kept_a, (a, lda) = left.read(gpu, begin, end)
    # One operand twice is converted once.
    kept_b, (b, ldb) = (kept_a, (a, lda)) if left.array is right.array else right.read(gpu, begin, end)
    if count == 1:
        _gemm(work, op, (n, m, part_rows), (b, ldb), (a, lda), (partials.data.ptr, n))
    elif count:
        steps = (part_rows * ldb, part_rows * lda, m * n, count)
        _gemm(work, op, (n, m, part_rows), (b, ldb), (a, lda), (partials.data.ptr, n), batch=steps)
    if rest:
        done = count * part_rows * itemsize(work)
        tail_b, tail_a = (b + done * ldb, ldb), (a + done * lda, lda)
        _gemm(work, op, (n, m, rest), tail_b, tail_a, (partials[count].data.ptr, n))
    del kept_a, kept_b  # CuPy's pool hands their memory out again in stream order


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
    rows_a = _Rows(A, work, 1)
    ldb = problem.ldb * parts
    chunk = MAX_INT // max(problem.lda, ldb)
    copies = problem.inplace or rows_a.converts
    if copies:
        copied_bytes = CHUNK_BYTES if rows_a.converts else INPLACE_BYTES
        chunk = min(chunk, max(1, copied_bytes // rows_a.row_bytes))
    for begin in range(0, K, chunk):
        end = min(begin + chunk, K)
        _kept, left = rows_a.read(gpu, begin, end, copies=copies)
        out = (B.data.ptr + begin * ldb * itemsize(work), ldb)
        sizes = (N * parts, end - begin, M)
        _gemm(work, "N", sizes, (C.data.ptr, N * parts), left, out, alpha, beta)


def square_product(A: Array, B: Array, C: Array) -> None:
    """Multiply two square matrices densely, for the arithmetic ceiling."""
    n = A.shape[0]
    _gemm(type_name(A), "N", (n, n, n), (B.data.ptr, n), (A.data.ptr, n), (C.data.ptr, n))
