"""The folded operator (A - tau I)^2: how values around a target are looked for as an end of a spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np

from .iteration import IterationState, LanczosOptions
from .linear.columns import pick
from .rayleigh_ritz import desire
from .verification import Found

__all__ = ["FoldedOperator", "found_around"]

Block = Any


class FoldedOperator:
    """(A - tau I)^2: eigenvalues around a target become those at the lower end.

    Parameters
    ----------
    operator : Operator
    tau : float
    locked : BlockVector, shape (n, c), optional
        Columns to whose complement A is restricted.
    """

    def __init__(self, operator: Any, tau: float, locked: Block | None = None) -> None:
        self.operator, self.tau, self.locked = operator, tau, locked
        self.shape, self.dtype, self.device = operator.shape, operator.dtype, operator.device
        self.nnz = getattr(operator, "nnz", None)  # says whether its products are a user's function

    def apply(
        self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> Block:
        """Return ``alpha ((A - tau I)^2 - shift I) X + beta out``; two applications of A."""
        inner = self.operator.apply(X, shift=self.tau)
        if self.locked is not None:
            self.locked.combine(self.locked.dot(inner), out=inner, alpha=-1, beta=1)
        if out is None:
            out = self.operator.apply(inner, alpha=alpha, shift=self.tau)
        else:
            self.operator.apply(inner, out=out, alpha=alpha, beta=beta, shift=self.tau)
        return out.axpy(-alpha * shift, X) if shift else out


def found_around(
    X: Block,
    state: IterationState,
    options: LanczosOptions,
    norm: float,
    target: float | None,
    least: float,
    locked: Block | None,
) -> Found:
    """Say what was found; around a target, in terms of (A - target I)^2.

    Parameters
    ----------
    X : BlockVector, shape (n, k)
    state : IterationState
        The values and residuals of X.
    options : LanczosOptions
    norm : float
        ||A||.
    target : float or None
    least : float
        How little wanted eigenvalues can be, those of the folded operator at a target.
    locked : BlockVector, shape (n, c), optional
    """
    theta, residuals, limits, which = state.eigenvalues, state.residuals, state.limits, options.which
    if target is not None:
        theta, which = (theta - target) ** 2, "SA"
        # ((A - tau)^2 - s^2) x = (A - tau + s) r, where s = theta - tau.
        norm = norm + abs(target)
        stretch = norm + np.sqrt(theta)
        residuals, limits, norm = residuals * stretch, limits * stretch, norm**2
    order = np.argsort(-desire(theta, which), kind="stable")
    return Found(
        X=pick(X, order),
        theta=theta[order],
        residuals=residuals[order],
        k=options.k,
        which=which,
        limits=limits[order],
        norm=norm,
        least=least,
        locked=locked,
    )
