"""The transformation of eigenvalues by a shift, and the tolerance that it requires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blockvec.system.frozen import frozen

from ..blocks import Operator, RealArray
from ..iterations.rayleigh_ritz import FLOOR, Tolerance
from ..iterations.spectrum import sketch_of

SHARE = 0.1  # of the limits for A and M, which errors of the transformation take the rest of
# Largest residual of the transformed operator, relative to abs(theta). Without it one of six values nearest
# to 1.234 of a mesh of 19881 rows was missed with tol=1e-3, four with 0.1.
COARSE = 1e-6
NOISE = 10.0  # smallest one, in u times its norm
NORM_STEPS = 10  # steps of Lanczos for norms in rules of convergence, which need one digit


@frozen
class SpectralMap:
    """The eigenvalue lambda of each eigenvalue theta of a transformed operator, and theta of each lambda.

    theta is 1 / (lambda - sigma), in buckling mode lambda / (lambda - sigma) and in Cayley mode (lambda +
    sigma) / (lambda - sigma). Without a sigma it is lambda. The smallest values of these modes are the
    largest ones of their reciprocals: of lambda - sigma ("distance"), for buckling of 1 / lambda - 1 / sigma
    ("reciprocal", of 1 / lambda for an infinite sigma), and for Cayley of the same mode with -sigma.
    """

    sigma: float | None = None
    mode: str = "normal"

    @property
    def degree(self) -> int:
        """The d for which theta is multiplied by c^d if A and sigma are multiplied by c."""
        if self.sigma is None:
            return 1
        return {"normal": -1, "reciprocal": -1, "distance": 1}.get(self.mode, 0)

    @property
    def _coefficients(self) -> tuple[float, float, float, float]:
        """The a, b, c, d of theta = (a lambda + b) / (c lambda + d)."""
        sigma = self.sigma
        if sigma is None:
            return 1, 0, 0, 1
        if self.mode == "reciprocal":
            return -1 / sigma, 1, 1, 0
        return {
            "normal": (0, 1, 1, -sigma),
            "cayley": (1, sigma, 1, -sigma),
            "buckling": (1, 0, 1, -sigma),
            "distance": (1, -sigma, 0, 1),
        }[self.mode]

    @property
    def at_infinity(self) -> float | None:
        """The theta of an infinite lambda, one in buckling mode; None where that is infinite, too."""
        a, _, c, _ = self._coefficients
        return a / c if c else None

    def transformed(self, values: RealArray) -> RealArray:
        """Compute theta.

        Examples
        --------
        >>> import numpy as np
        >>> SpectralMap(3.0, "cayley").transformed(np.array([5.0, 2.0])).tolist()
        [4.0, -5.0]
        """
        a, b, c, d = self._coefficients
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            theta: RealArray = (a * values + b) / (c * values + d)
        return theta if self.at_infinity is None else np.where(np.isinf(values), self.at_infinity, theta)

    def values(self, theta: RealArray) -> RealArray:
        """Compute lambda."""
        a, b, c, d = self._coefficients
        with np.errstate(divide="ignore", over="ignore"):
            values: RealArray = (b - d * theta) / (c * theta - a)
        return values

    def slopes(self, theta: RealArray) -> RealArray:
        """Compute abs(d lambda / d theta): what a small residual of a pair is multiplied by on the way back.

        In buckling mode the vectors have norm one in the inner product of A, where M is smaller by lambda.
        """
        a, b, c, d = self._coefficients
        slopes: RealArray = abs(a * d - b * c) / (c * theta - a) ** 2
        return slopes / np.abs(self.values(theta)) if self.mode in ("buckling", "reciprocal") else slopes


@frozen
class Norms:
    """Norms of A and M, of the matrix in whose inner product vectors are orthonormal, and of sigma M."""

    A: float
    M: float
    inner: float
    shift: float = 0.0


@frozen
class TransformedTolerance(Tolerance):
    """Limits for a transformed operator that keep the residuals of A and M a little below theirs.

    A residual s of a pair (theta, y), y of norm one, becomes one of ||C|| s times the slope of the
    transformation for an x with C^H x of norm one, so that the length of x is at least 1 / ||C||, where C C^H
    is the matrix of the inner product. `tol`, `convergence` and `unit` are those of A and M.
    """

    map: SpectralMap = SpectralMap()
    norms: Norms = Norms(1.0, 1.0, 1.0)
    solve_error: float = 0.0  # relative residual of solves, where it is above rounding errors
    step_unit: float = 0.0  # as `unit`, of steps whose solves are not refined

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        wanted = SHARE * self._changes(theta)
        noise = max(NOISE * self.unit, self.solve_error)
        return np.maximum(np.fmin(wanted, COARSE * np.abs(theta)), noise * norm)

    def margins(self, theta: RealArray, norm: float) -> RealArray:
        """Compute by how much another value must be more wanted than one of these to displace it.

        Near the shift that is far more than the limit of a residual: the solves' rounding errors tell values
        apart that are equal for A and M.
        """
        changes = replace(self, unit=max(self.unit, self.step_unit))._changes(theta)
        return np.fmax(changes, self.limits(theta, norm))

    def _changes(self, theta: RealArray) -> RealArray:
        """Compute the changes of values that change residuals of A and M by their limits."""
        with np.errstate(divide="ignore", invalid="ignore"):  # infinite eigenvalues
            limits = pair_limits(self, self.map.values(theta), self.norms, 1.0, self.norms.M)
            changes: RealArray = limits / (self.norms.inner * self.map.slopes(theta))
        return changes


def norm_of(operator: Operator | None) -> float:
    """Estimate the norm of an operator; None stands for the identity."""
    return 1.0 if operator is None else sketch_of(operator, NORM_STEPS).norm


def pair_limits(
    tolerance: Tolerance, values: RealArray, norms: Norms, lengths: Any, masses: Any
) -> RealArray:
    """Compute the limits of ||A x - lambda M x|| for vectors x and M x of these lengths."""
    scale = norms.A + np.abs(values) * norms.M
    factor = {"value": np.abs(values) * masses, "norm": scale * lengths, "absolute": lengths}
    asked = tolerance.tol * factor[tolerance.convergence]
    limits: RealArray = np.maximum(asked, pair_floor(tolerance, values, norms, lengths))
    return limits


def pair_floor(tolerance: Tolerance, values: RealArray, norms: Norms, lengths: Any) -> RealArray:
    """Compute the residuals at the rounding floor, of A - sigma M if that is larger."""
    sizes = max(norms.A, norms.shift) + np.abs(values) * norms.M
    floor: RealArray = np.maximum(FLOOR * tolerance.unit * sizes, tolerance.rounding) * lengths
    return floor
