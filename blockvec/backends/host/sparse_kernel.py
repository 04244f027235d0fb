"""SpMMV on the host by compiled kernels: shift, factors, update and column dots in one pass over the rows.

The kernels run on the row blocks of `sparse.py`, on all cores; rows of Y do not
depend on the number of threads. Blocks wider than the registers are processed by groups of columns.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import OptionError
from ...kernels.problem import SpmmvProblem, parts_of
from ...system.config import options
from ..base import Array, Fused
from . import llvm
from .panels import QUIET
from .threads import map_rows, run_in_threads

if TYPE_CHECKING:
    from .sparse import RowBlocks
    from .sparse_source import Factor, RowKernel

# Rows plus entries, times real columns plus 4, plus the elements of further passes for factors: in
# units of 0.27 ns of SciPy's kernel and NumPy. From here on, about a hundred products outweigh loading the
# compiler and compiling.
LEAST_WORK = 3 << 20
PASS_WORK = 4  # per element
COLUMNS = range(1, 5)  # of column-major products; each takes another pointer
MAX_PLANS = 256  # per matrix: kernels with their factors
SHORT_ROWS = 8  # mean entries per row up to which rows of a view are read where they are


def refusal(problem: SpmmvProblem) -> str:
    """Return the reason why a product should not be compiled; empty if it should."""
    if problem.chain != "none" or problem.gram:
        return "updates of another block and Gram matrices are passes of their own"
    passes = (problem.shift != "none") + (problem.beta == "general") + len(problem.dots)
    return reason_against(problem.n_rows, problem.nnz, problem.width * parts_of(problem.dtype), passes)


def reason_against(n_rows: int, nnz: int, lanes: int, passes: int) -> str:
    """Return the reason why a product of `lanes` real columns and further passes should not be compiled."""
    choice = options().jit
    if choice == "never":
        return "option jit='never'"
    work = (n_rows + nnz) * (lanes + 4) + n_rows * lanes * passes * PASS_WORK
    if choice == "auto" and work < LEAST_WORK:
        return "a small product: compiling takes longer"
    reason = llvm.missing()
    if choice == "always" and reason:
        raise OptionError(f"jit='always': {reason}")
    return reason


@functools.lru_cache(maxsize=1024)
def _function(kernel: RowKernel) -> Callable[..., None]:
    from .sparse_source import ARGUMENTS, source

    words = ARGUMENTS.split(", ")
    types = [ctypes.c_int64 if word.startswith("i64") else ctypes.c_void_p for word in words]
    return llvm.load(source(kernel), types)


class _Part(NamedTuple):
    """The kernel for some columns of a block, and the numbers that it reads beside matrix and blocks."""

    begin: int
    kernel: RowKernel
    function: Callable[..., None]
    matrix: list[int]  # addresses of row pointers, columns and values
    factors: list[int]  # addresses of factors and shifts
    numbers: tuple[Array, Array]  # which are at these addresses


def spmmv(
    problem: SpmmvProblem,
    S: RowBlocks,
    X: Array,
    Y: Array,
    alpha: complex,
    beta: complex,
    shift: Any,
    fused: Fused | None = None,
) -> None:
    """Set Y = alpha (S - shift I) X + beta Y, and column dots; `shift` is a scalar or one value per column.

    Y must not overlap X. Blocks X of another type than Y are converted first; so are views of long rows.
    """
    X = _operand(X, Y.dtype, S)
    cuts = [0, len(Y)] if Y.size == 0 else S.cuts(problem.width * (2 if Y.dtype.kind == "c" else 1))
    if fused is not None:
        begin, end = (min(row, len(Y)) for row in fused.rows)
        cuts = sorted({*cuts, begin, end})
    places, calls = (_place(X), _place(Y)), []
    # Referred to until the end: the calls have addresses only.
    parts = _parts(S, Y, alpha, beta, shift, dots=problem.dots)
    for part in parts:
        blocks = [number for at, ld, size in places for number in (at + part.begin * size, ld)]
        sums = np.zeros((len(cuts) - 1, len(part.kernel.dot_rows), part.kernel.lanes))
        calls.append((part.function, [*part.matrix, *blocks, *part.factors], sums, _addresses(sums)[0]))

    def work(block: int) -> None:
        for function, arguments, sums, address in calls:
            function(cuts[block], cuts[block + 1], *arguments, address + block * sums.strides[0])

    run_in_threads(work, len(cuts) - 1)
    if fused is None:
        return
    with np.errstate(**QUIET):
        for part, (_, _, sums, _) in zip(parts, calls, strict=True):  # parts of row blocks and lanes
            kernel, columns = part.kernel, slice(part.begin, part.begin + part.kernel.width)
            taken = sums[cuts.index(begin) : cuts.index(end)]
            lanes = taken.sum(axis=0).reshape(-1, kernel.width, kernel.parts).sum(axis=2)
            for (name, is_turned), dots in zip(kernel.dot_rows, lanes, strict=True):
                if is_turned:
                    fused.dots[name][columns].imag = -dots
                else:
                    fused.dots[name][columns] = dots


def update_columns(S: RowBlocks, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any) -> bool:
    """Set Y = alpha (S - shift I) X + beta Y for column-major arrays of one type.

    Return False, and do nothing, if that should not be compiled.
    """
    width, parts = Y.shape[1], 2 if Y.dtype.kind == "c" else 1
    is_plain = type(shift) is int and shift == 0  # NumPy takes longer to find out
    passes = int(not is_plain and (np.ndim(shift) > 0 or shift != 0)) + (beta not in (0, 1))
    if width not in COLUMNS or reason_against(S.shape[0], S.nnz, parts * width, passes):
        return False
    (part,) = _parts(S, Y, alpha, beta, shift, by_columns=True)
    columns = [(*_addresses(block), block.strides[1] * parts // block.itemsize) for block in (X, Y)]
    arguments = *part.matrix, *columns[0], *columns[1], *part.factors, 0
    cuts = S.cuts(parts * width)
    run_in_threads(lambda block: part.function(cuts[block], cuts[block + 1], *arguments), len(cuts) - 1)
    return True


def _parts(S: RowBlocks, Y: Array, alpha: complex, beta: complex, shift: Any, **kind: Any) -> list[_Part]:
    """Describe and compile the kernels of a product, once for the same factors."""
    if type(shift) not in (int, float, complex) and np.ndim(shift):
        return _compiled(S, Y, (alpha, beta), shift, **kind)
    key = complex(alpha), complex(beta), complex(shift), Y.dtype, Y.shape[1], *kind.items()
    if key not in S.parts:
        if len(S.parts) >= MAX_PLANS:
            S.parts.clear()
        S.parts[key] = _compiled(S, Y, (alpha, beta), shift, **kind)
    return S.parts[key]


def _compiled(
    S: RowBlocks,
    Y: Array,
    factors: tuple[complex, complex],
    shift: Any,
    by_columns: bool = False,
    dots: tuple[str, ...] = (),
) -> list[_Part]:
    """Compile the kernels of a product, one for as many columns as registers hold.

    Shifts are two rows, real and imaginary parts, repeated for the parts of each column.
    """
    from .sparse_source import LINE_BYTES, RowKernel

    width, parts, real = Y.shape[1], 2 if Y.dtype.kind == "c" else 1, Y.real.dtype
    alpha, beta = map(_class, factors)
    shifts = np.broadcast_to(np.asarray(shift), (width,))
    shift_kind: Factor = "none" if np.ndim(shift) == 0 and shift == 0 else "real"
    with np.errstate(**QUIET):
        values = np.array(factors, np.complex128).view(np.float64).astype(real)
        both = np.stack([shifts.real, shifts.imag]).astype(real).repeat(parts, axis=1)
    whole = RowKernel(
        width,
        *(Y.dtype.name, S.data.dtype.name, S.indptr.itemsize, S.indices.itemsize),
        alpha="real" if alpha == "zero" else alpha,
        beta=beta,
        shift="complex" if shifts.imag.any() else shift_kind,
        lines=min(max(round(S.nnz * S.data.itemsize / (LINE_BYTES * max(S.shape[0], 1))), 1), 8),
        by_columns=by_columns,
        dots=dots,
    )
    matrix = _addresses(S.indptr, S.indices, S.data)
    most = width if by_columns else (64 if llvm.machine()[2] else 32) * 8 // real.itemsize // parts
    found = []
    for begin in range(0, width, max(most, 1)):
        kernel = replace(whole, width=min(most, width - begin))
        numbers = values, np.ascontiguousarray(both[:, parts * begin :][:, : kernel.lanes])
        found.append(_Part(begin, kernel, _function(kernel), matrix, _addresses(*numbers), numbers))
    return found


def _class(factor: complex) -> Factor:
    if complex(factor).imag != 0:
        return "complex"
    return "zero" if factor == 0 else "one" if factor == 1 else "real"


def _operand(X: Array, dtype: np.dtype[Any], S: RowBlocks) -> Array:
    """Convert X to a type; copy a view where its rows are read so often that the copy saves time."""
    if X.dtype == dtype and (X.flags.c_contiguous or S.nnz <= SHORT_ROWS * len(X)):
        return X
    copy = np.empty(X.shape, dtype)
    with np.errstate(**QUIET):
        map_rows(lambda begin, end: np.copyto(copy[begin:end], X[begin:end]), len(X))
    return copy


def _addresses(*arrays: Array) -> list[int]:
    return [int(array.__array_interface__["data"][0]) for array in arrays]


def _place(block: Array) -> tuple[int, int, int]:
    """Determine the address of a block, the distance between rows in real numbers, and an element's bytes."""
    size = block.itemsize
    real = size // 2 if block.dtype.kind == "c" else size
    return block.__array_interface__["data"][0], block.strides[0] // real, size
