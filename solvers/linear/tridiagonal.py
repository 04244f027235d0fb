"""Scalar recurrences of block MINRES: one tridiagonal matrix per column, reduced by Givens rotations.

Names are those of Paige and Saunders' code. All scalars are arrays with one element per system, NumPy arrays
on the host or CuPy arrays on the device of the blocks: the functions take the array module.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..blocks import Array, RealArray
from .systems import EXHAUSTED, SINGULAR, inverse_where


class Scalars(NamedTuple):
    """The scalars passed from one step to the next, one element per system.

    `begun` is 0 before the first step and 1 later; `active` is the mask of active systems.
    """

    beta: Array
    beta_old: Array
    norm: Array
    cs: Array
    sn: Array
    dbar: Array
    epsln: Array
    residuals: Array
    active: Array
    begun: Array

    @classmethod
    def of(cls, initial: RealArray, active: NDArray[np.bool_]) -> Scalars:
        """Return the scalars before the first step, from the norms of the right-hand sides."""
        zeros = np.zeros(len(initial))
        return cls(initial, zeros + 1, zeros, zeros - 1, zeros, zeros, zeros, initial, active, zeros)


class Rotated(NamedTuple):
    """Result of `closing`, the second half of a step.

    `inverse`, `old_eps` and `delta` are a column of the triangular factor: the inverse of the pivot, and the
    elements above it.
    """

    factors: tuple[Array, Array, Array, Array]  # W = f0 Z + f1 W_old_old + f2 W_old, X = X + f3 W
    scalars: Scalars  # for the next step
    singular: Array  # mask: no further reduction is possible
    ended: Array  # mask: the direction or the residual is small enough
    inverse: Array
    old_eps: Array
    delta: Array


def opening(xp: Any, dots: Array, s: Scalars) -> tuple[Array, Array, tuple[Array, Array, Array]]:
    """Compute alpha, the scale of u and Z u, and the factors of A u, u and u_old in the new direction.

    `dots` is u^H (A - sigma I) u.
    """
    scale = inverse_where(xp, s.beta, s.active)  # zero for finished columns
    alpha = dots * scale**2
    return alpha, scale, (scale, -alpha * scale, xp.where(s.active, -s.beta / s.beta_old, 0.0))


def closing(
    xp: Any, alpha: Array, scale: Array, beta: Array, limits: Array, unit: float, s: Scalars
) -> Rotated:
    """Apply and generate Givens rotations for the new column of the tridiagonal matrix.

    `alpha` and `scale` are from `opening`, `beta` is the length of the new direction, `limits` are the
    residual norms to reach, and `unit` is the unit roundoff.
    """
    # A lower bound of the norm of the tridiagonal matrix is the scale of its rounding errors.
    norm = xp.maximum(s.norm, xp.sqrt(alpha**2 + beta**2 + (s.begun * s.beta) ** 2))
    delta = s.cs * s.dbar + s.sn * alpha
    gbar = s.sn * s.dbar - s.cs * alpha
    epsln, dbar = s.sn * beta, -s.cs * beta
    zero = SINGULAR * unit * norm
    gamma = xp.sqrt(gbar**2 + beta**2)
    # ||(A - sigma I) r|| = ||r|| (gbar^2 + dbar^2)^(1/2): if it vanishes, r cannot be reduced further.
    singular = (xp.sqrt(gbar**2 + dbar**2) <= zero) | (gamma <= zero)
    active = s.active & ~singular
    inverse = inverse_where(xp, gamma, active)
    cs, sn = gbar * inverse, beta * inverse
    phi = xp.where(active, cs * s.residuals, 0.0)
    residuals = xp.where(active, xp.abs(sn) * s.residuals, s.residuals)
    beta_old = xp.where(s.beta > 0, s.beta, 1.0)
    beta = xp.where(active, beta, 0.0)
    ended = (beta <= EXHAUSTED * unit * norm) | (residuals <= limits)
    return Rotated(
        (scale * inverse, -s.epsln * inverse, -delta * inverse, phi),
        Scalars(beta, beta_old, norm, cs, sn, dbar, epsln, residuals, active & ~ended, s.begun * 0.0 + 1.0),
        singular,
        ended,
        inverse,
        s.epsln,
        delta,
    )


class Coordinates:
    """Coordinates of the solutions in the basis Z of their Krylov spaces: x = Z y, U^H Z = I, Z^H A Z = T.

    The values of `Progress` follow from y and T without further inner products.
    """

    def __init__(self, initial: RealArray) -> None:
        b = len(initial)
        self.x = self.w = self.w_old = np.zeros((0, b))
        self.diagonal, self.off = np.zeros((0, b)), np.zeros((0, b))

    def update(self, alpha: RealArray, beta: RealArray, rotated: Rotated) -> None:
        """Apply the recurrences of W and X to the coordinates."""
        zero = np.zeros((1, len(alpha)))
        w = np.vstack([-rotated.old_eps * self.w_old - rotated.delta * self.w, np.ones_like(zero)])
        w *= rotated.inverse
        self.w_old, self.w = np.vstack([self.w, zero]), w
        self.x = np.vstack([self.x, zero]) + rotated.factors[3] * w
        self.diagonal, self.off = np.vstack([self.diagonal, alpha]), np.vstack([self.off, beta])

    def quadratic(self) -> RealArray:
        """Return y^T T y."""
        y = self.x
        total = np.sum(self.diagonal * y**2, axis=0) + 2 * np.sum(self.off[:-1] * y[:-1] * y[1:], axis=0)
        return np.asarray(total)
