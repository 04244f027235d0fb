"""Options of Jacobi-Davidson beyond those of every iteration, and the arguments of a user's correction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from blockvec.errors import OptionError
from blockvec.system.frozen import frozen
from blockvec.system.scalars import plain

from ..blocks import Block, RealArray, SystemOperator

if TYPE_CHECKING:
    from ..linear.systems import Preconditioner

Correction = Literal["auto", "davidson", "olsen", "minres", "gmres"]

KEPT_SHARE = 0.4  # share of the basis beyond the wanted vectors that a restart keeps; PRIMME's
# Options of version 0.2 that have left, and what replaces them.
REMOVED: MappingProxyType[str, str] = MappingProxyType(
    {
        "extraction": 'vectors are extracted by "refined" around sigma and by "ritz" elsewhere',
        "initial_shift": "give sigma, or a function as correction",
        "initial_shift_iterations": "give a function as correction",
        "inner_base": "give inner_steps, or a function as correction",
        "inner_stop": "give inner_steps, or a function as correction",
        "inner_together": "give a function as correction that calls block_minres(with_first=True)",
        "look_ahead": "give block_size: more pairs are corrected at a time",
        "retained": "give block_size: a restart retains as many previous vectors",
        "start": "give v0",
        "start_basis": "give min_basis, or v0",
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
        theta.
    tol : array, shape (b,)
        Tolerances of the linear systems, relative to the residuals: 0.1^j in the j-th correction of a pair.
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
    min_basis : int, optional
        Number of vectors that a restart keeps; default k and two fifths of the rest of the basis.
    """

    correction: Correction | CorrectionSolver = "auto"
    inner_steps: int | None = None
    min_basis: int | None = None

    def __new__(cls, **options: Any) -> JacobiDavidsonOptions:
        """Refuse options of earlier versions."""
        for name in options.keys() & REMOVED.keys():
            raise OptionError(f"{name}: no longer an option of Jacobi-Davidson; {REMOVED[name]}.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Check values that do not depend on a problem; numbers of NumPy become Python's."""
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        known = get_args(Correction)
        if not (callable(self.correction) or self.correction in known):
            names = ", ".join(map(repr, known))
            raise OptionError(f"correction: got {self.correction!r}; give one of {names}, or a function.")
        if self.inner_steps is not None and self.inner_steps < 1:
            raise OptionError(f"inner_steps: got {self.inner_steps}; give at least 1.")

    def fingerprint(self) -> dict[str, Any]:
        """Return the options as plain values, functions by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"correction": getattr(self.correction, "__qualname__", self.correction)}

    def check(self, k: int, ncv: int, block_size: int) -> None:
        """Raise `OptionError` for options that do not fit a problem's sizes."""
        kept = self.min_basis
        if kept is not None and not k <= kept <= ncv - block_size:
            raise OptionError(
                f"min_basis: got {kept}; k = {k}, ncv = {ncv} and block_size = {block_size} need {k} to "
                f"{ncv - block_size}."
            )


def least_basis(k: int, ncv: int, block_size: int) -> int:
    """Return the default number of vectors that a restart keeps."""
    return max(k, min(k + int(KEPT_SHARE * (ncv - k)), ncv - 2 * block_size))
