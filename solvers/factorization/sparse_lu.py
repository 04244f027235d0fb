"""Sparse LU factorisations of Hermitian matrices, and accurate solves with A - sigma M."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import SuperLU, splu

from blockvec import BlockVector, as_operator
from blockvec.errors import OptionError

from ..blocks import Array

Solve = Callable[[Array], Array]

ACCURATE = 16.0  # a solution whose residual is below so many u of | |A| |x| + |b| | is as good as any
REFINEMENTS = 2  # steps of refinement in which a usable factorisation reaches that
SINGULAR = 30.0  # a matrix with an eigenvalue below so many u |x|^H |A| |x| is singular
# First change of a shift at which the matrix is singular, in u (||A|| / ||M|| + |sigma|): far enough from the
# eigenvalue that rounding errors of solves, which grow with the inverse of the distance, leave digits.
FIRST_MOVE = 1e4
MOVES, FURTHER = 8, 30.0  # number of changes, and their growth


class SingularError(OptionError):
    """Error for an A - sigma M that is singular for all sigma."""


@dataclass(frozen=True)
class ShiftedInverse:
    """Solves with A - sigma M."""

    solve: Solve
    sigma: float  # the shift, moved if A - sigma M was singular
    why: str  # the factorisation, in words


def factorise(matrix: Any) -> SuperLU | None:
    """Compute a sparse LU factorisation with the pivots on the diagonal; None if one of them is zero.

    Where only the last digits of a pivot are left, solutions are inaccurate.
    """
    try:
        return splu(
            matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
    except RuntimeError:
        return None


def shifted_inverse(A: Any, M: Any, sigma: float) -> ShiftedInverse:
    """Factorise A - sigma M, with the identity for an M of None.

    If sigma is an eigenvalue to working precision, it is lowered by a few rounding errors of A: below a
    semidefinite matrix the order of magnitudes remains the same.
    """
    mass = sp.eye_array(A.shape[0], dtype=A.dtype) if M is None else M
    unit = float(np.finfo(A.dtype).eps) / 2
    shift = sigma
    for move in range(MOVES):
        shifted = sp.csc_array(A - shift * mass)
        solver = _Solver.of(shifted)
        if solver is not None and not solver.is_singular:
            where = f"sigma = {shift:.12g}"
            if move:
                where += f", moved from {sigma:g}, an eigenvalue to working precision"
            fill = solver.lu.nnz / max(shifted.nnz, 1)
            why = f"A - sigma M is factorised for {where}, with {fill:.1f} times its entries"
            return ShiftedInverse(solver.solve, shift, why)
        scale = (_norm(A) / _norm(mass) + abs(sigma)) or 1.0
        shift = sigma - FIRST_MOVE * FURTHER**move * unit * scale
    raise SingularError(
        f"sigma: A - sigma M is singular for sigma = {sigma:g} and near it; A and M have a null vector in "
        "common, which must be removed."
    )


def _norm(matrix: Any) -> float:
    """Compute the largest absolute row sum of a Hermitian matrix."""
    return float(abs(matrix).sum(axis=0).max())


class _Solver:
    """Solves with a Hermitian matrix by an LU factorisation and as much refinement as that needs."""

    def __init__(self, matrix: Any, lu: SuperLU) -> None:
        self.lu = lu
        self.dtype = matrix.dtype
        self.unit = float(np.finfo(self.dtype).eps) / 2
        self._operator = as_operator(matrix.conj().T)  # the same matrix, by rows
        self._magnitudes = abs(matrix)
        self.refinements = 0
        self.is_singular = False
        self.is_accurate = self._tried()

    @classmethod
    def of(cls, matrix: Any) -> _Solver | None:
        """Factorise a matrix; None if it is exactly singular.

        Pivots on the diagonal keep the factors of a symmetric matrix several times sparser than partial
        pivoting, and refinement makes up for the digits that small pivots cost. Where it cannot, or a zero on
        the diagonal would be the pivot, the factorisation is done again with partial pivoting.
        """
        if matrix.diagonal().all():
            lu = factorise(matrix)
            if lu is not None and (solver := cls(matrix, lu)).is_accurate:
                return solver
        try:
            return cls(matrix, splu(matrix))
        except RuntimeError:
            return None

    def solve(self, B: Array) -> Array:
        """Compute the solutions of a block of right-hand sides."""
        X = self._solved(B)
        for _ in range(self.refinements):
            X += self._solved(self._residual(B, X))
        return X

    def _solved(self, B: Array) -> Array:
        return np.ascontiguousarray(self.lu.solve(np.asarray(B, dtype=self.dtype)))

    def _residual(self, B: Array, X: Array) -> Array:
        product = self._operator.apply(BlockVector(X)).array
        return np.subtract(B, product, out=product)

    def _tried(self) -> bool:
        """Count the refinements that a random right-hand side needs, and look for a singular matrix.

        The matrix is singular if two steps of inverse iteration find an eigenvalue that rounding explains.
        """
        B = np.random.default_rng(0).standard_normal((self._magnitudes.shape[0], 1)).astype(self.dtype)
        X = self._solved(B)
        while not (is_accurate := self._is_accurate(B, X)) and self.refinements < REFINEMENTS:
            X += self._solved(self._residual(B, X))
            self.refinements += 1
        length = np.linalg.norm(X)
        X = self._solved(X / length) if np.isfinite(length) else X
        length = np.linalg.norm(X)
        if not np.isfinite(length):
            self.is_singular = True
            return is_accurate
        size = np.abs(X) / length
        rounding = self.unit * np.vdot(size, self._magnitudes @ size)
        self.is_singular = bool(1 / length <= SINGULAR * rounding)
        return is_accurate

    def _is_accurate(self, B: Array, X: Array) -> bool:
        """Check the residual of a solution against rounding errors."""
        rounding = self.unit * np.linalg.norm(self._magnitudes @ np.abs(X) + np.abs(B))
        return bool(np.linalg.norm(self._residual(B, X)) <= ACCURATE * rounding)
