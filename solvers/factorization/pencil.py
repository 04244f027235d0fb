"""A x = lambda M x with factors of A - sigma M: eigenvalue counts below shifts, and inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import Factorization, as_operator
from blockvec.errors import BreakdownError, OptionError
from blockvec.system.frozen import frozen

from ..arguments import check_shape, on_host
from ..blocks import Block, Operator
from ..costs import fits_dense
from ..iterations.rayleigh_ritz import FLOOR
from ..transform.spectral_map import Norms, norm_of
from .gram import gram_factor

BEYOND, FURTHER, MOVES = 2.0, 30.0, 9  # first distance of a count from an end, in rounding errors; growth


@frozen
class Cut:
    """A shift, the number of eigenvalues below it, and the range in which it has found all of them."""

    sigma: float
    below: int
    first: float
    last: float


@frozen
class Pencil:
    """Matrices A and M, and factors of A - sigma M for one shift at a time."""

    A: Operator
    M: Operator | None  # None for the identity
    matrices: tuple[Any, Any]
    factors: Factorization
    norms: Norms
    rank: int  # number of finite eigenvalues

    @classmethod
    def of(
        cls, operator: Operator, A: Any, M: Any, norm: float | None = None, *, only_counts: bool = False
    ) -> Pencil:
        """Prepare matrices; refuses an M that is not positive semidefinite.

        `operator` applies A on the device of the factors; `norm` is ||A|| if it is known. Where `only_counts`
        tells that no vectors are needed, factors are in double precision, and powers of two make rows alike:
        pivots of light parts are not lost.
        """
        mass, rank, dtype = None, operator.shape[0], operator.dtype
        dtype = np.promote_types(dtype, np.float64) if only_counts else dtype
        if M is not None:
            check_shape("M", M, operator)
            dtype = np.promote_types(dtype, M.dtype)
            M = sp.csr_array(on_host(M)).astype(dtype)
            rank = gram_factor("M", M).rank
            if only_counts and operator.device == "cpu":
                A = sp.csr_array(on_host(A))
                sizes, masses = abs(A.diagonal()).astype(np.float64), M.diagonal().real.astype(np.float64)
                sizes += masses * ((sizes.max() or 1.0) / (masses.max() or 1.0))
                logs = np.log2(sizes, where=sizes > 0, out=np.zeros(len(sizes)))
                D = sp.diags_array(np.exp2(-np.rint(logs / 2)))
                A, M = (sp.csr_array(D @ B @ D).astype(dtype) for B in (A, M))
                operator = as_operator(A)
            mass = as_operator(M, device=operator.device)
        if dtype != operator.dtype:
            A = A.astype(dtype)
            operator = as_operator(A, device=operator.device)
        factors = Factorization(A, M, device=operator.device)
        size, mass_size = norm_of(operator) if norm is None else norm, norm_of(mass)
        return cls(operator, mass, (A, M), factors, Norms(size, mass_size, mass_size), rank)

    def apply(self, X: Block, out: Block | None = None) -> Block:
        """Compute (A - sigma M)^-1 M X, self-adjoint in the inner product of M."""
        return self.factors.solve(self.mass(X), out=out)

    def mass(self, X: Block) -> Block:
        """Compute M X; X itself for the identity."""
        return X if self.M is None else self.M.apply(X)

    def rounding(self, value: float) -> float:
        """Compute by how much rounding errors of A and M may change an eigenvalue."""
        return eigenvalue_rounding(self.A.dtype, self.norms.A / self.norms.M, value)

    def count(self, sigma: float) -> int | None:
        """Factorise for a shift and count the eigenvalues below it; None if the count is not certain."""
        if self.factors.sigma != sigma:
            self.factors.refactorize(sigma)
        # A value nearer than that could be computed on the wrong side.
        if self.factors.is_singular or self.factors.nearest <= FLOOR * np.finfo(self.A.dtype).eps / 2:
            return None
        if self.factors.inertia is None and fits_dense(self.A):  # with pivoting
            return self._dense_count(sigma)
        return self.factors.inertia

    def _dense_count(self, sigma: float) -> int:
        """Count by a dense factorisation with blocks of order one and two, as accurate as any."""
        A, M = map(on_host, self.matrices)
        n = A.shape[0]
        shifted = sp.csr_array(A) - sigma * (sp.eye_array(n, dtype=A.dtype) if M is None else M)
        dense = shifted.toarray()
        np.fill_diagonal(dense, dense.diagonal().real)  # rounding errors on it would be warned of
        D = sl.ldl(dense, hermitian=True, overwrite_a=True, check_finite=False)[1]
        blocks = np.flatnonzero(np.diagonal(D, -1))  # those of order two have one negative eigenvalue
        single = np.delete(np.diagonal(D).real, np.union1d(blocks, blocks + 1))
        return int((single < 0).sum()) + len(blocks)

    def cut(self, end: float, side: int) -> Cut:
        """Count at an end of an interval, so far beyond it (`side` is -1 or 1) that the count is certain."""
        if math.isinf(end):
            if self.rank < self.A.shape[0]:
                self._require_no_negative_rest()
            return Cut(end, 0 if side < 0 else self.rank, end, end)
        for move in range(MOVES):
            sigma = end + side * BEYOND * FURTHER**move * self.rounding(end)
            below = self.count(sigma)
            if below is not None:
                return Cut(sigma, below, sigma, sigma)
        raise uncertain(end)

    def doubtful(self, cut: Cut, end: float, side: int) -> int:
        """Count the eigenvalues that may be on the wrong side of an end, whose cut moved more than once."""
        distance = abs(cut.sigma - end)
        if math.isinf(end) or distance <= BEYOND * FURTHER**1.5 * self.rounding(end):
            return 0
        return abs(cut.below - self.cut(end, -side).below)

    def _require_no_negative_rest(self) -> None:
        """Check that far below the spectrum no pivot is negative: in the null space of M, A is definite."""
        scale = self.norms.A / self.norms.M
        if not any(self.count(-scale * FURTHER**move) == 0 for move in range(MOVES)):
            raise OptionError(
                "interval: M is singular, and A is not positive definite in its null space, so that the "
                "eigenvalues up to an infinite end cannot be counted; give finite ends."
            )


def eigenvalue_rounding(dtype: Any, norm: float, value: float) -> float:
    """Compute by how much rounding errors may change an eigenvalue of matrices with a norm."""
    return FLOOR * float(np.finfo(dtype).eps) / 2 * ((norm + abs(value)) or 1.0)


def uncertain(sigma: float) -> BreakdownError:
    """Return the error for a shift near which no factorisation counts."""
    return BreakdownError(
        f"interval: no factorisation of A - s M with s near {sigma:.12g} counts the eigenvalues below s; "
        "move the ends a little, or use method='filter'."
    )
