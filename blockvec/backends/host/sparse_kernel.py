"""SpMMV on the host by compiled kernels: all updates and sums in one pass over the rows.

The kernels run on the row blocks of `sparse.py`, on all cores; rows of Y and sums over a row block do not
depend on the number of threads. Blocks wider than the registers are processed by groups of columns.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OptionError
from ...kernels.problem import SpmmvProblem, is_complex
from ...system.config import options
from ..base import Array, Fused
from . import llvm
from .panels import REAL_TYPES, quiet_arithmetic
from .threads import map_rows, run_in_threads

if TYPE_CHECKING:
    from .sparse import RowBlocks
    from .sparse_source import Factor, RowKernel

# Rows plus entries, times real columns plus 4, plus the elements of further passes for factors and sums: in
# units of 0.27 ns of SciPy's kernel and NumPy. From here on, about a hundred products outweigh loading the
# compiler and compiling.
LEAST_WORK = 3 << 20
PASS_WORK = 4  # per element
COLUMNS = range(1, 5)  # of column-major products; each takes another pointer
SHORT_ROWS = 8  # mean entries per row up to which rows of a view are read where they are


def refusal(problem: SpmmvProblem) -> str:
    """Return the reason why a product should not be compiled; empty if it should."""
    passes = (problem.shift != "none") + (problem.beta == "general") + 2 * (problem.chain != "none")
    lanes = problem.width * (2 if is_complex(problem.dtype) else 1)
    return _refusal(problem.n_rows, problem.nnz, lanes, passes + len(problem.dots))


def refusal_of_vectors(S: RowBlocks) -> str:
    """Return the reason why a product with one vector should not be compiled; empty if it should."""
    return _refusal(S.shape[0], S.nnz, 2 if S.data.dtype.kind == "c" else 1, 0)


def _refusal(n_rows: int, nnz: int, lanes: int, passes: int) -> str:
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
    with quiet_arithmetic():
        X = _operand(X, Y.dtype, S)
    width, real = problem.width, REAL_TYPES[problem.dtype]
    Z, delta, eta = (Y, 0, 1) if fused is None or fused.Z is None else (fused.Z, fused.delta, fused.eta)
    dots = {} if fused is None else fused.dots
    whole, factors, shifts = _kernel(S, Y, (alpha, beta, delta, eta), shift)
    if problem.chain in ("none", "zero"):
        whole = replace(whole, delta=problem.chain)
    whole = replace(whole, dots=tuple(dots))
    cuts = [0, len(Y)] if Y.size == 0 else S.cuts(whole.lanes)
    most = (64 if llvm.has_long_registers() else 32) * 8 // real.itemsize // whole.parts
    calls: list[tuple[Callable[..., None], tuple[int, ...], int, int]] = []
    sums: list[tuple[RowKernel, Array, Array]] = []  # with what the calls hold addresses of
    for begin in range(0, width, most):
        kernel = replace(whole, width=min(most, width - begin))
        shifted = np.ascontiguousarray(shifts[:, whole.parts * begin :][:, : kernel.lanes])
        total = np.zeros((len(cuts) - 1, len(kernel.sums), kernel.lanes))
        places = [number for block in (X, Y, Z) for number in _place(block, begin)]
        arguments = (*_addresses(S.indptr, S.indices, S.data), *places, *_addresses(factors, shifted))
        calls.append((_function(kernel), arguments, _addresses(total)[0], total[:1].nbytes))
        sums.append((kernel, shifted, total))

    def work(block: int) -> None:
        for function, arguments, total, size in calls:
            function(cuts[block], cuts[block + 1], *arguments, total + block * size)

    run_in_threads(work, len(cuts) - 1)
    for name, out in dots.items():
        found = [_dot(kernel, total, name, out.dtype) for kernel, _, total in sums]
        out[...] = np.concatenate(found) if found else 0


def update_columns(S: RowBlocks, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any) -> bool:
    """Set Y = alpha (S - shift I) X + beta Y for column-major arrays of one type.

    Return False, and do nothing, if that should not be compiled.
    """
    width, parts = Y.shape[1], 2 if Y.dtype.kind == "c" else 1
    is_plain = type(shift) is int and shift == 0  # NumPy takes longer to find out
    passes = int(not is_plain and (np.ndim(shift) > 0 or shift != 0)) + (beta not in (0, 1))
    if width not in COLUMNS or _refusal(S.shape[0], S.nnz, parts * width, passes):
        return False
    kernel, factors, shifts = _kernel(S, Y, (alpha, beta, 0, 1), shift)
    function = _function(replace(kernel, delta="none", by_columns=True))
    columns = [(*_addresses(block), block.strides[1] * parts // block.itemsize) for block in (X, Y)]
    places = [number for place in columns for number in place]
    arguments = (*_addresses(S.indptr, S.indices, S.data), *places, 0, 0, *_addresses(factors, shifts), 0)
    cuts = S.cuts(kernel.lanes)
    run_in_threads(lambda block: function(cuts[block], cuts[block + 1], *arguments), len(cuts) - 1)
    return True


def _kernel(S: RowBlocks, Y: Array, factors: Sequence[complex], shift: Any) -> tuple[RowKernel, Array, Array]:
    """Describe the kernel of a product; return it, and the factors and shifts that it reads.

    Shifts are two rows, real and imaginary parts, repeated for the parts of each column.
    """
    from .sparse_source import LINE_BYTES, RowKernel

    width, parts, real = Y.shape[1], 2 if Y.dtype.kind == "c" else 1, REAL_TYPES[Y.dtype.name]
    alpha, beta, delta, eta = map(_class, factors)
    shifts = np.broadcast_to(np.asarray(shift), (width,))
    shift_kind: Factor = "none" if np.ndim(shift) == 0 and shift == 0 else "real"
    with quiet_arithmetic():
        values = np.array(factors, np.complex128).view(np.float64).astype(real)
        both = np.stack([shifts.real, shifts.imag]).astype(real).repeat(parts, axis=1)
    kernel = RowKernel(
        width,
        *(Y.dtype.name, S.data.dtype.name, S.indptr.itemsize, S.indices.itemsize),
        alpha="real" if alpha == "zero" else alpha,
        beta=beta,
        shift="complex" if shifts.imag.any() else shift_kind,
        delta=delta,
        eta="real" if eta == "zero" else eta,
        lines=min(max(round(S.nnz * S.data.itemsize / (LINE_BYTES * max(S.shape[0], 1))), 1), 8),
    )
    return kernel, values, both


def _class(factor: complex) -> Factor:
    if complex(factor).imag != 0:
        return "complex"
    return "zero" if factor == 0 else "one" if factor == 1 else "real"


def _operand(X: Array, dtype: np.dtype[Any], S: RowBlocks) -> Array:
    """Convert X to a type; copy a view where its rows are read so often that the copy saves time."""
    if X.dtype == dtype and (X.flags.c_contiguous or S.nnz <= SHORT_ROWS * len(X)):
        return X
    copy = np.empty(X.shape, dtype)
    map_rows(lambda begin, end: np.copyto(copy[begin:end], X[begin:end]), len(X))
    return copy


def _addresses(*arrays: Array) -> list[int]:
    return [int(array.__array_interface__["data"][0]) for array in arrays]


def _place(block: Array, column: int) -> tuple[int, int]:
    """Determine the address of a column, and the distance between rows in real numbers."""
    real = block.itemsize // (2 if block.dtype.kind == "c" else 1)
    return _addresses(block)[0] + column * block.itemsize, block.strides[0] // real


def _dot(kernel: RowKernel, total: Array, name: str, dtype: np.dtype[Any]) -> Array:
    """Add up a column dot over the row blocks, in their order, and over the parts of complex numbers."""

    def summed(which: str) -> Array:
        lanes = total[:, kernel.sums.index(which)].sum(axis=0)
        columns: Array = lanes.reshape(-1, kernel.parts).sum(axis=1)
        return columns

    if dtype.kind != "c":
        return summed(name)
    return summed("xy") - 1j * summed("xiy")
