"""The transformation of eigenvalues by a shift, and the tolerance that it requires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..blocks import RealArray
from ..iterations.rayleigh_ritz import FLOOR, Tolerance

SHARE = 0.1  # of the limits for A and M: at the rounding floor, the residuals of an accurate solver
COARSE = 1e-6  # largest residual of the transformed operator, relative to abs(theta)
NOISE = 10.0  # smallest one, in u times its norm


@dataclass(frozen=True, slots=True)
class SpectralMap:
    """The eigenvalue lambda of each eigenvalue theta of a transformed operator.

    theta is 1 / (lambda - sigma), in buckling mode lambda / (lambda - sigma) and in Cayley mode (lambda +
    sigma) / (lambda - sigma). Without a sigma it is lambda.
    """

    sigma: float | None = None
    mode: str = "normal"

    @property
    def degree(self) -> int:
        """The d for which theta is multiplied by c^d if A and sigma are multiplied by c."""
        if self.sigma is None:
            return 1
        return -1 if self.mode == "normal" else 0

    def values(self, theta: RealArray) -> RealArray:
        """Compute lambda.

        Examples
        --------
        >>> import numpy as np
        >>> SpectralMap(3.0, "normal").values(np.array([0.5, -1.0])).tolist()
        [5.0, 2.0]
        """
        if self.sigma is None:
            return theta
        with np.errstate(divide="ignore"):
            if self.mode == "normal":
                return self.sigma + 1 / theta
            return self.sigma * (theta + (self.mode == "cayley")) / (theta - 1)

    def slopes(self, theta: RealArray) -> RealArray:
        """Compute abs(d lambda / d theta): what a small residual of a pair is multiplied by on the way back.

        In buckling mode the vectors have norm one in the inner product of A, where M is smaller by lambda.
        """
        if self.sigma is None:
            return np.ones_like(theta)
        if self.mode == "normal":
            return theta**-2.0
        if self.mode == "cayley":
            return 2 * abs(self.sigma) / (theta - 1) ** 2
        return 1 / np.abs(theta * (theta - 1))


@dataclass(frozen=True, slots=True)
class Norms:
    """Norms of A and M, of the matrix in whose inner product vectors are orthonormal, and of sigma M."""

    A: float
    M: float
    inner: float
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class TransformedTolerance(Tolerance):
    """Limits for a transformed operator that keep the residuals of A and M a little below theirs.

    A residual s of a pair (theta, y), y of norm one, becomes one of ||C|| s times the slope of the
    transformation for an x with C^H x of norm one, so that the length of x is at least 1 / ||C||, where C C^H
    is the matrix of the inner product.

    Attributes
    ----------
    tol, convergence, unit
        Of A and M.
    """

    map: SpectralMap
    norms: Norms

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        """Compute the residual limit per value of the transformed operator, of the given norm."""
        with np.errstate(divide="ignore", invalid="ignore"):  # infinite eigenvalues
            limits = pair_limits(self, self.map.values(theta), self.norms, 1.0, self.norms.M)
            wanted = SHARE * limits / (self.norms.inner * self.map.slopes(theta))
        return np.maximum(np.fmin(wanted, COARSE * np.abs(theta)), NOISE * self.unit * norm)


def pair_limits(
    tolerance: Tolerance, values: RealArray, norms: Norms, lengths: Any, masses: Any
) -> RealArray:
    """Compute the limits of ||A x - lambda M x|| for vectors x and M x of these lengths."""
    scale = norms.A + np.abs(values) * norms.M
    factor = {"value": np.abs(values) * masses, "norm": scale * lengths, "absolute": lengths}
    asked = tolerance.tol * factor[tolerance.convergence]
    limits: RealArray = np.maximum(asked, pair_floor(tolerance.unit, values, norms, lengths))
    return limits


def pair_floor(unit: float, values: RealArray, norms: Norms, lengths: Any) -> RealArray:
    """Compute the residuals at the rounding floor, of A - sigma M if that is larger."""
    floor: RealArray = FLOOR * unit * (max(norms.A, norms.shift) + np.abs(values) * norms.M) * lengths
    return floor
