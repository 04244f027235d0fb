"""The protocol of a backend: what BlockVector, operators and solvers need of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ..kernels.problem import ALL_ROWS
from ..system.frozen import frozen

if TYPE_CHECKING:
    from ..kernels.device import DeviceInfo
    from ..kernels.measure import CeilingProbe, Stopwatch
    from ..kernels.problem import Problem
    from ..kernels.source import Kernel
    from .cuda.graphs import Graphs

# With one element in so many, factors in any order are nearly full, and sparse libraries take several times
# as long for them.
NEARLY_FULL = 4
SMALL_ROWS, SMALL_ENTRIES = 20_000, 2_000_000

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array, or a CuPy array, which has the same interface but ships no types."""

DeviceArray: TypeAlias = Any
"""An `Array` in code that uses attributes of CuPy's arrays only, such as ``data.ptr`` and ``get``."""


def is_cupy(array: object) -> bool:
    """Check whether an object is a CuPy array, without importing CuPy."""
    kind = type(array)
    if kind not in _of_cupy:
        _of_cupy[kind] = kind.__module__.partition(".")[0] == "cupy"
    return _of_cupy[kind]


_of_cupy: dict[type, bool] = {}


@frozen
class Candidate:
    """One implementation of an operation on a device.

    ``run(problem, *operands)`` takes the operands by type of problem: TSMTTSM ``(A, B, C, alpha, beta)``;
    TSMM ``(A, C, B, alpha, beta)``; a sweep ``(W, V, C, S)``; SpMMV ``(S, X, Y, alpha, beta, shift)`` with S
    from `Backend.prepare_sparse`, and a `Fused` last if the problem is ``fused``, which candidates that
    compute Y alone must refuse; axpby ``(X, Y, out, alpha, beta)`` where Y may be None; column dots
    ``(X, Y, out, beta)``.

    ``prepare(problem)``, for a sparse product ``prepare(problem, S)``, compiles and loads the kernels that
    the first `run` would wait for, on any thread.
    """

    name: str  # in profiles and in `explain`
    run: Callable[..., None]
    refusal: str | None = None  # why it cannot or should not run this problem; None or empty if it can
    three_m: bool = False  # whether it takes three real products for a complex one
    configuration: Callable[[], str] = str  # its configuration and the origin of that choice, for `explain`
    source: Callable[[], str] = str  # of the kernel that its first run compiles; empty if it compiles none
    prepare: Callable[..., object] = lambda *_: None


def leading_dimension(array: Array) -> int:
    """Compute the leading dimension of a 2-D array: the distance between its rows in elements."""
    K, M = array.shape
    return int(array.strides[0] // array.itemsize) if K > 1 and M > 0 else max(int(M), 1)


@frozen
class Fused:
    """Results of an SpMMV beside Y, computed in the same pass from the new Y, rounded to its type.

    Z is set to delta Z + eta Y, and not read if delta is zero; it shares no memory with X and Y. Z and sums
    take the `rows` from one up to another.
    """

    Z: DeviceArray | None
    delta: complex
    eta: complex
    dots: dict[str, DeviceArray]  # column dots, shape (M,); those of a complex block with itself are real
    gram: dict[str, DeviceArray]  # X^H Y ("xy") and Y^H Y ("yy"), shape (M, M): contiguous, of Y's type
    rows: tuple[int, int] = ALL_ROWS


def is_nearly_full(matrix: Any) -> bool:
    """Check whether a matrix is applied and factorised faster as a dense one than as a sparse one."""
    stored = matrix.nnz if hasattr(matrix, "nnz") else np.count_nonzero(matrix)
    return bool(stored * NEARLY_FULL >= matrix.shape[0] * matrix.shape[1] > 0)


def is_small(n: int, entries: int) -> bool:
    """Check whether the host factorises a matrix of a GPU: in seconds, whatever its fill."""
    return n <= SMALL_ROWS and entries <= SMALL_ENTRIES


class Factors(Protocol):
    """Factors of a Hermitian sparse matrix, as a library of the device computes them, without refinement."""

    # Columns of the narrowest block whose columns take little more time than those of wider ones.
    width: int = 4
    # Stored elements, and their memory; 0 without factors.
    entries: int = 0
    nbytes: int = 0

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        """Factorise a matrix from `Backend.csr` with the pattern of the previous one; False for a zero pivot.

        With `exchanges_rows`, accuracy comes before sparse factors and an inertia. A library that replaces a
        zero pivot by a small one has factors all the same.
        """

    @property
    def negative(self) -> int | None:
        """Number of negative eigenvalues; None if the factors do not tell."""

    def log_determinant(self) -> tuple[complex, float] | None:
        """Compute the sign and log|det| from the pivots; None if the library does not tell them."""
        return None

    def solve(self, B: Array) -> Array:
        """Solve for a block of the matrix's type, on a GPU for a row-major one, which it returns."""


class Backend(Protocol):
    """One device and the operations that run on it. Instances are shared and hold no results."""

    def __hash__(self) -> int:
        """Hash by identity; backends are part of the keys of cached kernel choices."""

    name: str  # ``"cpu"`` or ``"cuda:0"``
    xp: ModuleType  # NumPy or CuPy

    @property
    def device(self) -> DeviceInfo:
        """Fixed properties of the device."""

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """List the implementations of a problem, the preferred ones first."""

    def prepare_sparse(self, matrix: Any) -> Any:
        """Convert a CSR matrix of SciPy or CuPy, or a `Chain`, to the form that SpMMV candidates take.

        It has the attributes `pattern`, `longest`, `index_bytes` and `coded` of an `SpmmvProblem`.
        """

    def transposed_csr(self, matrix: Any) -> Any:
        """Transpose a matrix of `prepare_sparse` in the memory of its device; None where the host has to."""
        return None

    def scaled_csr(self, matrix: Any, factor: float, dtype: np.dtype[Any]) -> Any:
        """Multiply the entries of a prepared matrix and convert them to a type; other arrays are shared."""

    def csr(self, matrix: Any, dtype: np.dtype[Any]) -> Any:
        """Convert a sparse or dense matrix of any device to SciPy's or CuPy's canonical CSR form."""

    def factors(self, matrix: Any) -> Factors:
        """Make an object that factorises Hermitian matrices of about the pattern of one from `csr`."""

    def factor_library(self, dtype: str = "float64") -> str:
        """Name the library by which `factors` factorises large matrices of a type; empty without one."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate an uninitialised row-major array."""

    def from_host(self, array: Array) -> Array:
        """Copy a NumPy array to this device."""

    def to_host(self, array: Array) -> Array:
        """Copy an array of this device to a NumPy array; waits for the device."""

    def start_copies(self, *arrays: Array) -> Callable[[], list[Array]]:
        """Start copies of small arrays to the host; the function returned waits for all and returns them."""

    def krylov_steps(self, matrix: Any, V: Array, b: int) -> Any:
        """Prepare Lanczos steps, one or several per launch, with a prepared matrix; None without a kernel.

        See `blockvec.operators.sparse.SparseOperator.krylov_steps`.
        """
        return None

    def krylov_kernel(self, dtype: str, rows: int, columns: int, b: int) -> Any:
        """Describe the kernel of these steps on a basis, as `load_kernel` takes it; None without one."""
        return None

    def recurrence_kernel(self, matrix: Any, dtype: str, b: int, lanczos: bool) -> Any:
        """Describe the kernel of `recurrence`, or of `lanczos_recurrence`, for contiguous blocks likewise."""
        return None

    def recurrence(
        self, matrix: Any, X: Array, Y: Array, alpha: complex, beta: complex, shift: complex, turns: int
    ) -> Callable[[], None] | None:
        """Bind Y = alpha (A - shift I) X + beta Y, of which X and Y take turns, to one launch.

        None where there is no kernel, or one launch per product takes no more time.
        """
        return None

    def lanczos_recurrence(
        self, matrix: Any, X: Array, norms: Callable[[], Array]
    ) -> Callable[[int], Array] | None:
        """Prepare Lanczos recurrences from the columns of X, whose norms a function computes, in one launch.

        See `blockvec.operators.sparse.SparseOperator.lanczos_recurrence`. None as `recurrence`.
        """
        return None

    def inverse_factor(self, G: Array, limit: float) -> tuple[Array, Array]:
        """Compute T = R^-1 for G = R^H R, and a report; see `blockvec.inverse_factor`.

        The report has 3 b + 1 rows of double-precision numbers: the Hermitian part of G, R, T, and a row that
        begins with the growth.
        """

    def fill_random(self, out: Array, key: int, offset: int) -> None:
        """Fill row-major `out` with uniform numbers on [-1, 1): stream `key` from number `offset` on."""

    def copy(self, source: Array, target: Array) -> None:
        """Copy a block or a row to one of the same shape on this device; its type is converted."""
        target[...] = source

    def contiguous(self, array: Array) -> Array:
        """Return an array, or a row-major copy where it has gaps or another order."""
        return np.ascontiguousarray(array)

    def fill(self, out: Array, value: complex) -> None:
        """Set all elements of a block to one value."""
        out[...] = value

    def are_within(self, ranges: Sequence[tuple[Array, int, bool]]) -> bool:
        """Check whether integers are not negative and below a bound, and ascend from 0 where asked.

        `ranges` are arrays, bounds, and whether they must ascend; those that must are not empty. Waits for
        the device once.
        """
        valid: Any = True
        for values, bound, ascends in ranges:
            if ascends:
                valid = valid & (values[0] == 0) & (values[-1] < bound) & (values[1:] >= values[:-1]).all()
            elif values.size:
                valid = valid & (values.min() >= 0) & (values.max() < bound)
        return bool(valid)

    def diagonal(self, matrix: Any) -> Array:
        """Compute the real diagonal of a square matrix in CSR or CSC form, of one of the four types."""
        values: Array = matrix.diagonal().real
        return values

    def evaluate(self, function: Callable[..., Any], rows: Sequence[Array], out: Sequence[Array]) -> None:
        """Write the results of a function of rows to others; see `blockvec.RowFunction`."""
        results = function(self.xp, *rows)
        # A result that is one of the rows may be written before it is read.
        results = [result.copy() if any(result is row for row in rows) else result for result in results]
        for row, result in zip(out, results, strict=True):
            row[...] = result

    def load_kernel(self, kernel: Kernel) -> None:
        """Compile a kernel without choices and load it, on any thread; nothing where NumPy computes."""
        return

    def stopwatch(self) -> Stopwatch:
        """Start timing work on this device."""

    def block_stream(self) -> None:
        """Keep the device busy while a burst of calls is queued, so that no call waits for the host."""
        return

    def ceiling_probes(self) -> Sequence[CeilingProbe]:
        """List the measurements that determine the device's ceilings."""

    def graphs(self) -> Graphs | None:
        """Make a recorder of operations on this device; None where they are called again."""
        return None

    def synchronize(self) -> None:
        """Wait for the work queued on the current stream, if the device has streams."""
        return
