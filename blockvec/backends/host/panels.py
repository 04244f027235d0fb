"""Products of tall blocks on the host, on row panels that stay in cache, distributed over threads.

Complex operands are multiplied through their interleaved real view: a row-major K x M complex block is a
K x 2M real one, and both products become real matrix products of twice the width,

    G = A_r^T B_r   (2M x 2N, holds all four real products of A^H B and A^T B)
    B_r = A_r [[Re C, Im C], [-Im C, Re C]]   (blocks of 2 x 2, interleaved)

which take the same arithmetic as a complex product, need no conjugated copy of A, and cover real times
complex operands.

BLAS runs at memory bandwidth on a short panel, whose operands it need not pack, and far below it on millions
of rows. One batched ``matmul`` covers many panels, because each return to the interpreter may wait some 50 us
for its lock while another thread holds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ...kernels.problem import TsmmProblem, TsmttsmProblem, is_complex
from ..base import Array
from .threads import map_rows

Result = TypeVar("Result")

PANEL_ROWS = 256  # two panels of 8 columns are 32 KiB and fit an L1 cache
WIDE_PANEL_ROWS = 1024  # the longest chain of additions inside a product
WIDE = 32  # real columns above which BLAS packs its operands into the cache and is faster on long panels
LINE_BYTES = 64  # narrower rows are folded up to this: a cache line, and one AVX-512 register
TSMM_PANEL_BYTES = 32 << 10  # input and output of one product, within an L1 cache
REAL_MATRIX_BYTES = 96 << 10  # real form of TSMM's small matrix: a larger one is evicted between two panels
CHUNK_BYTES = 512 << 10  # intermediate results per thread: within an L2 cache, long against waking a thread
SERIAL_BYTES = 4 << 20  # one thread completes less than this before another has woken up
MAX_RANGES = 4  # per thread: costs 4 per cent on idle cores, saves up to half if one of them is busy
# Arguments of `numpy.errstate`. BLAS sets exception flags for lanes of registers that hold no operands, and
# folded rows have products that are discarded: warnings would be raised at random.
QUIET: dict[str, Any] = {"invalid": "ignore", "over": "ignore", "under": "ignore"}


def real_view(block: Array) -> Array:
    """View a row-major K x M complex block as K x 2M real; a real block as itself."""
    if block.dtype.kind != "c":
        return block
    half = block.itemsize // 2
    if block.shape[1] > 1:
        return block.view(f"f{half}")
    # NumPy refuses `view` for one column out of many, whose last axis it takes for not contiguous.
    flat = block.real
    return np.lib.stride_tricks.as_strided(
        flat, (block.shape[0], 2 * block.shape[1]), (block.strides[0], half), writeable=block.flags.writeable
    )


def spread_rows(work: Callable[[int, int], Result], n_rows: int, n_bytes: int) -> list[Result]:
    """Run ``work(begin, end)`` over ranges of rows, on several threads if their bytes outlast waking them."""
    with np.errstate(**QUIET):
        if n_bytes < SERIAL_BYTES:
            return [work(0, n_rows)]
        return map_rows(work, n_rows, MAX_RANGES, n_bytes // SERIAL_BYTES)


def tsmttsm(problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex) -> None:
    """C = alpha A^H B + beta C (A^T B when the problem is not `conj`).

    The longest accumulation chain is `WIDE_PANEL_ROWS` inside a panel plus one addition per panel; single
    precision adds panels up in double precision. A^H A is exactly Hermitian.
    """
    Ar = real_view(A)
    Br = Ar if problem.same else real_view(B)
    work_dtype = np.promote_types(Ar.dtype, Br.dtype)
    # With p rows side by side, the result is the sum of the p diagonal blocks of the product. The others are
    # discarded; computing them is free on registers that narrow operands do not fill.
    fold = _fold(max(Ar.shape[1], Br.shape[1]) * work_dtype.itemsize, Ar, Br)
    work = functools.partial(_sum_rows, Ar, Br, work_dtype, fold)
    parts = spread_rows(work, problem.K, A.nbytes + (0 if problem.same else B.nbytes))
    G = parts[0] if len(parts) == 1 else sum(parts[1:], start=parts[0])
    if problem.same:
        np.copyto(G, G.T, where=_below_diagonal(len(G)))
    if Ar is not A or Br is not B:
        G = _combine_parts(G, problem)
    store(G, C, alpha, beta)


@functools.lru_cache(maxsize=64)
def _below_diagonal(width: int) -> Array:
    return np.tri(width, k=-1, dtype=np.bool_)


def _sum_rows(A: Array, B: Array, dtype: np.dtype[Any], fold: int, begin: int, end: int) -> Array:
    """Compute A^T B over a range of rows of real blocks, in double precision; `fold` rows side by side."""
    M, N = A.shape[1], B.shape[1]
    rows = PANEL_ROWS if M <= WIDE >= N else WIDE_PANEL_ROWS
    converted = rows * (M + N) if A.dtype != dtype or B.dtype != dtype else 0
    total = np.zeros((M, N), np.float64)
    while begin < end:
        side = fold if end - begin >= rows * fold else 1
        height = min(rows * side, end - begin)
        scratch = side * (side * M * N + converted) * dtype.itemsize
        count = min(max(1, CHUNK_BYTES // max(1, scratch)), (end - begin) // height)
        stop, shape = begin + count * height, (count, height // side)
        left = A[begin:stop].reshape(*shape, side * M).astype(dtype, copy=False)
        right = left if A is B else B[begin:stop].reshape(*shape, side * N).astype(dtype, copy=False)
        sums = np.add.reduce(np.matmul(left.swapaxes(1, 2), right), axis=0, dtype=np.float64)
        total += sums.reshape(side, M, side, N).trace(axis1=0, axis2=2) if side > 1 else sums
        begin = stop
    return total


def _fold(row_bytes: int, A: Array, B: Array) -> int:
    """Compute the largest power of two of rows that fit a cache line side by side; 1 for views."""
    if not 0 < row_bytes <= LINE_BYTES // 2 or not (A.flags.c_contiguous and B.flags.c_contiguous):
        return 1
    return 1 << (LINE_BYTES // row_bytes).bit_length() - 1


def _combine_parts(G: Array, problem: TsmttsmProblem) -> Array:
    """Combine the products of real and imaginary parts to the complex result."""
    left, right = is_complex(problem.dtype_a), is_complex(problem.dtype_b)
    if not left:
        return np.ascontiguousarray(G).view(np.complex128) if right else G
    sign = -1 if problem.conj else 1
    if not right:
        return G[0::2] + (sign * 1j) * G[1::2]
    real: Array = G[0::2, 0::2] - sign * G[1::2, 1::2]
    imag: Array = G[0::2, 1::2] + sign * G[1::2, 0::2]
    return real + 1j * imag


def store(product: Array, C: Array, alpha: complex, beta: complex) -> None:
    """Set C = alpha product + beta C; C is not read if beta is zero."""
    if alpha != 1:
        product = alpha * product
    C[...] = product if beta == 0 else product + beta * C


def tsmm(problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex) -> None:
    """Set B = alpha A C + beta B; B may be the leading columns of A itself."""
    Cr = C if alpha == 1 else alpha * C.astype(B.dtype, copy=False)  # C may be in single precision
    n_bytes = A.nbytes + B.nbytes
    # Complex BLAS is at the roofline for a vector, and for a matrix whose real form exceeds the cache.
    unsplit = problem.N == 1 or 2 * Cr.nbytes > REAL_MATRIX_BYTES
    if unsplit and A.dtype == Cr.dtype == B.dtype and B.dtype.kind == "c":
        Ar, Br, rows = A, B, WIDE_PANEL_ROWS
    else:
        Ar, Br = real_view(A), real_view(B)
        if B.dtype.kind == "c":
            Cr = _real_coefficients(Cr, A.dtype.kind == "c", Br.dtype)
        else:
            Cr = np.ascontiguousarray(Cr, B.dtype)
        row_bytes = (Ar.shape[1] + Br.shape[1]) * Cr.itemsize
        # Input and output of a product fit an L1 cache.
        rows = min(max(TSMM_PANEL_BYTES // max(1, row_bytes) // 32 * 32, 32), PANEL_ROWS)
    if problem.beta == "zero" and Ar.dtype == Cr.dtype and is_disjoint(problem, A, B):
        spread_rows(lambda i, j: _multiply(Ar[i:j], Cr, Br[i:j], rows), problem.K, n_bytes)
        return
    # The product stays in cache until it is added to B, and so do converted rows of A.
    widths = Br.shape[1] + (Ar.shape[1] if Ar.dtype != Cr.dtype else 0)
    chunk = max(CHUNK_BYTES // max(1, widths * Cr.itemsize) // rows * rows, rows)

    def work(begin: int, end: int) -> None:
        product = np.empty((min(chunk, end - begin), Br.shape[1]), Cr.dtype)
        for row in range(begin, end, chunk):
            stop = min(row + chunk, end)
            part = product[: stop - row]
            _multiply(Ar[row:stop].astype(Cr.dtype, copy=False), Cr, part, rows)
            _add_scaled(part, B[row:stop], Br[row:stop], beta)

    spread_rows(work, problem.K, n_bytes)


def is_disjoint(problem: TsmmProblem, A: Array, B: Array) -> bool:
    """Check whether the address ranges of A and B do not overlap."""
    if problem.inplace:
        return False
    # An output that is not in place shares no elements with A; only the rows of views can interleave.
    return (problem.lda == problem.M and problem.ldb == problem.N) or not np.may_share_memory(A, B)


def _multiply(A: Array, C: Array, B: Array, rows: int) -> None:
    """Set B = A C, panel by panel; a matrix times a vector in one call."""
    whole = len(A) // rows if C.shape[1] > 1 else 0
    end = whole * rows
    np.matmul(A[:end].reshape(whole, rows, len(C)), C, out=B[:end].reshape(whole, rows, C.shape[1]))
    if end < len(A):
        np.matmul(A[end:], C, out=B[end:])


def _add_scaled(product: Array, B: Array, Br: Array, beta: complex) -> None:
    """Set B = product + beta B; `Br` is B, or its real view if `product` is one."""
    if beta == 0:
        np.copyto(Br, product)
        return
    if complex(beta).imag != 0:
        np.multiply(B, beta, out=B)
    elif beta != 1:
        np.multiply(Br, beta.real, out=Br)
    np.add(Br, product, out=Br)


def _real_coefficients(C: Array, complex_rows: bool, dtype: Any) -> Array:
    """Convert C to the real matrix that the real view of A is multiplied by, for a complex product."""
    M, N = C.shape
    real = np.empty((M, 2, N, 2), dtype)
    real[:, 0, :, 0] = real[:, 1, :, 1] = C.real
    real[:, 0, :, 1] = C.imag
    real[:, 1, :, 0] = -C.imag
    # A real A has no imaginary columns: only the first row of each 2 x 2 block is multiplied.
    return real.reshape(2 * M, 2 * N) if complex_rows else np.ascontiguousarray(real[:, 0].reshape(M, 2 * N))
