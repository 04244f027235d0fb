"""The records of a solve: the problem, the limits and the order of values, sizes, costs and states."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector
from blockvec.system.frozen import frozen

from .blocks import Block, Operator, RealArray, times
from .runtime.checkpoint import Checkpoint

if TYPE_CHECKING:
    from .iterations.correction import JacobiDavidsonOptions
    from .linear.systems import Preconditioner

Method = Literal["auto", "lanczos", "filter", "jd", "dense"]
Chosen = Literal["lanczos", "filter", "jd", "dense"]
Verify = Literal["auto", "always", "never"]
Precision = Literal["auto", "double", "mixed"]  # precision of filters
Which = Literal["LA", "SA", "LM"]
Selection = Literal["LA", "SA", "LM", "BE"]
WHICH: tuple[Which, ...] = ("LA", "SA", "LM")
Stop = Literal[
    "converged",
    "maxiter",
    "callback",
    "time_limit",
    "interrupted",
    "stagnated",
    "costly",
    "outliers",  # values far out are computed, without which there is a filter: the others follow
    "inexact",  # errors of OPinv limit residuals
]
STOPPED = ("interrupted", "time_limit", "callback")  # reasons of the caller to end a solve

FLOOR = 100.0  # residuals below FLOOR * u * (||A|| + |theta|) count as converged: the limit set by rounding
SAME_VALUE = 10.0  # residual limits within which values may be copies of one eigenvalue
# Share of the limits of true residuals up to which values are computed, and left out of what follows.
# Rounding errors are a tenth of the limits of the smallest tolerance; couplings of this size to the others
# vanish in a Rayleigh-Ritz step of all.
COMPUTED = 0.5


class Verification(Enum):
    """What became of the check that no copy of a multiple eigenvalue is missing, the surest first."""

    PROVED = "proved"  # by counts of eigenvalues from factorisations
    SEARCHED = "searched"  # for further copies, in the complement of the computed vectors
    NOT_NEEDED = "not needed"  # as after dense LAPACK, which finds everything
    UNDECIDED = "undecided"  # a search was cut short, or could not tell
    SKIPPED = "skipped"  # switched off, or the solve ended before

    @property
    def is_decided(self) -> bool:
        """Whether the number of copies is known."""
        return self not in (Verification.UNDECIDED, Verification.SKIPPED)

    def joined(self, other: Verification) -> Verification:
        """Return the less sure one of those of two parts."""
        return max(self, other, key=list(Verification).index)


@frozen
class Tolerance:
    """Convergence criterion: a limit of the residual norm ||A x - theta x|| for ||x|| = 1.

    `tol` is relative to abs(theta), to ||A|| + abs(theta), or absolute; zero means the rounding floor. `unit`
    is the unit roundoff of the working precision, `rounding` a bound of the errors of products with A per
    ||x||: that of a row grows with its length.
    """

    tol: float
    convergence: Literal["value", "norm", "absolute"]
    unit: float
    rounding: float = 0.0

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        """Compute the residual limit per value from (an estimate of) ||A||."""
        floor = self.floor(theta, norm)
        if self.convergence == "absolute":
            return np.maximum(self.tol, floor)
        return np.maximum(self.tol * (np.abs(theta) + (norm if self.convergence == "norm" else 0)), floor)

    def margins(self, theta: RealArray, norm: float) -> RealArray:
        """Compute by how much another value must be more wanted than one of these to displace it."""
        return self.limits(theta, norm)

    def floor(self, theta: RealArray, norm: float) -> RealArray:
        """Compute the rounding floor: 100 u (||A|| + abs(theta)), that of products if it is larger."""
        floor: RealArray = np.maximum(FLOOR * self.unit * (norm + np.abs(theta)), self.rounding)
        return floor


def ranking_key(theta: Any, which: Which) -> Any:
    """Compute the ranking key of values: larger for more wanted ones."""
    if which == "LA":
        return theta
    return -theta if which == "SA" else np.abs(theta)


def select(theta: RealArray, which: Selection) -> NDArray[np.intp]:
    """Sort values by ranking key, descending; for "BE" alternately from both ends. Return indices.

    Examples
    --------
    >>> import numpy as np
    >>> [select(np.array([-3.0, 1.0, 2.0]), which).tolist() for which in ("LM", "BE")]
    [[0, 2, 1], [2, 0, 1]]
    """
    if which == "BE":
        rank = np.argsort(np.argsort(-theta, kind="stable"), kind="stable")
        return np.argsort(np.minimum(2 * rank, 2 * (len(theta) - 1 - rank) + 1), kind="stable")
    return np.argsort(-ranking_key(theta, which), kind="stable")


def split_outliers(
    theta: RealArray, residuals: RealArray, limits: RealArray, which: Which
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the computed values that are further from all others than these are from each other.

    Returns the indices of both, ascending; of none of the first if they are not far out.

    Examples
    --------
    >>> import numpy as np
    >>> theta = np.array([1.8, 1.9, 2.0, 8.9, 9.0])
    >>> split_outliers(theta, np.zeros(5), np.ones(5), "LA")[0].tolist()
    [3, 4]
    """
    order, most, outside = select(theta, which), 1.0, 0
    keys, residuals = ranking_key(theta, which)[order], residuals[order]
    computed = int(np.argmin(np.append(residuals <= COMPUTED * limits[order], False)))
    for count in range(1, min(computed, len(keys) - 2) + 1):
        gap, rest = float(keys[count - 1] - keys[count]), keys[count:]
        spread = max(float(rest[0] - rest[-1]), float(residuals[count:].max()))
        if gap > most * spread:
            most, outside = gap / spread if spread else np.inf, count
    return np.sort(order[:outside]), np.sort(order[outside:])


def asks_for_corrections(method: str, preconditioner: Any, jd_options: Any) -> bool:
    """Check whether options ask for Jacobi-Davidson, by name or by an option that only it has."""
    return method == "jd" or preconditioner is not None or jd_options is not None


def excess(residuals: RealArray, limits: RealArray) -> RealArray:
    """Divide residuals by their limits, which are zero or denormal numbers for the smallest matrices."""
    return residuals / np.maximum(limits, np.finfo(np.float64).smallest_subnormal)


@frozen
class IterationState:
    """State of an iteration after a restart or an outer iteration, for callbacks and the history.

    Attributes
    ----------
    restart : int
    eigenvalues : array, shape (k,)
        Ritz values, the most wanted first.
    residuals : array, shape (k,)
        Estimated residual norms.
    limits : array, shape (k,)
        Residual norms up to which pairs count as converged.
    operator_columns : int
    time_s : float
        Time since the call.
    """

    restart: int
    eigenvalues: RealArray
    residuals: RealArray
    limits: RealArray
    operator_columns: int
    time_s: float

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> IterationState:
        """Make a state from a dictionary of its fields, with lists for arrays."""
        fields: Any = {name: np.array(x) if isinstance(x, list) else x for name, x in saved.items()}
        return cls(**fields)

    def times(self, exponent: int) -> IterationState:
        """Multiply values, residuals and limits by 2^exponent."""
        names = ("eigenvalues", "residuals", "limits")
        return replace(self, **{name: times(getattr(self, name), exponent) for name in names})

    @property
    def converged(self) -> int:
        """Number of wanted pairs whose estimated residual norm is within its limit."""
        return int(np.count_nonzero(self.residuals <= self.limits))


@dataclass(slots=True)
class Counts:
    """Operation counts of a solve; those of the operator include verification."""

    operator_columns: int = 0  # columns that the operator was applied to
    block_applications: int = 0  # calls of the operator
    verification_columns: int = 0  # columns of `operator_columns` for missed eigenvalues
    reductions: int = 0  # inner products over the tall dimension
    restarts: int = 0
    preconditioner_columns: int = 0  # columns that the preconditioner was applied to
    single_columns: int = 0  # columns of `operator_columns` in single precision within a solve in double

    def apply(self, columns: int, times: int = 1) -> None:
        """Count `times` applications of the operator to a block."""
        self.operator_columns += columns * times
        self.block_applications += times

    def precondition(self, columns: int) -> None:
        """Count an application of the preconditioner to a block."""
        self.preconditioner_columns += columns

    def add(self, part: Counts, times: int = 1) -> None:
        """Add the costs of a part of the solve, whose operator applies A `times` times."""
        self.operator_columns += times * part.operator_columns
        self.block_applications += times * part.block_applications
        self.reductions += part.reductions
        self.single_columns += times * part.single_columns


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A Hermitian eigenproblem with all options of a call.

    `eigsh` forms one from its arguments. Solves in several parts derive others by `dataclasses.replace`.
    """

    operator: Operator
    k: int
    which: Selection  # with a target "LM", as of (A - target I)^-1
    tolerance: Tolerance
    rng: np.random.Generator
    target: float | None = None  # wanted are the eigenvalues nearest to it, by Jacobi-Davidson or a filter
    norm: float | None = None  # ||A||_2 where it is known
    start: Block | None = None  # start vectors; overwritten. None draws random ones
    locked: Block | None = None  # orthonormal vectors to stay orthogonal to
    # Eigenvalues of the locked columns where these are eigenvectors.
    deflated: RealArray = field(default_factory=partial(np.zeros, 0))
    verify: Verify = "auto"  # look for missed copies before the end; "auto": where copies can be missing
    exponent: int = 0  # callbacks and the history receive values times 2^exponent
    callback: Callable[[IterationState], object] | None = None
    checkpoint: Checkpoint | None = None
    time_limit: float | None = None  # in seconds from `begin_s`
    begin_s: float = field(default_factory=time.perf_counter)  # at the beginning of the call
    method: Method = "auto"
    method_why: str = "asked for"  # the reason for a method that is not "auto"
    precision: Precision = "auto"  # of filters
    block_size: int | None = None  # None, as for ncv and maxiter, where `sizes.py` chooses
    ncv: int | None = None
    maxiter: int | None = None
    # Maps a block to a new one: about (A - target)^-1. Where it has a method ``update(theta)``, that is
    # called whenever another pair is the first to be corrected, or its value has moved by more than its
    # residual.
    preconditioner: Preconditioner | None = None
    jd_options: JacobiDavidsonOptions | None = None
    has_costly_steps: bool = False  # a step of Lanczos takes longer than a Rayleigh-Ritz step
    solve_width: int = 0  # columns of blocks that sparse factors in the operator are applied to at full speed
    blocks: type[BlockVector] = BlockVector  # whose inner product the operator is Hermitian in
    dtype: str | None = None  # of the matrix of the caller, where the operator has another one
    may_be_dense: bool = False  # dense LAPACK answers where an iteration fails or costs more
    # Whether the method that takes over from an iteration takes less time than this one has taken, or is
    # predicted to take in all (s).
    successor: Callable[[float, float], bool] | None = None
    # What follows from these.
    n: int = field(init=False, repr=False)  # rows of the operator
    n_locked: int = field(init=False, repr=False)  # locked columns
    start_width: int = field(init=False, repr=False)  # start vectors
    asks_for_corrections: bool = field(init=False, repr=False)  # for Jacobi-Davidson
    begins_with_corrections: bool = field(init=False, repr=False)  # whether Jacobi-Davidson runs first

    def __post_init__(self) -> None:
        asked = asks_for_corrections(self.method, self.preconditioner, self.jd_options)
        vars(self).update(
            n=self.operator.shape[0],
            n_locked=0 if self.locked is None else self.locked.shape[1],
            start_width=0 if self.start is None else self.start.shape[1],
            asks_for_corrections=asked,
            begins_with_corrections=asked or (self.target is not None and self.method == "auto"),
        )

    def is_late(self) -> bool:
        """Check whether the time limit of the call has passed."""
        return self.time_limit is not None and time.perf_counter() - self.begin_s > self.time_limit

    def ends_early(self, stopped: Stop) -> bool:
        """Check that an iteration has given up for a reason of its own, not by a limit of the caller."""
        return stopped in ("costly", "stagnated") or (stopped == "maxiter" and self.maxiter is None)


def staged(problem: Problem, name: str) -> Problem:
    """Give a part of a solve a checkpoint of its own."""
    checkpoint = problem.checkpoint
    return problem if checkpoint is None else replace(problem, checkpoint=checkpoint.stage(name))


@frozen
class IterationOptions:
    """Method and sizes of an iteration, as `sizes.py` chooses them."""

    block_size: int
    ncv: int  # basis vectors between restarts, the pending ones not counted
    maxiter: int  # maximum number of restarts, or of outer iterations of Jacobi-Davidson
    degree: int = 1  # of the polynomial that may take the place of A; 1 for none
    method: Chosen = "lanczos"
    why: str = ""  # reason for the method
    # Whether another method takes less time than so many calls so far, or than so many expected in all: the
    # run ends as "costly" then.
    is_outpaced: Callable[[float, float], bool] | None = None
    mixes: bool = False  # whether the polynomial may be one of a copy of A in single precision
