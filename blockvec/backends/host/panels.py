"""Products of tall blocks on the host, on row panels that stay in cache, spread over threads.

Complex operands are worked on through their interleaved real view: a row-major K x M complex block is a
K x 2M real one, and both products become real matrix products of twice the width,

    G = A_r^T B_r   (2M x 2N, holds all four real products of A^H B and A^T B)
    B_r = A_r [[Re C, Im C], [-Im C, Re C]]   (blocks of 2 x 2, interleaved)

which costs the same arithmetic as a complex product, needs no conjugated copy of A, and serves real times
complex too.

BLAS reaches the memory's bandwidth on a short panel, whose operands it need not pack, and is far from it on
millions of rows. One batched ``matmul`` over many panels keeps the interpreter out: each return to it may
wait some 50 us for the interpreter lock that another thread holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ...config import options
from ...kernels.problem import Problem, TsmmProblem, TsmttsmProblem, is_complex, itemsize
from ...kernels.roofline import traffic
from ..base import Array
from .threads import map_rows

__all__ = [
    "CHUNK_BYTES",
    "combine_parts",
    "multiply",
    "panel_rows",
    "quiet_arithmetic",
    "real_coefficients",
    "real_dtype",
    "real_view",
    "spread_rows",
    "store",
    "sum_rows",
    "tsmm",
    "tsmttsm",
]

Result = TypeVar("Result")

PANEL_ROWS = 256  # two panels of 8 columns are 32 KiB and fit an L1 cache
WIDE_PANEL_ROWS = 1024  # the longest chain of additions inside a product
WIDE = 32  # real columns beyond which BLAS packs its operands into the cache itself, and gains by long panels
GRAM_WIDE = 64  # real columns beyond which the half of the arithmetic that BLAS's syrk saves pays
LINE_BYTES = 64  # narrower rows are folded up to this: a cache line, and one register of AVX-512
TSMM_PANEL_BYTES = 32 << 10  # input and output of one product, within an L1 cache
REAL_MATRIX_BYTES = 96 << 10  # of TSMM's small matrix in its real form: beyond, a panel finds it evicted
CHUNK_BYTES = 512 << 10  # intermediate results of a thread: within an L2 cache, long against waking a thread
SERIAL_BYTES = 4 << 20  # one thread is done with less by the time another has woken up
MAX_RANGES = 4  # a thread: costs 4 per cent on idle cores, saves up to half where one of them is busy


def real_dtype(dtype: str) -> str:
    """Return the type of an element's parts."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def real_view(block: Array) -> Array:
    """View a row-major K x M complex block as K x 2M real; a real block as itself.

    NumPy refuses ``view`` where the last axis is not contiguous in its eyes (one column out of many), hence
    the explicit strides.
    """
    if block.dtype.kind != "c":
        return block
    half = block.itemsize // 2
    flat = block.real
    return np.lib.stride_tricks.as_strided(
        flat, (block.shape[0], 2 * block.shape[1]), (block.strides[0], half), writeable=block.flags.writeable
    )


def quiet_arithmetic() -> np.errstate:
    """Keep NumPy from warning of invalid operations and overflow.

    BLAS sets exception flags on registers it only fills up, and folded rows meet in products nobody sees:
    warnings would be raised at random.
    """
    return np.errstate(invalid="ignore", over="ignore", under="ignore")


def spread_rows(problem: Problem, work: Callable[[int, int], Result], n_rows: int) -> list[Result]:
    """Run ``work(begin, end)`` over ranges of rows, on several threads where that outlasts waking them."""
    n_bytes = traffic(problem).total_bytes
    with quiet_arithmetic():
        if n_bytes < SERIAL_BYTES:
            return [work(0, n_rows)]
        share = n_bytes // (options().threads * SERIAL_BYTES)
        return map_rows(work, n_rows, min(max(share, 1), MAX_RANGES))


def _panels(block: Array, begin: int, n_panels: int, rows: int, fold: int = 1) -> Array:
    """View rows `begin` and on as a stack of panels, `fold` rows side by side in one, without a copy."""
    return block[begin : begin + n_panels * rows].reshape(n_panels, rows // fold, fold * block.shape[1])


def tsmttsm(problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex) -> None:
    """C = alpha A^H B + beta C (A^T B when the problem is not `conj`).

    The longest accumulation chain is `WIDE_PANEL_ROWS` inside a panel plus one addition a panel; single
    precision adds panels up in double precision. A^H A is Hermitian to the last bit.
    """
    Ar = real_view(A)
    Br = Ar if problem.same else real_view(B)
    work_dtype = real_dtype(problem.dtype)
    # With p rows side by side, the sum of the p diagonal blocks of the product is what is wanted. The rest
    # is arithmetic for nothing, but on registers that narrow operands leave empty anyway.
    fold = _fold(max(Ar.shape[1], Br.shape[1]) * itemsize(work_dtype), Ar, Br)

    def work(begin: int, end: int) -> Array:
        return sum_rows(Ar, Br, begin, end, work_dtype, fold)

    parts = spread_rows(problem, work, problem.K)
    G = sum(parts[1:], start=parts[0])
    if problem.same:
        G = np.triu(G) + np.triu(G, 1).T
    store(combine_parts(G, problem), C, alpha, beta)


def sum_rows(A: Array, B: Array, begin: int, end: int, dtype: str, fold: int = 1) -> Array:
    """Return A^T B over a range of rows of real blocks, in double precision; `fold` rows side by side."""
    total = np.zeros((A.shape[1], B.shape[1]), np.float64)
    row = begin
    for p in (fold, 1):
        part, row = _sum_panels(A, B, row, end, p, dtype)
        total += part
    if row < end:
        rest = A[None, row:end]
        total += _sum_products(rest, rest if A is B else B[None, row:end], dtype)
    return total


def _fold(row_bytes: int, *blocks: Array) -> int:
    """Return the largest power of two of rows that fit a cache line side by side; 1 for views."""
    if not 0 < row_bytes <= LINE_BYTES or not all(block.flags.c_contiguous for block in blocks):
        return 1
    return 1 << (LINE_BYTES // row_bytes).bit_length() - 1


def _sum_panels(A: Array, B: Array, begin: int, end: int, fold: int, dtype: str) -> tuple[Array, int]:
    """Return A^T B over all whole panels of the rows, and the row after them."""
    M, N = A.shape[1], B.shape[1]
    rows = WIDE_PANEL_ROWS if max(M, N) > WIDE else PANEL_ROWS * fold
    scratch = fold * fold * M * N * itemsize(dtype)
    if A.dtype != dtype or B.dtype != dtype:
        scratch += rows * (M + N) * itemsize(dtype)
    group = max(1, CHUNK_BYTES // max(1, scratch))
    total = np.zeros((fold * M, fold * N), np.float64)
    while (count := min(group, (end - begin) // rows)) > 0:
        Ap = _panels(A, begin, count, rows, fold)
        Bp = Ap if A is B else _panels(B, begin, count, rows, fold)
        total += _sum_products(Ap, Bp, dtype)
        begin += count * rows
    blocks = total.reshape(fold, M, fold, N)
    return sum((blocks[p, :, p] for p in range(1, fold)), start=blocks[0, :, 0]), begin


def _sum_products(A: Array, B: Array, dtype: str) -> Array:
    """Return the sum of A^T B over two stacks of panels, in double precision."""
    left = A.astype(dtype, copy=False)
    if A is B:
        return _sum_grams(left)
    products: Array = np.matmul(left.swapaxes(1, 2), B.astype(dtype, copy=False))
    total: Array = products.sum(axis=0, dtype=np.float64)
    return total


def _sum_grams(A: Array) -> Array:
    """Return the sum of A^T A over a stack of panels, in double precision.

    NumPy sees the equal operands and calls BLAS's syrk, which on narrow panels takes twice as long as a
    general product. So the rows of the result are computed in two halves, which overlap where M is odd.
    """
    count, rows, M = A.shape
    if not 1 < M <= GRAM_WIDE:
        total: Array = np.matmul(A.swapaxes(1, 2), A).sum(axis=0, dtype=np.float64)
        return total
    half = (M + 1) // 2
    panel, row, column = A.strides
    halves = np.lib.stride_tricks.as_strided(
        A, (count, 2, half, rows), (panel, (M - half) * column, column, row), writeable=False
    )
    upper, lower = np.matmul(halves, A[:, None]).sum(axis=0, dtype=np.float64)
    return np.concatenate((upper, lower[2 * half - M :]))


def combine_parts(G: Array, problem: TsmttsmProblem) -> Array:
    """Fold the products of real and imaginary parts into the complex result."""
    left, right = is_complex(problem.dtype_a), is_complex(problem.dtype_b)
    if not left:
        return np.ascontiguousarray(G).view(np.complex128) if right else G
    sign = -1 if problem.conj else 1
    if not right:
        return G[0::2] + (sign * 1j) * G[1::2]
    real: Array = G[0::2, 0::2] - sign * G[1::2, 1::2]
    imag: Array = G[0::2, 1::2] + sign * G[1::2, 0::2]
    combined: Array = real + 1j * imag
    return combined


def store(product: Array, C: Array, alpha: complex, beta: complex) -> None:
    """C = alpha product + beta C; C is not read when beta is zero."""
    if alpha != 1:
        product = alpha * product
    C[...] = product if beta == 0 else product + beta * C


def tsmm(problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex) -> None:
    """B = alpha A C + beta B; B may be the leading columns of A itself."""
    Cr = C if alpha == 1 else alpha * C
    # BLAS is at the limit for a vector, and for a matrix that is too large for the cache twice over.
    as_it_is = problem.N == 1 or 2 * Cr.nbytes > REAL_MATRIX_BYTES
    if as_it_is and A.dtype == Cr.dtype == B.dtype and is_complex(problem.dtype):
        Ar, Br, rows = A, B, WIDE_PANEL_ROWS
    else:
        Ar, Br = real_view(A), real_view(B)
        Cr = real_coefficients(Cr, is_complex(problem.dtype_a), problem.dtype)
        row_bytes = (Ar.shape[1] + Br.shape[1]) * Cr.itemsize
        rows = panel_rows(row_bytes)
    if problem.beta == "zero" and Ar.dtype == Cr.dtype and not np.may_share_memory(A, B):
        spread_rows(problem, lambda begin, end: multiply(Ar[begin:end], Cr, Br[begin:end], rows), problem.K)
        return
    # The product stays in cache until it is added to B, and A's rows if they must be converted.
    widths = Br.shape[1] + (Ar.shape[1] if Ar.dtype != Cr.dtype else 0)
    chunk = max(CHUNK_BYTES // max(1, widths * Cr.itemsize) // rows * rows, rows)

    def work(begin: int, end: int) -> None:
        product = np.empty((min(chunk, end - begin), Br.shape[1]), Cr.dtype)
        for row in range(begin, end, chunk):
            stop = min(row + chunk, end)
            part = product[: stop - row]
            multiply(Ar[row:stop].astype(Cr.dtype, copy=False), Cr, part, rows)
            _add_scaled(part, B[row:stop], Br[row:stop], beta)

    spread_rows(problem, work, problem.K)


def panel_rows(row_bytes: int) -> int:
    """Return the rows of a product whose input and output, of `row_bytes` a row, are to fit an L1 cache."""
    return min(max(TSMM_PANEL_BYTES // max(1, row_bytes) // 32 * 32, 32), PANEL_ROWS)


def multiply(A: Array, C: Array, B: Array, rows: int) -> None:
    """B = A C, panel by panel; a matrix times a vector needs none."""
    whole = len(A) // rows if C.shape[1] > 1 else 0
    np.matmul(_panels(A, 0, whole, rows), C, out=_panels(B, 0, whole, rows))
    if whole * rows < len(A):
        np.matmul(A[whole * rows :], C, out=B[whole * rows :])


def _add_scaled(product: Array, B: Array, Br: Array, beta: complex) -> None:
    """B = product + beta B; `Br` is B, or its real view as `product` is one."""
    if beta == 0:
        np.copyto(Br, product)
        return
    if complex(beta).imag != 0:
        np.multiply(B, beta, out=B)
    elif beta != 1:
        np.multiply(Br, beta.real, out=Br)
    np.add(Br, product, out=Br)


def real_coefficients(C: Array, complex_rows: bool, dtype: str) -> Array:
    """Return the real matrix that the real view of A is multiplied with."""
    if not is_complex(dtype):
        return np.ascontiguousarray(C, dtype=dtype)
    M, N = C.shape
    real = np.empty((M, 2, N, 2), real_dtype(dtype))
    real[:, 0, :, 0] = real[:, 1, :, 1] = C.real
    real[:, 0, :, 1] = C.imag
    real[:, 1, :, 0] = -C.imag
    # A real A has no imaginary rows: only the first row of each 2 x 2 block meets anything.
    return real.reshape(2 * M, 2 * N) if complex_rows else np.ascontiguousarray(real[:, 0].reshape(M, 2 * N))
