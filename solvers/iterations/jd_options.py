"""Options of Jacobi-Davidson beyond those of every iteration, and the arguments of a user's correction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from blockvec.errors import OptionError
from blockvec.system.frozen import frozen
from blockvec.system.scalars import plain

from ..blocks import Block, RealArray, SystemOperator

if TYPE_CHECKING:
    from ..linear.systems import Preconditioner

Correction = Literal["auto", "davidson", "olsen", "minres", "gmres"]
Stop = Literal["adaptive", "power"]
Start = Literal["auto", "lanczos"]

KEPT_SHARE = 0.4  # share of the basis beyond the wanted vectors that a restart keeps
# Options of version 0.2 that have left: their defaults, which checkpoints hold, and what replaces others.
REMOVED: MappingProxyType[str, tuple[Any, str]] = MappingProxyType(
    {
        "extraction": ("auto", 'vectors are extracted by "refined" around sigma and by "ritz" elsewhere'),
        "inner_base": (0.1, "give inner_steps, or a function as correction"),
        "inner_together": (False, "give a function as correction that calls block_minres(with_first=True)"),
        "look_ahead": (None, "give block_size: twice as many pairs are formed"),
        "start_basis": (None, "give min_basis, or v0"),
    }
)


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
        ``0.1**j`` in the j-th correction of the pair. GMRES has the second only.
    retained : int, optional
        Number of previous approximations of corrected vectors that a restart keeps besides the best vectors,
        the "+k" of GD+k; default the block size.
    min_basis : int, optional
        Number of vectors that a restart keeps; default k and two fifths of the rest of the basis.
    start : {"auto", "lanczos"}
        Initial search space without a given start: by block Lanczos steps; "auto" filters them around `sigma`
        if applying A is cheap compared with orthogonalising (a sparse matrix) and there is no
        preconditioner.
    initial_shift : float, optional
        Shift of the first corrections instead of theta; default `sigma`.
    initial_shift_iterations : int
        Number of outer iterations with `initial_shift`.
    """

    correction: Correction | CorrectionSolver = "auto"
    inner_steps: int | None = None
    inner_stop: Stop = "adaptive"
    retained: int | None = None
    min_basis: int | None = None
    start: Start = "auto"
    initial_shift: float | None = None
    initial_shift_iterations: int = 0

    def __new__(cls, **options: Any) -> JacobiDavidsonOptions:
        """Refuse options of earlier versions."""
        for name in options.keys() & REMOVED.keys():
            raise OptionError(f"{name}: no longer an option of Jacobi-Davidson; {REMOVED[name][1]}.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Check values that do not depend on a problem; numbers of NumPy become Python's."""
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        known = {
            "correction": ("auto", "davidson", "olsen", "minres", "gmres"),
            "inner_stop": ("adaptive", "power"),
            "start": ("auto", "lanczos"),
        }
        for name, values in known.items():
            given = getattr(self, name)
            if not (given in values or (name == "correction" and callable(given))):
                raise OptionError(f"{name}: got {given!r}; give one of {', '.join(map(repr, values))}.")
        least = {"inner_steps": 1, "retained": 0, "initial_shift_iterations": 0}
        for name, bound in least.items():
            given = getattr(self, name)
            if given is not None and given < bound:
                raise OptionError(f"{name}: got {given}; give at least {bound}.")

    def fingerprint(self) -> dict[str, Any]:
        """Return the options as plain values, functions by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: default for name, (default, _) in REMOVED.items()}  # as in files of version 0.2
        return values | {"correction": getattr(self.correction, "__qualname__", self.correction)}

    def check(self, k: int, ncv: int, block_size: int, target: float | None) -> None:
        """Check options against a problem's sizes and target.

        Raises
        ------
        OptionError
        """
        if target is None and self.initial_shift is None and self.initial_shift_iterations:
            raise OptionError(
                f"initial_shift_iterations: got {self.initial_shift_iterations} without a shift; give "
                "initial_shift or sigma."
            )
        kept = self.min_basis
        if kept is not None and not k <= kept <= ncv - block_size:
            raise OptionError(
                f"min_basis: got {kept}; k = {k}, ncv = {ncv} and block_size = {block_size} need {k} to "
                f"{ncv - block_size}."
            )


def least_basis(k: int, ncv: int, block_size: int) -> int:
    """Return the default number of vectors that a restart keeps."""
    return max(k, min(k + int(KEPT_SHARE * (ncv - k)), ncv - 2 * block_size))
