"""What a backend fills in so that BlockVector, operators and solvers run on its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..kernels.device import DeviceInfo
from ..kernels.elementwise import Kernel
from ..kernels.measure import CeilingProbe, Stopwatch
from ..kernels.problem import Problem
from ..kernels.roofline import Ceilings

__all__ = ["Array", "Backend", "Candidate", "Fused", "leading_dimension"]

Array: TypeAlias = Any
"""A NumPy array on the host, a CuPy array on a GPU. CuPy ships no types, so this is not checked further."""


def _nothing(problem: Problem, *operands: Any) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of an operation on a device.

    Attributes
    ----------
    name : str
        What profiles and `explain` show.
    run : callable
        ``run(problem, *operands)``. The operands by type of problem:
        TSMTTSM ``(A, B, C, alpha, beta)``; TSMM ``(A, C, B, alpha, beta)``; a sweep ``(W, V, C, S)``; SpMMV
        ``(S, X, Y, alpha, beta, shift)`` with S as `Backend.prepare_sparse` made it, and a `Fused` last where
        the problem is ``fused``, which candidates that make Y alone must refuse; axpby ``(X, Y, out, alpha,
        beta)`` where Y may be None; column dots ``(X, Y, out)``.
    refusal : str
        Why it cannot or should not run this problem; empty when it can.
    vendor : bool
        Whether the work is one call of a vendor library.
    configuration : callable
        Returns what it would be run with and where that choice came from, as text for `explain`.
    source : callable
        Returns the source of the kernel that its first run compiles; empty where there is none.
    prepare : callable
        ``prepare(problem)``, of a sparse product ``prepare(problem, S)``: compiles and loads the kernels that
        the first `run` would wait for, on any thread.
    """

    name: str
    run: Callable[..., None]
    refusal: str = ""
    vendor: bool = False
    configuration: Callable[[], str] = str
    source: Callable[[], str] = str
    prepare: Callable[..., object] = _nothing


def leading_dimension(array: Array) -> int:
    """Return the distance between the rows of a 2-D array in elements."""
    K, M = array.shape
    return int(array.strides[0] // array.itemsize) if K > 1 and M > 0 else max(int(M), 1)


@dataclass(frozen=True, slots=True)
class Fused:
    """What an SpMMV makes in the same pass as Y; Y stands for the new one, rounded to its type.

    Attributes
    ----------
    Z : array or None
        Set to delta Z + eta Y, and not read where delta is zero. Shares no memory with X and Y.
    delta, eta : scalar
        Its factors.
    dots : mapping of str to array, shape (M,)
        Set to column dots; those of a complex block with itself are real.
    gram : mapping of str to array, shape (M, M)
        Set to X^H Y (``"xy"``) and Y^H Y (``"yy"``); contiguous, of Y's type.
    """

    Z: Array | None
    delta: complex
    eta: complex
    dots: Mapping[str, Array]
    gram: Mapping[str, Array]


class Backend(Protocol):
    """One device and what runs on it. Instances are shared; they hold no results."""

    def __hash__(self) -> int:
        """Backends are compared by identity and key the memory of kernel choices."""

    @property
    def name(self) -> str:
        """``"cpu"`` or ``"cuda:0"``."""

    @property
    def xp(self) -> Any:
        """The array module, NumPy or CuPy."""

    @property
    def device(self) -> DeviceInfo:
        """Fixed properties of the device."""

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the implementations of a problem, the preferred ones first."""

    def prepare_sparse(self, matrix: Any) -> Any:
        """Return what the SpMMV candidates take for a sparse matrix in CSR form on this device.

        Its ``pattern`` and ``longest`` are what `SpmmvProblem` calls so.
        """

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return uninitialised row-major memory."""

    def from_host(self, array: Any) -> Array:
        """Return a copy on this device of a NumPy array."""

    def to_host(self, array: Array) -> Any:
        """Return a NumPy copy of an array of this device; waits for the device."""

    def start_copy(self, array: Array) -> Callable[[], Any]:
        """Start a NumPy copy of a small array of this device; return what waits for it and returns it."""

    def inverse_factor(self, G: Array, limit: float) -> tuple[Array, Array]:
        """Return T = R^-1 for G = R^H R, and a report; see `blockvec.small_matrices.inverse_factor`.

        The report has rows of double-precision numbers: G made Hermitian, R, T, and one that begins with the
        growth.
        """

    def fill_random(self, out: Array, key: int, offset: int) -> None:
        """Fill row-major `out` with uniform numbers on [-1, 1), numbers `offset` and on of stream `key`."""

    def load_kernel(self, kernel: Kernel) -> None:
        """Compile a kernel without choices and load it, on any thread."""

    def stopwatch(self) -> Stopwatch:
        """Start timing work on this device."""

    def hold(self) -> None:
        """Keep the device busy while a burst of calls is queued: their times are not the host's then."""

    def can_tune(self, problem: Problem, *operands: Any) -> bool:
        """Whether `tune` would find out something new about a problem, and may run now."""

    def tune(self, problem: Problem, ceilings: Ceilings, budget_s: float, *operands: Any) -> None:
        """Measure the kernels for a problem, for about that many seconds, and put the best on record.

        Sparse products are measured with the matrix among the operands, which are those of a `Candidate`.
        """

    def check_tunable(self) -> None:
        """Raise `OptionError` on a device where there is nothing to choose, and so nothing to tune."""

    def ceiling_probes(self) -> Sequence[CeilingProbe]:
        """Return ways to reach the device's ceilings."""

    def synchronize(self) -> None:
        """Wait for the work queued on the current stream."""
