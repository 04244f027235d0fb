"""Row-major SpMMV on the host by compiled kernels: all updates and sums in one pass over the rows.

The kernels run on the row blocks of `sparse.py`, on all cores; rows of Y and sums over a row block do not
depend on the number of threads. Blocks wider than the registers are processed by groups of columns.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config import options
from ...errors import OptionError
from ...kernels.problem import SpmmvProblem, is_complex
from ..base import Array, Fused
from . import llvm
from .panels import REAL_TYPES, quiet_arithmetic
from .sparse_source import ARGUMENTS, LINE_BYTES, Factor, RowKernel, source
from .threads import map_items, map_rows

if TYPE_CHECKING:
    from .sparse import RowBlocks

# Rows plus entries, times real columns plus 4: proportional to the time of SciPy's kernel, 0.27 ns. From here
# on, about a hundred products outweigh loading the compiler and compiling.
LEAST_WORK = 1 << 22
COLUMNS = range(1, 5)  # of column-major products; each takes another pointer
SHORT_ROWS = 8  # mean entries per row up to which rows of a view are read where they are
_TYPES = [ctypes.c_int64 if word.startswith("i64") else ctypes.c_void_p for word in ARGUMENTS.split(", ")]


def refusal(problem: SpmmvProblem) -> str:
    """Return the reason why a product should not be compiled; empty if it should."""
    lanes = problem.width * (2 if is_complex(problem.dtype) else 1)
    return _refusal(problem.n_rows + problem.nnz, lanes)


def _refusal(size: int, lanes: int) -> str:
    choice = options().jit
    if choice == "never":
        return "option jit='never'"
    if choice == "auto" and size * (lanes + 4) < LEAST_WORK:
        return "a small product: compiling takes longer"
    reason = llvm.missing()
    if choice == "always" and reason:
        raise OptionError(f"jit='always': {reason}")
    return reason


@functools.lru_cache(maxsize=1024)
def _function(kernel: RowKernel) -> Callable[..., None]:
    return llvm.load(source(kernel), _TYPES)


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
    """Set Y = alpha (S - shift I) X + beta Y; `shift` is a scalar or one value per column.

    Y must not overlap X. Blocks X of another type than Y are converted first; so are views of long rows.
    """
    n_rows, width = Y.shape
    Z, delta, eta = (Y, 0, 1) if fused is None or fused.Z is None else (fused.Z, fused.delta, fused.eta)
    dots = {} if fused is None else fused.dots
    factors = np.array([alpha, beta, delta, eta], np.complex128)
    shifts = np.broadcast_to(np.asarray(shift), (width,))
    parts = 2 if is_complex(problem.dtype) else 1
    real = REAL_TYPES[problem.dtype]
    with quiet_arithmetic():
        coefficients = factors.view(np.float64).astype(real)
        offsets = [np.repeat(part, parts).astype(real) for part in (shifts.real, shifts.imag)]
        X = _operand(X, Y.dtype, S)
    whole = RowKernel(
        width,
        *(problem.dtype, problem.dtype_matrix, S.indptr.itemsize, S.indices.itemsize),
        alpha=_class(factors[0]),
        beta="zero" if problem.beta == "zero" else _class(factors[1]),
        shift="none" if problem.shift == "none" else "complex" if np.any(shifts.imag) else "real",
        delta=problem.chain if problem.chain in ("none", "zero") else _class(factors[2]),
        eta=_class(factors[3]),
        dots=tuple(dots),
        lines=_lines(S),
    )
    cuts = [0, n_rows] if Y.size == 0 else S.cuts(parts * width)
    most = (64 if llvm.has_long_registers() else 32) * 8 // real.itemsize // parts
    calls, sums = [], []
    matrix = tuple(map(_address, (S.indptr, S.indices, S.data)))
    for begin in range(0, width, most):
        end = min(begin + most, width)
        kernel = replace(whole, width=end - begin)
        shifted = np.concatenate([part[parts * begin : parts * end] for part in offsets])
        total = np.zeros((len(cuts) - 1, len(kernel.sums), kernel.lanes))
        blocks = tuple(itertools.chain(*(_place(block, begin) for block in (X, Y, Z))))
        arguments = (*matrix, *blocks, _address(coefficients), _address(shifted))
        calls.append((_function(kernel), arguments, _address(total), total[:1].nbytes))
        sums.append((kernel, shifted, total))

    def work(block: int) -> None:
        for function, arguments, total, size in calls:
            function(cuts[block], cuts[block + 1], *arguments, total + block * size)

    map_items(work, len(cuts) - 1)
    for name, out in dots.items():
        parts_of_out = [_dot(kernel, total, name, out.dtype) for kernel, _, total in sums]
        out[...] = np.concatenate(parts_of_out) if parts_of_out else 0


def _lines(S: RowBlocks) -> int:
    """Compute the cache lines of values per row, at most 8."""
    return min(max(round(S.nnz * S.data.itemsize / (LINE_BYTES * max(S.shape[0], 1))), 1), 8)


def _class(factor: complex) -> Factor:
    return "one" if factor == 1 else "complex" if factor.imag != 0 else "real"


def _operand(X: Array, dtype: np.dtype[Any], S: RowBlocks) -> Array:
    """Convert X to a type; copy a view where its rows are read so often that the copy saves time."""
    if X.dtype == dtype and (X.flags.c_contiguous or S.nnz <= SHORT_ROWS * len(X)):
        return X
    copy = np.empty(X.shape, dtype)
    map_rows(lambda begin, end: np.copyto(copy[begin:end], X[begin:end]), len(X))
    return copy


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _place(block: Array, column: int) -> tuple[int, int]:
    """Determine the address of a column, and the distance between rows in real numbers."""
    real = block.itemsize // (2 if block.dtype.kind == "c" else 1)
    return _address(block) + column * block.itemsize, block.strides[0] // real


def _dot(kernel: RowKernel, total: Array, name: str, dtype: np.dtype[Any]) -> Array:
    """Add up a column dot over the row blocks, in their order, and over the parts of complex numbers."""

    def summed(which: str) -> Array:
        lanes = total[:, kernel.sums.index(which)].sum(axis=0)
        columns: Array = lanes.reshape(-1, kernel.parts).sum(axis=1)
        return columns

    if dtype.kind != "c":
        return summed(name)
    return summed("xy") - 1j * summed("xiy")


def columns_adder(S: RowBlocks, X: Array, Y: Array) -> Callable[[int, int], None] | None:
    """Make a function that adds rows of S X to those of Y, both column-major.

    None if it should not be compiled.
    """
    parts, width = (2 if Y.dtype.kind == "c" else 1), Y.shape[1]
    if width not in COLUMNS or _refusal(S.shape[0] + S.nnz, parts * width):
        return None
    kernel = RowKernel(
        width,
        *(Y.dtype.name, S.data.dtype.name, S.indptr.itemsize, S.indices.itemsize),
        beta="one",
        lines=_lines(S),
        by_columns=True,
    )
    function, matrix = _function(kernel), tuple(map(_address, (S.indptr, S.indices, S.data)))
    real = Y.itemsize // parts
    places = (_address(X), X.strides[1] // real, _address(Y), Y.strides[1] // real)

    def add(begin: int, end: int) -> None:
        function(begin, end, *matrix, *places, 0, 0, 0, 0, 0)

    return add
