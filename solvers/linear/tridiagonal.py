"""Scalar recurrences of block MINRES: one tridiagonal matrix per column, reduced by Givens rotations.

Names are those of Paige and Saunders' code. All scalars are rows with one element per column, on the device
of the blocks: the functions take the array module, and are one kernel each on a GPU (`blockvec.RowFunction`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockvec import RowFunction

from ..blocks import Array, RealArray
from .systems import EXHAUSTED, SINGULAR, inverse_where


class Scalars(NamedTuple):
    """The scalars passed from one step to the next; `active` is the mask of active systems."""

    beta: Array
    beta_old: Array
    norm: Array
    cs: Array
    sn: Array
    dbar: Array
    epsln: Array
    residuals: Array
    active: Array

    @classmethod
    def of(cls, initial: RealArray, active: NDArray[np.bool_]) -> Scalars:
        """Return the scalars before the first step, from the norms of the right-hand sides."""
        zeros = np.zeros(len(initial))
        return cls(initial, zeros + 1, zeros, zeros - 1, zeros, zeros, zeros, initial, active)


class Log(NamedTuple):
    """Numbers of a step that the host reads.

    `alpha` and `beta` are the new elements of the tridiagonal matrix, before those of finished columns are
    set to zero. `inverse`, `old_eps` and `delta` are a column of its triangular factor: the inverse of the
    pivot, and the elements above it.
    """

    squares: Array  # of the length of the new direction
    residuals: Array
    singular: Array  # 1 where no further reduction is possible, otherwise 0
    ended: Array  # 1 where the direction or the residual is small enough
    alpha: Array
    beta: Array
    inverse: Array
    old_eps: Array
    delta: Array
    phi: Array  # X = X + phi W


def _opening(xp: Any, dots: Any, *scalars: Any) -> tuple[Any, ...]:
    """Compute the factors of A u, u and u_old in the new direction, from u^H (A - sigma I) u."""
    s = Scalars(*scalars)
    scale = inverse_where(xp, s.beta, s.active)  # of u and Z u, zero for finished columns
    return scale, -dots * scale**2 * scale, xp.where(s.active, -s.beta / s.beta_old, 0.0)


def _kept(xp: Any, mask: Any, active: Any, phi: Any) -> tuple[Any, ...]:
    """Set the mask of active systems and the factor of the next change of X."""
    return active & mask, xp.where(mask, phi, 0.0)


OPENING, KEPT = RowFunction(_opening), RowFunction(_kept)


@functools.cache
def closing(unit: float, final: float) -> RowFunction:
    """Make the function of the second half of a step, for a unit roundoff.

    Residuals r end a system if ||(A - sigma I) r|| is below `final` times the norms of both. It takes the
    squared length of the new direction, the residual norms to reach, u^H (A - sigma I) u, and the scalars; it
    returns the rows of the log, the factors in W = f0 Z + f1 W_old_old + f2 W_old and X = X + f3 W, and the
    scalars for the next step.
    """

    def closing_minres(xp: Any, squares: Any, limits: Any, dots: Any, *scalars: Any) -> tuple[Any, ...]:
        s, length = Scalars(*scalars), xp.sqrt(xp.maximum(squares, 0.0))
        scale = inverse_where(xp, s.beta, s.active)
        alpha = dots * scale**2
        # A lower bound of the norm of the tridiagonal matrix, zero before the first step, is the scale of its
        # rounding errors. The first beta is no element of the matrix.
        known = xp.where(s.norm > 0, s.beta, 0.0)
        norm = xp.maximum(s.norm, xp.sqrt(alpha**2 + length**2 + known**2))
        delta = s.cs * s.dbar + s.sn * alpha
        gbar = s.sn * s.dbar - s.cs * alpha
        epsln, dbar = s.sn * length, -s.cs * length
        zero = SINGULAR * unit * norm
        gamma = xp.sqrt(gbar**2 + length**2)
        # ||(A - sigma I) r|| = ||r|| (gbar^2 + dbar^2)^(1/2): if it vanishes, r cannot be reduced further.
        singular = (xp.sqrt(gbar**2 + dbar**2) <= final * norm) | (gamma <= zero)
        active = s.active & ~singular
        inverse = inverse_where(xp, gamma, active)
        cs, sn = gbar * inverse, length * inverse
        phi = xp.where(active, cs * s.residuals, 0.0)
        residuals = xp.where(active, xp.abs(sn) * s.residuals, s.residuals)
        beta_old = xp.where(s.beta > 0, s.beta, 1.0)
        beta = xp.where(active, length, 0.0)
        ended = (beta <= EXHAUSTED * unit * norm) | (residuals <= limits)
        masks = xp.where(singular, 1.0, 0.0), xp.where(ended, 1.0, 0.0)
        later = Scalars(beta, beta_old, norm, cs, sn, dbar, epsln, residuals, active & ~ended)
        factors = scale * inverse, -s.epsln * inverse, -delta * inverse, phi
        log = Log(squares, residuals, *masks, alpha, length, inverse, s.epsln, delta, phi)
        return *log, *factors, *later

    return RowFunction(closing_minres)


class Coordinates:
    """Coordinates of the solutions in the basis Z of their Krylov spaces: x = Z y, U^H Z = I, Z^H A Z = T.

    The values of `Progress` follow from y and T without further inner products.
    """

    def __init__(self, b: int) -> None:
        self.x = self.w = self.w_old = self.diagonal = self.off = np.zeros((0, b))

    def update(self, log: Log) -> None:
        """Apply the recurrences of W and X to the coordinates."""
        zero = np.zeros((1, len(log.alpha)))
        w = np.vstack([-log.old_eps * self.w_old - log.delta * self.w, np.ones_like(zero)]) * log.inverse
        self.w_old, self.w = np.vstack([self.w, zero]), w
        self.x = np.vstack([self.x, zero]) + log.phi * w
        self.diagonal, self.off = np.vstack([self.diagonal, log.alpha]), np.vstack([self.off, log.beta])

    def quadratic(self) -> RealArray:
        """Return y^T T y."""
        y = self.x
        total = np.sum(self.diagonal * y**2, axis=0) + 2 * np.sum(self.off[:-1] * y[:-1] * y[1:], axis=0)
        return np.asarray(total)
