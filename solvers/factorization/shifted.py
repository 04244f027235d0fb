"""Inverses of A - sigma M, with a shift that is moved where it is an eigenvalue."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from blockvec import BlockVector, Factorization, Operator, array_namespace, single_threaded_blas
from blockvec.errors import BreakdownError, OptionError
from blockvec.system.frozen import frozen

from ..blocks import Array, to_host
from ..problem import FLOOR
from ..result import SingularError
from ..small_matrices import UNIT

Solve = Callable[[Array], Array]

# First change of a shift at which the matrix is singular, in rounding errors: far enough from the eigenvalue
# that rounding errors of solves, which grow with the inverse of the distance, leave digits.
FIRST_MOVE = 1e4
MOVES, FURTHER = 9, 30.0  # number of changes, and their growth; of counts at an end of an interval, too
INVERSE = 1e-3  # relative residual of a random vector above which OPinv, or Minv, is no inverse
# Largest errors of pivots with which the steps of an iteration take solves without refinement: relative to
# the distance of the nearest eigenvalue, since they are amplified by its inverse (at 5e-8 a graph needed
# refined steps), and in u, of which one refined solve for the vectors left 140 at most. Refined steps took
# 1.1 to 2.2 times as long in spectra.
HARMLESS = math.sqrt(UNIT)
ROUGH = 1000.0  # u


@frozen
class ShiftedInverse:
    """Solves with A - sigma M."""

    solve: Solve  # of a block; on the host also for a column-major one
    sigma: float  # moved if A - sigma M was singular
    why: str  # the factorisation, in words
    once: Solve | None = None  # solve of a block without refinement; None where iterations need refinement
    factors: Factorization | None = None  # None for a given inverse
    error: float = 0.0  # residual of solves with a given inverse, relative to B; 0 if rounding explains it


def shifted_inverse(solves: Factorization, sigma: float) -> ShiftedInverse:
    """Factorise A - sigma M, unless that has been done.

    If sigma is an eigenvalue to working precision, it is lowered by a few rounding errors of A: below a
    semidefinite matrix the order of magnitudes remains the same.
    """
    if solves.sigma != sigma:
        solves.refactorize(sigma)
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

    unit, error = float(np.finfo(solves.dtype).eps) / 2, solves.pivot_error
    is_harmless = solves.device == "cpu" and error <= min(HARMLESS * solves.nearest, ROUGH * unit)

    def solve(B: Array) -> Array:
        if solves.device == "cpu":
            return solves.solve_columns(np.asfortranarray(B))
        return solves.solve(BlockVector(B)).array

    def once(B: Array) -> Array:
        return solves.solve_once(np.asfortranarray(B))

    return ShiftedInverse(solve, solves.sigma, why, once if is_harmless else None, solves)


def checked_inverse(given: Operator, A: Operator, M: Operator | None, sigma: float) -> ShiftedInverse:
    """Check a given inverse of A - sigma M by solves for two random vectors, and refine one that is inexact.

    What is no inverse, or returns NaN or Inf, is refused.
    """

    def residual(B: BlockVector, X: BlockVector) -> BlockVector:
        R = B.copy()
        A.apply(X, out=R, alpha=-1, beta=1, shift=sigma if M is None else 0)
        return R if M is None or not sigma else M.apply(X, out=R, alpha=sigma, beta=1)

    def lengths(X: BlockVector) -> Array:
        return to_host(X.norms())

    errors: list[float] = []  # of refined solutions

    @single_threaded_blas.lifted()
    def solve(array: Array) -> Array:
        B = BlockVector(array_namespace(array).ascontiguousarray(array))
        X = given @ B
        for _ in errors[1:]:
            X += given.apply(residual(B, X))
        return X.array

    dtype = A.dtype if M is None else np.promote_types(A.dtype, M.dtype)
    B = BlockVector.random(A.shape[0], 2, dtype, rng=0, device=A.device)
    X, length = given.apply(B), lengths(B)
    size = lengths(A.apply(B)) + abs(sigma) * (length if M is None else lengths(M.apply(B)))
    while True:
        R = residual(B, X)
        error = float((lengths(R) / length).max())
        rounding = float(np.finfo(A.dtype).eps) / 2 * float(1 + (size * lengths(X) / length**2).max())
        if not np.isfinite(error):
            raise BreakdownError("OPinv returned NaN or Inf for a finite block.")
        if not errors and error > max(INVERSE, FLOOR * rounding):
            raise OptionError(
                f"OPinv: is not the inverse of A - sigma M for sigma = {sigma:g}; (A - sigma M) OPinv x "
                f"differs from x by {error:.1e} ||x|| for a random x, of which {INVERSE:g} is permitted."
            )
        if errors and error > errors[-1] / 2:
            break
        errors.append(error)
        if error <= FLOOR * rounding:
            break
        X += given.apply(R)
    is_exact, why = errors[-1] <= FLOOR * rounding, f"with OPinv for sigma = {sigma:g}"
    if len(errors) > 1:
        why += f", whose residuals of {errors[0]:.1e} are refined to {errors[-1]:.1e}"
    elif not is_exact:
        why += f", accurate to {errors[-1]:.1e}"
    return ShiftedInverse(solve, sigma, why, error=0.0 if is_exact else errors[-1])
