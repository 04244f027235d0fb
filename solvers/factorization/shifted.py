"""Inverses of A - sigma M, with a shift that is moved where it is an eigenvalue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockvec import BlockVector, Factorization, factorize
from blockvec.errors import OptionError

from ..blocks import Array

Solve = Callable[[Array], Array]

# First change of a shift at which the matrix is singular, in rounding errors: far enough from the eigenvalue
# that rounding errors of solves, which grow with the inverse of the distance, leave digits.
FIRST_MOVE = 1e4
MOVES, FURTHER = 8, 30.0  # number of changes, and their growth


class SingularError(OptionError):
    """Error for an A - sigma M that is singular for all sigma."""


@dataclass
class ShiftedInverse:
    """Solves with A - sigma M.

    Attributes
    ----------
    sigma : float
        The shift, moved if A - sigma M was singular.
    why : str
        The factorisation, in words.
    tolerance : float
        Residuals of at most tolerance ||x|| need no refinement.
    factors : Factorization or None
        None for a given inverse.
    """

    solver: Callable[[Array, float], Array]
    sigma: float
    why: str
    tolerance: float = 0.0
    factors: Factorization | None = None

    def solve(self, B: Array) -> Array:
        """Solve for a block; on the host also for a column-major one."""
        return self.solver(B, self.tolerance)


def shifted_inverse(
    A: Any, M: Any, sigma: float, *, device: str | None = None, factors: Factorization | None = None
) -> ShiftedInverse:
    """Factorise A - sigma M, with the identity for an M of None; `factors` of the same A and M are reused.

    If sigma is an eigenvalue to working precision, it is lowered by a few rounding errors of A: below a
    semidefinite matrix the order of magnitudes remains the same.
    """
    if factors is None:
        factors = factorize(A, M, sigma, device=device)
    elif factors.sigma != sigma:
        factors.refactorize(sigma)
    solves = factors
    for move in range(MOVES):
        if not solves.is_singular:
            break
        solves.refactorize(sigma - FIRST_MOVE * FURTHER**move * solves.shift_rounding(sigma))
    if solves.is_singular:
        raise SingularError(
            f"sigma: A - sigma M is singular for sigma = {sigma:g} and near it; A and M have a null vector "
            "in common, which must be removed."
        )
    where = f"sigma = {solves.sigma:.12g}"
    if solves.sigma != sigma:
        where += f", moved from {sigma:g}, an eigenvalue to working precision"
    why = f"A - sigma M is factorised for {where}, with {solves.growth:.1f} times its entries"

    def solver(B: Array, tolerance: float) -> Array:
        if solves.device == "cpu":
            return solves.solve_columns(np.asfortranarray(B), tolerance)
        return solves.solve(BlockVector(B), tolerance=tolerance).array

    return ShiftedInverse(solver, solves.sigma, why, factors=solves)
