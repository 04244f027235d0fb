"""Factorisations of small matrices for orthogonalisation, with rank detection relative to rounding noise.

Functions take the Gram matrix of a block X and return a `Step`: a matrix T and its inverse R such that X T is
orthonormal, or closer to it, and X = (X T) R.

Noise is distinguished from signal as follows: a column of W carries a rounding error of about u ||w||, or
u ||A|| if it was computed by an operator A of larger norm. This level is updated in every transformation of
the block, and a direction is lost if its length does not exceed its own noise level. No threshold on a
condition number is used.
"""

from __future__ import annotations

import numpy as np

from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..blocks import Array

NOISE = (
    32.0  # u ||w|| or u ||A||: length below which a direction is lost; three times the largest noise observed
)
RESOLUTION = 4.0  # b u: eigenvalues of a scaled Gram matrix below it are not resolved
PLAIN_GROWTH = 1e3  # growth of rounding errors below which a Cholesky factorisation needs no pivoting
PLAIN_NOISE = 1e-4  # relative noise of columns below which it needs none either
ENOUGH = 5.0  # growth per column that leaves a block orthonormal to a few u
AMPLIFIED = 16.0  # u: accepted loss of orthogonality between V and Q


@frozen
class Step:
    """A transformation X = (X T) R, except for lost directions."""

    T: Array  # shape (b, b); columns of lost directions are zero
    R: Array
    lost: Array  # mask of lost directions, which come last; their rows of R are zero
    # ||T||_F^2 for columns of X scaled to unit length: X T is orthonormal to about u times this.
    growth: float


def cholesky(G: Array, lost: Array | None = None) -> Step:
    """Compute the Cholesky step T = R^-1 with G = R^H R; lost columns stay zero.

    Raises
    ------
    numpy.linalg.LinAlgError
        If G is not positive definite.
    """
    if lost is None or not lost.any():
        R = np.linalg.cholesky(G).conj().T
        T = np.linalg.inv(R)
        return Step(T, R, np.zeros(len(G), bool), float((np.diagonal(G).real @ np.abs(T) ** 2).sum()))
    whole = cholesky(G + np.diag(lost.astype(float)))
    return Step(whole.T * ~lost, whole.R * ~lost[:, None], lost, whole.growth)


def gram_root(G: Array) -> tuple[Array, Array]:
    """Compute R and its inverse with G = R^H R, of columns that rounding errors alone keep from orthonormal.

    Raises
    ------
    BreakdownError
        If they are not linearly independent.
    """
    try:
        R = np.linalg.cholesky((G + G.conj().T) / 2).conj().T
    except np.linalg.LinAlgError:
        R = np.full_like(G, np.nan)
    if not np.isfinite(R).all():  # as the factor of NaN is
        raise BreakdownError(
            f"the Gram matrix of {len(G)} columns, which should be orthonormal, is not positive definite: "
            "products are inaccurate, not those of one Hermitian matrix, or hold NaN or Inf."
        )
    return R, np.linalg.inv(R)


def is_accurate(G: Array, noise: Array) -> bool:
    """Check whether the noise of every column is small compared with its length."""
    return bool((noise**2 < PLAIN_NOISE**2 * np.diagonal(G).real).all())


def ranked(G: Array, noise: Array, unit: float, *, final: bool) -> Step:
    """Compute a Cholesky step with pivoting by signal-to-noise ratio, the largest first.

    With this order noisy columns do not perturb accurate ones. In the final step columns whose pivot does not
    exceed noise and resolution are lost; in earlier steps such pivots are raised to the resolution, like
    the shift in shifted CholQR.
    """
    scaled, lengths, inverse, dead = _scaled(G, noise)
    R, order, lost = _pivoted(scaled, np.where(dead, 1.0, noise * inverse), dead, unit, final)
    return _step(R, order, lost, lengths, inverse)


def _scaled(G: Array, noise: Array) -> tuple[Array, Array, Array, Array]:
    """Return G for columns scaled to unit length, their lengths, the inverses, and the mask of noise."""
    lengths = np.sqrt(np.maximum(np.diagonal(G).real, 0))
    dead = lengths <= noise
    inverse = np.where(dead, 0, 1 / np.where(dead, 1, lengths))
    return G * inverse[:, None] * inverse, lengths, inverse, dead


def _pivoted(
    rest: Array, relative: Array, dead: Array, unit: float, final: bool
) -> tuple[Array, Array, Array]:
    """Return the triangular factor in pivot order, this order, and the mask of lost pivots.

    Rows of lost pivots are zero, so that shapes do not change.
    """
    width = len(rest)
    resolution = RESOLUTION * width * unit
    R, lost = np.zeros_like(rest), np.zeros(width, bool)
    order: list[int] = []
    left = list(range(width))
    for step in range(width):
        pivots = np.maximum(np.diagonal(rest).real[left], resolution)
        signal = np.where(dead[left], -1.0, pivots / np.maximum(relative[left], unit) ** 2)
        column = left.pop(int(np.argmax(signal)))
        order.append(column)
        pivot = rest[column, column].real
        lost[step] = dead[column] or (final and pivot <= max(relative[column] ** 2, resolution))
        if not lost[step]:
            root = np.sqrt(max(pivot, resolution))
            # Enforce |g_ij|^2 <= g_ii g_jj: small pivots would amplify its violation by rounding.
            bound = np.sqrt(np.maximum(np.diagonal(rest).real[left], 0))
            row = rest[column, left] / root
            R[step, left] = row * np.minimum(1, bound / np.maximum(np.abs(row), np.finfo(float).tiny))
            rest = rest - R[step].conj()[:, None] * R[step]
            R[step, column] = root
    return R[:, order], np.array(order, int), lost


def _step(R: Array, order: Array, lost: Array, lengths: Array, inverse: Array) -> Step:
    """Return the step of a pivoted triangular factor of columns scaled to unit length."""
    # Lost columns are replaced by unit vectors for the inverse, and then set to zero.
    undo = np.linalg.inv(R + np.diag(lost.astype(float))) * ~lost
    live = R * ~lost[:, None]
    place = np.argsort(lost, kind="stable")  # lost columns last
    back = np.argsort(order)
    T = (inverse[order][:, None] * undo)[back][:, place]
    return Step(T, (live[:, back] * lengths)[place], lost[place], float((np.abs(undo) ** 2).sum()))
