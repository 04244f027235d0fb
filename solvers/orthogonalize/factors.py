"""Small matrices of an orthogonalisation: how to make a block orthonormal, and what of it is only noise.

Each function takes what is known of a block X, its Gram matrix or a triangular factor, and returns a `Step`:
a matrix T and its inverse R, so that X T is orthonormal, or nearer to it, and X = (X T) R.

How noise is told from signal: a column of W carries a rounding error of about u ||w||, or of u ||A|| where
an operator A of a larger norm made it. This level is carried through every transformation of the block, and
a direction counts as lost when its length is not above its own noise. No condition number is compared with
anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from ..blocks import Array

__all__ = [
    "NOISE",
    "PLAIN_GROWTH",
    "Step",
    "cholesky",
    "eigenvectors",
    "is_accurate",
    "ranked",
    "shifted",
    "triangular",
]


NOISE = 32.0  # a direction is lost below NOISE * u * ||w|| (or ||A||): three times what was seen
RESOLUTION = 4.0  # eigenvalues of a scaled Gram matrix below RESOLUTION * b * u are not resolved
SHIFT = 11.0  # of shifted CholQR, as in its source
PLAIN_GROWTH = 1e3  # growth below which no order of columns matters ...
PLAIN_NOISE = 1e-4  # ... if all of them are this accurate


@dataclass(frozen=True, slots=True)
class Step:
    """X = (X T) R up to what is lost.

    Attributes
    ----------
    T : array, shape (b, b)
        With columns of zeros for what is lost.
    R : array, shape (b, b)
    lost : array of bool, shape (b,)
        They come last; their rows of R are zero.
    growth : float
        ||T||_F^2 for columns of X scaled to unit length: X T is orthonormal to about u times this.
    """

    T: Array
    R: Array
    lost: Array
    growth: float


def cholesky(G: Array, lost: Array | None = None) -> Step:
    """Return T = R^-1 with G = R^H R, R triangular; columns that are zero already stay so.

    Raises
    ------
    numpy.linalg.LinAlgError
        Where G is not positive definite.
    """
    if lost is None or not lost.any():
        R = np.linalg.cholesky(G).conj().T
        T = np.linalg.inv(R)
        return Step(T, R, np.zeros(len(G), bool), float((np.diagonal(G).real @ np.abs(T) ** 2).sum()))
    whole = cholesky(G + np.diag(lost.astype(float)))
    return Step(whole.T * ~lost, whole.R * ~lost[:, None], lost, whole.growth)


def is_accurate(G: Array, noise: Array) -> bool:
    """Whether noise is small beside all columns, so that it may mix into any of them."""
    return bool((noise**2 < PLAIN_NOISE**2 * np.diagonal(G).real).all())


def shifted(G: Array, noise: Array, unit: float) -> Step:
    """Return the Cholesky factor of G + s I, for columns of unit length, in the order of `ranked`.

    References
    ----------
    Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477, algorithm 4.1 and
    the shift 11 (K b + b (b + 1)) u ||X||^2.
    """
    scaled, lengths, inverse, dead = _scaled(G, noise)
    width = len(G)
    shift = SHIFT * width * (width + 2) * unit * np.linalg.norm(scaled, 2)
    relative = np.where(dead, 1.0, noise * inverse)
    R, order, lost = _pivoted(scaled + shift * np.eye(width), relative, dead, unit, False)
    return _step(R, order, lost, lengths, inverse)


def eigenvectors(G: Array, noise: Array, unit: float) -> Step:
    """Return the eigenvectors of G for columns of unit length, each scaled by its eigenvalue.

    Eigenvalues that are not resolved are raised to the resolution, so that nothing is lost but columns
    that are zero already.

    References
    ----------
    Stathopoulos, Wu, SIAM J. Sci. Comput. 23 (2002) 2165, algorithm 4.
    """
    scaled, lengths, inverse, dead = _scaled(G, noise)
    # Dead columns get an eigenvalue of their own, far from the small ones of live columns.
    eigenvalues, Z = np.linalg.eigh(scaled - np.diag(dead.astype(float)))
    eigenvalues, Z = eigenvalues[::-1], Z[:, ::-1]  # the largest first, lost ones last
    lost = eigenvalues < -0.5
    raised = np.sqrt(np.maximum(eigenvalues, RESOLUTION * len(G) * unit))
    undo = Z * np.where(lost, 0.0, 1 / raised)
    R = np.where(lost, 0.0, raised)[:, None] * Z.conj().T * lengths
    return Step(inverse[:, None] * undo, R, lost, float((np.abs(undo) ** 2).sum()))


def ranked(G: Array, noise: Array, unit: float, *, final: bool) -> Step:
    """Return a Cholesky factor of G, the column that stands out most from its noise coming first.

    A noisy column can so neither spoil nor take anything from an accurate one. In the final step columns
    with nothing of their own beyond noise and resolution are lost; before it their pivots are raised to the
    resolution, as the shift does in shifted CholQR.
    """
    scaled, lengths, inverse, dead = _scaled(G, noise)
    R, order, lost = _pivoted(scaled, np.where(dead, 1.0, noise * inverse), dead, unit, final)
    return _step(R, order, lost, lengths, inverse)


def triangular(F: Array, noise: Array, unit: float) -> Step:
    """Return T = R^-1 from a factor F with F^H F = X^H X, to working precision and not to its square root.

    The order is that of `ranked`: columns are pivoted in units of their noise. Diagonal elements that are not
    resolved are raised; nothing is lost but columns of noise.

    Parameters
    ----------
    F : array, shape (s, b)
        R of a QR factorisation of X, or a sketch of X.
    """
    lengths = np.linalg.norm(F, axis=0)
    inverse, dead = _inverse(lengths, noise)
    level = np.where(dead, 1, np.maximum(noise, unit * lengths))
    R, order = scipy.linalg.qr(F * (~dead / level), mode="r", pivoting=True, check_finite=False)
    R = R[: len(noise)] * (level * inverse)[order]
    small = np.abs(np.diagonal(R)) < len(noise) * unit
    place = np.arange(len(noise))
    R[place[small], place[small]] = len(noise) * unit
    lost = dead[order]
    R[lost] = 0
    R[:, lost] = 0
    return _step(R, order, lost, lengths, inverse)


def _inverse(lengths: Array, noise: Array) -> tuple[Array, Array]:
    """Return the inverse lengths of columns, and which are nothing but noise and get none."""
    dead = lengths <= noise
    return np.where(dead, 0, 1 / np.where(dead, 1, lengths)), dead


def _scaled(G: Array, noise: Array) -> tuple[Array, Array, Array, Array]:
    """Return G for columns of unit length, their lengths, the inverses, and which are nothing but noise."""
    lengths = np.sqrt(np.maximum(np.diagonal(G).real, 0))
    inverse, dead = _inverse(lengths, noise)
    return G * inverse[:, None] * inverse, lengths, inverse, dead


def _pivoted(
    rest: Array, relative: Array, dead: Array, unit: float, final: bool
) -> tuple[Array, Array, Array]:
    """Return the triangular factor in the order of its pivots, this order, and which pivots are lost.

    Lost ones stay in the factor as rows of zeros, so that shapes do not change.
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
            # |g_ij|^2 <= g_ii g_jj but for rounding, which small pivots would amplify, one after the other.
            bound = np.sqrt(np.maximum(np.diagonal(rest).real[left], 0))
            row = rest[column, left] / root
            R[step, left] = row * np.minimum(1, bound / np.maximum(np.abs(row), np.finfo(float).tiny))
            rest = rest - R[step].conj()[:, None] * R[step]
            R[step, column] = root
    return R[:, order], np.array(order, int), lost


def _step(R: Array, order: Array, lost: Array, lengths: Array, inverse: Array) -> Step:
    """Return the step of a triangular factor of columns of unit length, taken in some order."""
    # A lost column becomes a unit vector of its own in the inverse, and is then zeroed.
    undo = np.linalg.inv(R + np.diag(lost.astype(float))) * ~lost
    live = R * ~lost[:, None]
    place = np.argsort(lost, kind="stable")  # lost ones last
    back = np.argsort(order)
    T = (inverse[order][:, None] * undo)[back][:, place]
    return Step(T, (live[:, back] * lengths)[place], lost[place], float((np.abs(undo) ** 2).sum()))
