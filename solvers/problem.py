"""The two records of a solve: the problem asked for, and the options of an iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .blocks import Block, Operator, RealArray
from .iterations.jd_options import JacobiDavidsonOptions
from .iterations.rayleigh_ritz import Selection, Tolerance
from .linear.systems import Preconditioner
from .runtime.checkpoint import Checkpoint

if TYPE_CHECKING:
    from .iterations.base import IterationState

__all__ = ["Chosen", "IterationOptions", "Method", "Problem", "Verify", "asks_for_corrections"]

Method = Literal["auto", "lanczos", "filter", "jd", "dense"]
Chosen = Literal["lanczos", "filter", "jd", "dense"]
Verify = Literal["auto", "always", "never"]


def asks_for_corrections(method: str, preconditioner: Any, jd_options: Any) -> bool:
    """Whether options ask for Jacobi-Davidson, by name or by an option that only it has."""
    return method == "jd" or preconditioner is not None or jd_options is not None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A Hermitian eigenproblem with all options of a call.

    `eigsh` forms one from its arguments. Solves in several parts derive others by `dataclasses.replace`.

    Attributes
    ----------
    operator : Operator, shape (n, n)
    k : int
        Number of wanted pairs.
    which : {"LA", "SA", "LM", "BE"}
        With `target` "LM", as of (A - target I)^-1.
    tolerance : Tolerance
    rng : numpy.random.Generator
    target : float or None
        Wanted are the eigenvalues nearest to it, by Jacobi-Davidson or a filter.
    norm : float or None
        ||A||_2 where it is known.
    start : BlockVector, shape (n, s), or None
        Start vectors; overwritten. None draws random ones.
    locked : BlockVector, shape (n, c), or None
        Columns to stay orthogonal to; orthonormal once `drivers.prepare` has run.
    deflated : array, shape (c,)
        Eigenvalues of the locked columns where these are eigenvectors.
    verify : {"auto", "always", "never"}
        Whether to look for missed copies before the end: "auto" does so where copies can be missing.
    check_hermitian : bool
        Whether to probe the operator with random vectors first.
    callback, checkpoint, time_limit
        As in `eigsh`; the limit in seconds.
    begin_s : float
        `time.perf_counter()` at the beginning of the call.
    method, block_size, ncv, maxiter
        As given to `eigsh`; None where the drivers choose.
    preconditioner : callable or None
        Maps a block to a new one: about (A - target)^-1. Where it has a method ``update(theta)``, that is
        called whenever another pair is the first to be corrected, or its value has moved by more than its
        residual.
    jd_options : JacobiDavidsonOptions or None
    """

    operator: Operator
    k: int
    which: Selection
    tolerance: Tolerance
    rng: np.random.Generator
    target: float | None = None
    norm: float | None = None
    start: Block | None = None
    locked: Block | None = None
    deflated: RealArray = field(default_factory=lambda: np.zeros(0))
    verify: Verify = "auto"
    check_hermitian: bool = False
    callback: Callable[[IterationState], object] | None = None
    checkpoint: Checkpoint | None = None
    time_limit: float | None = None
    begin_s: float = 0.0
    method: Method = "auto"
    block_size: int | None = None
    ncv: int | None = None
    maxiter: int | None = None
    preconditioner: Preconditioner | None = None
    jd_options: JacobiDavidsonOptions | None = None

    @property
    def n(self) -> int:
        """Rows of the operator."""
        return self.operator.shape[0]

    @property
    def n_locked(self) -> int:
        """Number of locked columns."""
        return 0 if self.locked is None else self.locked.shape[1]

    @property
    def asks_for_corrections(self) -> bool:
        """Whether Jacobi-Davidson is asked for, by name or by an option that only it has."""
        return asks_for_corrections(self.method, self.preconditioner, self.jd_options)

    @property
    def is_around_target(self) -> bool:
        """Whether values around a target are asked for by whichever method finds them."""
        return self.target is not None and self.method == "auto"

    @property
    def begins_with_corrections(self) -> bool:
        """Whether Jacobi-Davidson runs first."""
        return self.is_around_target or self.asks_for_corrections


@dataclass(frozen=True, slots=True)
class IterationOptions:
    """Method and sizes of an iteration, as the drivers choose them.

    Attributes
    ----------
    block_size : int
        Columns per step.
    ncv : int
        Basis vectors between restarts, the pending ones not counted.
    maxiter : int
        Maximum number of restarts, or of outer iterations of Jacobi-Davidson.
    degree : int
        Of the polynomial that `FilteredRestart` may put in the place of A; 1 for none.
    method : {"lanczos", "filter", "jd", "dense"}
    why : str
        Reason for the method.
    """

    block_size: int
    ncv: int
    maxiter: int
    degree: int = 1
    method: Chosen = "lanczos"
    why: str = ""
