"""exp(c t H) times a block, for a Hermitian H and a complex c."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import OptionError

from ..blocks import to_host
from .bounds import FEW_STEPS, SpectralBounds, estimated, gershgorin
from .coefficients import Series, exponential
from .operands import Matrix, check_finite, phase_of
from .polynomial import Polynomials

# Ratio of a result's norm to the largest that it can have, from which a time is halved: the errors of a sum
# are relative to the largest.
LEAST_RATIO = 0.02
FEW_COLUMNS = 36  # columns of products up to which proven bounds cost no more than estimates save
MOST_SERIES = 16  # times for which coefficients are kept
TOGETHER = 16.0  # time times half width up to which results for several times have the same products
MOST_TOGETHER = 8  # times of these
MOST_BYTES = 1 << 27  # of their states
FEW_ROWS = 8  # of a linear operator whose structure two random vectors say little about


def recognised(matrix: Matrix) -> tuple[complex, Operator, Any] | None:
    """Return c, H and its entries, if a matrix is c H for a Hermitian H; None for others."""
    op = matrix.operator
    if matrix.is_linear_operator and op.shape[0] < FEW_ROWS:
        return None
    phase = 1 if op.is_hermitian else phase_of(op)
    if phase is None:
        return None
    if phase == 1:
        op.is_hermitian = True
        return complex(matrix.factor), op, matrix.entries
    if matrix.entries is None:
        return complex(matrix.factor) * phase, op.affine(1 / phase, 0), None
    H = matrix.entries * (1 / phase)
    return complex(matrix.factor) * phase, as_operator(H, device=op.device), H


def bounds_for(H: Operator, entries: Any, time: float, columns: int) -> SpectralBounds:
    """Bound a spectrum, by discs where few products follow; `time` is a total with the factor."""
    proven = gershgorin(entries)
    if proven is not None and (time * proven.half_width + 10) * columns <= FEW_COLUMNS:
        return proven
    return estimated(H, proven, FEW_STEPS)


class Exponential:
    """exp(c t H) X for several times t.

    Attributes
    ----------
    polynomials : Polynomials
    error : float
        Bound of the error of all results so far, relative to their norms: the tails of the series are bounds,
        rounding errors are taken to be one unit per degree.
    degree : int
        The largest degree.
    """

    def __init__(self, H: Operator, bounds: SpectralBounds, c: complex) -> None:
        self.polynomials, self.c = Polynomials(H, bounds), c
        self.error, self.degree = 0.0, 0
        self._known: dict[Any, list[Series]] = {}

    def together(self, step: float, X: BlockVector) -> int:
        """Return the number of equal steps whose results the same products give."""
        size = abs(self.c * step) * self.polynomials.bounds.half_width
        fitting = MOST_BYTES // max(1, X.n_global * X.n_cols * X.dtype.itemsize)
        return 1 if self.c.real else max(1, min(MOST_TOGETHER, fitting, int(TOGETHER / max(size, 1.0))))

    def unscaled(self, times: tuple[float, ...], X: BlockVector) -> tuple[list[BlockVector], list[complex]]:
        """Compute exp(c t H) X / exp(w) for every time; return the blocks and the numbers w."""
        if not any(times) or not X.n_cols or not X.n_global:
            return [X.copy() for _ in times], [0j] * len(times)
        unit, norms = float(np.finfo(X.dtype).eps) / 2, to_host(X.norms())

        def series_of(bounds: SpectralBounds) -> list[Series]:
            key = times, *bounds
            if key not in self._known:
                if len(self._known) >= MOST_SERIES:
                    self._known.clear()
                sizes = [self.c * t * bounds.half_width for t in times]
                self._known[key] = [exponential(z, unit / 2) for z in sizes]
            return self._known[key]

        blocks = self.polynomials.sums(series_of, X)
        bounds = self.polynomials.bounds
        series = series_of(bounds)
        largest = [abs((self.c * t).real) * bounds.half_width for t in times]
        degree = max(len(one.coefficients) for one in series) - 1
        ratio = 1.0
        if self.c.real and (norms > 0).any():
            found = to_host(blocks[0].norms())[norms > 0] / norms[norms > 0]
            ratio = float(found.min())
            if not ratio >= LEAST_RATIO and largest[0] > -math.log(LEAST_RATIO) / 2:
                halves = (times[0] / 2,)
                (middle,), (first,) = self.unscaled(halves, X)
                results, (second,) = self.unscaled(halves, middle)
                return results, [first + second]
        self.error += (max(one.tail for one in series) + unit * (1 + degree)) / max(ratio, unit)
        self.degree = max(self.degree, degree)
        return blocks, [self.c * t * bounds.centre + size for t, size in zip(times, largest, strict=True)]

    def apply(self, times: tuple[float, ...], X: BlockVector) -> list[BlockVector]:
        """Compute exp(c t H) X for every time.

        Raises
        ------
        OptionError
            If results are beyond the range of their type.
        """
        blocks, weights = self.unscaled(times, X)
        results = [scaled(block, weight) for block, weight in zip(blocks, weights, strict=True)]
        for result, weight in zip(results, weights, strict=True):
            if weight.real > math.log(np.finfo(result.dtype).max) / 2:  # B may be large, too
                check_finite(result)
        return results


def scaled(block: BlockVector, weight: complex) -> BlockVector:
    """Multiply a block by exp(weight), in place unless it is real and the factor complex."""
    if weight.real > math.log(np.finfo(block.dtype).max):
        raise OptionError(
            f"exp(t A) B is up to exp({weight.real:.6g}) times B, which overflows; take a shorter time, or "
            "subtract a multiple of the identity from A."
        )
    factor = cmath.exp(weight)
    if weight.imag == 0:
        return block.scale(factor.real) if factor.real != 1 else block
    if block.dtype.kind == "c":
        return block.scale(factor)
    return block.like(dtype=np.result_type(block.dtype, np.complex64)).axpby(factor, _complex(block), 0)


def _complex(block: BlockVector) -> BlockVector:
    return type(block)(block, copy=True, dtype=np.result_type(block.dtype, np.complex64))
