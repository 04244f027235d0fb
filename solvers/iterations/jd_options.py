"""Options of Jacobi-Davidson beyond those of every iteration."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from blockvec.errors import OptionError

from .correction import Correction, CorrectionSolver, Stop
from .search_space import Extraction

__all__ = ["JacobiDavidsonOptions", "least_basis"]

Start = Literal["auto", "lanczos"]

KEPT_SHARE = 0.4  # of the basis beyond the wanted vectors survives a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobiDavidsonOptions:
    """How Jacobi-Davidson goes about it; every default suits without tuning.

    Attributes
    ----------
    correction : {"auto", "davidson", "olsen", "minres", "gmres"} or callable
        How corrections are computed. "davidson" applies the preconditioner to the residuals once, "olsen"
        projects that skew to the vectors, "minres" and "gmres" solve the correction equation; a callable
        maps a `CorrectionProblem` to a block. "auto" takes "minres"; with a preconditioner
        it begins with "davidson", and changes where that takes more than 40 corrections a pair.
    inner_steps : int, optional
        Steps of MINRES or GMRES at most; default 100 (60 around `sigma`) for MINRES, 30 for GMRES.
    inner_stop : {"adaptive", "power"}
        When a correction by MINRES ends before: by Stathopoulos' tests (JDQMR), or where the linear residual
        is ``inner_base**j`` of what it was, the j-th time the pair comes up. GMRES has the second only.
    inner_base : float
    inner_together : bool
        Whether all corrections of a block end as soon as one has.
    extraction : {"auto", "ritz", "harmonic", "refined"}
        How vectors are taken from the space. At an end of the spectrum "ritz" is all there is; around
        `sigma` "auto" is "refined".
    retained : int, optional
        Previous approximations of the vectors being corrected that a restart keeps beside the best vectors,
        the "+k" of GD+k; default the block size.
    min_basis : int, optional
        Vectors that a restart keeps; default k and two fifths of the rest of the basis.
    look_ahead : int, optional
        Wanted pairs beyond those converged that are examined in an iteration; default twice the block size.
    start : {"auto", "lanczos"}
        Where the search space begins that is not given: with block Lanczos steps; "auto" takes those of a
        filter around `sigma` where applying A is cheap beside orthogonalising (a sparse matrix) and there
        is no preconditioner.
    start_basis : int, optional
        Vectors that block Lanczos steps make before the first correction, at least k; default `min_basis`,
        and k where there is a preconditioner or a start.
    initial_shift : float, optional
        Shift of the first corrections in place of theta, default `sigma`, for
    initial_shift_iterations : int
        outer iterations.
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
        """Refuse what no problem can use."""
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
        """Return the options as plain values, those that are functions by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"correction": getattr(self.correction, "__qualname__", self.correction)}

    def check(self, k: int, ncv: int, block_size: int, target: float | None) -> None:
        """Refuse what a problem cannot use.

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
    """Return how many vectors survive a restart."""
    return max(k, min(k + int(KEPT_SHARE * (ncv - k)), ncv - 2 * block_size))
