"""Block operations on the host, on row panels that stay in cache, spread over threads.

Complex operands are worked on through their interleaved real view: a row-major K x M complex block is a
K x 2M real one, and both products become real matrix products of twice the width,

    G = A_r^T B_r   (2M x 2N, holds all four real products of A^H B and A^T B)
    B_r = A_r [[Re C, Im C], [-Im C, Re C]]   (blocks of 2 x 2, interleaved)

which costs the same arithmetic as a complex product, needs no conjugated copy of A, and serves real times
complex too. One batched ``matmul`` over many panels keeps the interpreter out of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..kernels.problem import StreamProblem, TsmmProblem, TsmttsmProblem, is_complex, itemsize
from ..kernels.roofline import traffic
from .base import Array
from .threads import map_rows

__all__ = ["axpby", "column_dots", "real_view", "store", "tsmm", "tsmttsm"]

Result = TypeVar("Result")

PANEL_ROWS = 256  # rows of one product: long enough to amortise a call, short enough for L1/L2 at width 64
SCRATCH_BYTES = 1 << 20  # per thread, for partial results and converted panels
TSMM_PANEL_BYTES = 96 << 10  # input plus output of one narrow product, within half of a small L2
STREAM_PANEL_BYTES = 128 << 10
SERIAL_BYTES = 1 << 20  # an elementwise pass this short takes about as long as waking a thread
TILE_COLUMNS = 256  # elements over which per-column factors are repeated, so that inner loops are long


def _real_dtype(dtype: str) -> str:
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


def _panels(block: Array, begin: int, n_panels: int, rows: int) -> Array:
    """View rows `begin` and on as a stack of panels, without a copy."""
    return block[begin : begin + n_panels * rows].reshape(n_panels, rows, block.shape[1])


def tsmttsm(problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex) -> None:
    """C = alpha A^H B + beta C (A^T B when the problem is not `conj`).

    The longest accumulation chain is `PANEL_ROWS` inside a panel plus one addition a panel; single
    precision adds panels up in double precision.
    """
    work_dtype = _real_dtype(problem.dtype)
    Ar = real_view(A)
    Br = Ar if problem.same else real_view(B)
    rows = max(PANEL_ROWS, 2 * Ar.shape[1], 2 * Br.shape[1])
    converts = Ar.dtype != work_dtype or Br.dtype != work_dtype
    scratch_row = Ar.shape[1] * Br.shape[1] * itemsize(work_dtype)
    if converts:
        scratch_row += rows * (Ar.shape[1] + Br.shape[1]) * itemsize(work_dtype)
    group = max(1, SCRATCH_BYTES // max(1, scratch_row))

    def work(begin: int, end: int) -> Array:
        total = np.zeros((Ar.shape[1], Br.shape[1]), np.float64)
        row = begin
        while row < end:
            count = min(group, (end - row) // rows)
            # The rows left over after the last whole panel make one short panel.
            size = rows if count else end - row
            count = max(count, 1)
            Ap = _panels(Ar, row, count, size).astype(work_dtype, copy=False)
            Bp = Ap if problem.same else _panels(Br, row, count, size).astype(work_dtype, copy=False)
            total += np.matmul(Ap.transpose(0, 2, 1), Bp).sum(axis=0, dtype=np.float64)
            row += count * size
        return total

    G = sum(map_rows(work, problem.K), start=np.zeros((Ar.shape[1], Br.shape[1])))
    store(_combine_parts(G, problem), C, alpha, beta)


def _combine_parts(G: Array, problem: TsmttsmProblem) -> Array:
    """Fold the products of real and imaginary parts into the complex result."""
    left, right = is_complex(problem.dtype_a), is_complex(problem.dtype_b)
    if not left:
        return G.view(np.complex128) if right else G
    sign = -1 if problem.conj else 1
    if not right:
        return G[0::2] + (sign * 1j) * G[1::2]
    real = G[0::2, 0::2] - sign * G[1::2, 1::2]
    imag = G[0::2, 1::2] + sign * G[1::2, 0::2]
    return real + 1j * imag


def store(product: Array, C: Array, alpha: complex, beta: complex) -> None:
    """C = alpha product + beta C; C is not read when beta is zero."""
    if alpha != 1:
        product = alpha * product
    C[...] = product if beta == 0 else product + beta * C


def tsmm(problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex) -> None:
    """B = alpha A C + beta B; B may be the leading columns of A itself."""
    Ar, Br = real_view(A), real_view(B)
    Cr = _real_coefficients(C if alpha == 1 else alpha * C, is_complex(problem.dtype_a), problem.dtype)
    converts = Ar.dtype != Cr.dtype
    direct = problem.beta == "zero" and not converts and not np.may_share_memory(A, B)
    # A product of its own must stay in cache until it is added to B; A streams past it.
    cached_width = Ar.shape[1] + Br.shape[1] if direct else Br.shape[1]
    rows = max(PANEL_ROWS, TSMM_PANEL_BYTES // max(1, cached_width * Cr.itemsize) // 64 * 64)
    group = 64 if direct else 1

    def work(begin: int, end: int) -> None:
        row = begin
        while row < end:
            count = min(group, (end - row) // rows)
            size = rows if count else end - row
            count = max(count, 1)
            Ap, Bp = _panels(Ar, row, count, size), _panels(Br, row, count, size)
            if direct:
                np.matmul(Ap, Cr, out=Bp)
            else:
                product = np.matmul(Ap.astype(Cr.dtype, copy=False), Cr)
                if problem.beta != "zero":
                    _add_scaled(product, Bp, B, row, count * size, beta)
                Bp[...] = product
            row += count * size

    map_rows(work, problem.K)


def _add_scaled(product: Array, Bp: Array, B: Array, row: int, n_rows: int, beta: complex) -> None:
    """Add beta B to the product on the rows of a panel, complex where beta is."""
    if beta == 1:
        product += Bp
    elif isinstance(beta, complex) and beta.imag != 0:
        product.reshape(n_rows, -1).view(B.dtype)[...] += beta * B[row : row + n_rows]
    else:
        product += beta.real * Bp


def _real_coefficients(C: Array, complex_rows: bool, dtype: str) -> Array:
    """Return the real matrix that the real view of A is multiplied with."""
    if not is_complex(dtype):
        return np.ascontiguousarray(C, dtype=dtype)
    M, N = C.shape
    real = np.empty((M, 2, N, 2), _real_dtype(dtype))
    real[:, 0, :, 0] = real[:, 1, :, 1] = C.real
    real[:, 0, :, 1] = C.imag
    real[:, 1, :, 0] = -C.imag
    # A real A has no imaginary rows: only the first row of each 2 x 2 block meets anything.
    return real.reshape(2 * M, 2 * N) if complex_rows else np.ascontiguousarray(real[:, 0].reshape(M, 2 * N))


def axpby(problem: StreamProblem, X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any) -> None:
    """Out = alpha X + beta Y, factors scalar or one a column; `out` may be X or Y. Y None: out = alpha X."""
    width = out.shape[1]
    tile = _tile(width, out, X, Y)
    rows = max(tile, STREAM_PANEL_BYTES // max(1, width * out.itemsize) // tile * tile)

    def work(begin: int, end: int) -> None:
        for row in range(begin, end, rows):
            stop = min(row + rows, end)
            fold = tile if (stop - row) % tile == 0 else 1
            shape = ((stop - row) // fold, fold * width)
            term = _scaled(X[row:stop].reshape(shape), alpha, fold)
            if Y is not None:
                term = term + _scaled(Y[row:stop].reshape(shape), beta, fold)
            out[row:stop].reshape(shape)[...] = term

    _stream(problem, work)


def _tile(width: int, *blocks: Array | None) -> int:
    """Rows to fold into one long row, so that narrow blocks have long inner loops; 1 for views."""
    if width == 0 or any(block is not None and not block.flags.c_contiguous for block in blocks):
        return 1
    return max(1, TILE_COLUMNS // width)


def _scaled(panel: Array, factor: Any, fold: int) -> Array:
    if isinstance(factor, np.ndarray) and factor.ndim == 1:
        return panel * np.tile(factor, fold)
    return panel if isinstance(factor, int | float) and factor == 1 else panel * factor


def column_dots(problem: StreamProblem, X: Array, Y: Array, out: Array) -> None:
    """out_j = sum_i conj(X_ij) Y_ij, summed in double precision; X may be Y."""
    width = out.shape[0]
    tile = _tile(width, X, Y)
    rows = max(tile, STREAM_PANEL_BYTES // max(1, width * X.itemsize) // tile * tile)
    square = X is Y
    sum_dtype = np.complex128 if out.dtype.kind == "c" and not square else np.float64

    def work(begin: int, end: int) -> Array:
        total = np.zeros(width, sum_dtype)
        for row in range(begin, end, rows):
            stop = min(row + rows, end)
            fold = tile if (stop - row) % tile == 0 else 1
            shape = ((stop - row) // fold, fold * width)
            Xp = X[row:stop].reshape(shape)
            if square:
                product = np.square(Xp.real) + np.square(Xp.imag) if Xp.dtype.kind == "c" else np.square(Xp)
            else:
                product = np.conjugate(Xp) * Y[row:stop].reshape(shape)
            total += product.sum(axis=0, dtype=sum_dtype).reshape(fold, width).sum(axis=0)
        return total

    out[...] = sum(_stream(problem, work), start=np.zeros(width, sum_dtype))


def _stream(problem: StreamProblem, work: Callable[[int, int], Result]) -> list[Result]:
    """Spread an elementwise pass over threads where it outlasts starting them."""
    serial = traffic(problem).total_bytes < SERIAL_BYTES
    return [work(0, problem.K)] if serial else map_rows(work, problem.K)
