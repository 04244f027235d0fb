"""Options of Jacobi-Davidson beyond those of every iteration, and the arguments of a user's correction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from blockvec.errors import OptionError
from blockvec.system.frozen import frozen
from blockvec.system.scalars import plain

from ..blocks import Block, RealArray, SystemOperator

if TYPE_CHECKING:
    from ..linear.systems import Preconditioner
    from .search_space import Extraction

Correction = Literal["auto", "davidson", "olsen", "minres", "gmres"]
Stop = Literal["adaptive", "power"]
Start = Literal["auto", "lanczos"]

KEPT_SHARE = 0.4  # share of the basis beyond the wanted vectors that a restart keeps


@frozen
class CorrectionProblem:
    """Arguments of a correction solver.

    Attributes
    ----------
    operator : Operator
        A, with its applications counted.
    X : BlockVector, shape (n, b)
        Orthonormal: the approximate eigenvectors.
    R : BlockVector, shape (n, b)
        Their residuals A x - theta x.
    shift : array, shape (b,)
        theta, or the initial shift.
    tol : array, shape (b,)
        Tolerances of the linear systems, relative to the residuals, for the "power" rule.
    preconditioner : callable or None
    deflation : callable
        Returns the orthonormal `Q`: converged vectors, then X, and on a GPU zero columns for padding.
    """

    operator: SystemOperator
    X: Block
    R: Block
    shift: RealArray
    tol: RealArray
    preconditioner: Preconditioner | None
    deflation: Callable[[], Block]

    @functools.cached_property
    def Q(self) -> Block:
        """Converged vectors, then X, orthonormal; formed once, on first use."""
        return self.deflation()


CorrectionSolver = Callable[[CorrectionProblem], Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobiDavidsonOptions:
    """Options of Jacobi-Davidson; the defaults are suitable without tuning.

    Attributes
    ----------
    correction : {"auto", "davidson", "olsen", "minres", "gmres"} or callable
        How corrections are computed. "davidson" applies the preconditioner to the residuals once, "olsen"
        projects that skew to the vectors, "minres" and "gmres" solve the correction equation; a callable
        maps a `CorrectionProblem` to a block. "auto" takes "minres"; with a preconditioner
        it begins with "davidson", and changes if that takes more than 40 corrections per pair.
    inner_steps : int, optional
        Maximum number of MINRES or GMRES steps; default 100 (60 around `sigma`) for MINRES, 30 for GMRES.
    inner_stop : {"adaptive", "power"}
        Stopping test of a correction by MINRES: Stathopoulos' tests (JDQMR), or a linear residual reduced by
        ``inner_base**j`` in the j-th correction of the pair. GMRES has the second only.
    inner_base : float
    inner_together : bool
        Whether all corrections of a block end as soon as one has.
    extraction : {"auto", "ritz", "harmonic", "refined"}
        How vectors are extracted from the space. At an end of the spectrum it is always "ritz"; around
        `sigma` "auto" means "refined".
    retained : int, optional
        Number of previous approximations of corrected vectors that a restart keeps besides the best vectors,
        the "+k" of GD+k; default the block size.
    min_basis : int, optional
        Number of vectors that a restart keeps; default k and two fifths of the rest of the basis.
    look_ahead : int, optional
        Number of pairs beyond the converged ones that are formed per iteration; default twice the block size.
    start : {"auto", "lanczos"}
        Initial search space without a given start: by block Lanczos steps; "auto" filters them around `sigma`
        if applying A is cheap compared with orthogonalising (a sparse matrix) and there is no
        preconditioner.
    start_basis : int, optional
        Number of vectors that block Lanczos steps compute before the first correction, at least k; default
        `min_basis`, or k with a preconditioner or a start.
    initial_shift : float, optional
        Shift of the first corrections instead of theta; default `sigma`.
    initial_shift_iterations : int
        Number of outer iterations with `initial_shift`.
    """

    correction: Correction | CorrectionSolver = "auto"
    inner_steps: int | None = None
    inner_stop: Stop = "adaptive"
    inner_base: float = 0.1
    inner_together: bool = False
    extraction: Extraction = "auto"
    retained: int | None = None
    min_basis: int | None = None
    look_ahead: int | None = None
    start: Start = "auto"
    start_basis: int | None = None
    initial_shift: float | None = None
    initial_shift_iterations: int = 0

    def __post_init__(self) -> None:
        """Check values that do not depend on a problem; numbers of NumPy become Python's."""
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        known = {
            "correction": ("auto", "davidson", "olsen", "minres", "gmres"),
            "inner_stop": ("adaptive", "power"),
            "extraction": ("auto", "ritz", "harmonic", "refined"),
            "start": ("auto", "lanczos"),
        }
        for name, values in known.items():
            given = getattr(self, name)
            if not (given in values or (name == "correction" and callable(given))):
                raise OptionError(f"{name}: got {given!r}; give one of {', '.join(map(repr, values))}.")
        least = {"inner_steps": 1, "retained": 0, "look_ahead": 1, "initial_shift_iterations": 0}
        for name, bound in least.items():
            given = getattr(self, name)
            if given is not None and given < bound:
                raise OptionError(f"{name}: got {given}; give at least {bound}.")
        if not 0 < self.inner_base < 1:
            raise OptionError(f"inner_base: got {self.inner_base}; give a number between 0 and 1.")

    def fingerprint(self) -> dict[str, Any]:
        """Return the options as plain values, functions by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"correction": getattr(self.correction, "__qualname__", self.correction)}

    def check(self, k: int, ncv: int, block_size: int, target: float | None) -> None:
        """Check options against a problem's sizes and target.

        Raises
        ------
        OptionError
        """
        if target is None and self.extraction in ("harmonic", "refined"):
            raise OptionError(
                f"extraction: got {self.extraction!r} without sigma; give sigma, or leave it out."
            )
        if target is None and self.initial_shift is None and self.initial_shift_iterations:
            raise OptionError(
                f"initial_shift_iterations: got {self.initial_shift_iterations} without a shift; give "
                "initial_shift or sigma."
            )
        for name in ("min_basis", "start_basis"):
            given = getattr(self, name)
            if given is not None and not k <= given <= ncv - block_size:
                raise OptionError(
                    f"{name}: got {given}; k = {k}, ncv = {ncv} and block_size = {block_size} need {k} to "
                    f"{ncv - block_size}."
                )


def least_basis(k: int, ncv: int, block_size: int) -> int:
    """Return the default number of vectors that a restart keeps."""
    return max(k, min(k + int(KEPT_SHARE * (ncv - k)), ncv - 2 * block_size))
