"""Chebyshev series of functions on [-1, 1], and their sums for a Hermitian operator times a block.

A function is interpolated in Chebyshev points. exp(z x) is so in extended precision: a state that takes ten
thousand steps with the same coefficients keeps its norm to 1e-12.

A real operator on complex columns is applied to twice as many real ones; real and imaginary coefficients then
have sums of their own. The series of exp(-i t H) has real coefficients of even degrees and imaginary ones of
odd degrees: each step adds to one of both.

Components outside of bounds that are too narrow grow, while all others stay below the norm of the block.
Where norms have grown after a group of steps, the sum begins again with wider bounds.

References
----------
Tal-Ezer, Kosloff, J. Chem. Phys. 81 (1984) 3967; Trefethen, Approximation Theory and Approximation Practice
(2013), chapters 3 and 4.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.fft

from blockvec import BlockVector, Operator
from blockvec.errors import OptionError

from ..arguments import blas_threads
from ..blocks import ColumnBlock, RealArray, in_precision, to_host
from ..iterations.chebyshev import recorder_for
from ..sizes import SHORT_ROWS
from .bounds import EVERYWHERE, OutsideError, SpectralBounds
from .recurrence import Recurrence

MOST_SERIES = 64  # exponentials whose coefficients are kept
MOST_DEGREE = 5000  # highest degree of an interpolation
MOVED = 16.0  # u ||A||: errors of eigenvalues by rounding
LOOKS = 10_125  # degree of the points of a function, where T_20250 looks like T_0; a product of 3 and 5
ROUNDING = 64 * float(np.finfo(float).eps)  # error of an interpolation, relative to the largest value
OUTSIDE = 1e-4  # share of the largest eigenvalue by which one may lie outside of a domain, by rounding
GROUP = 32  # steps between two looks at the norms: outside by the half width, components grow 1e18 times
GROWTH = 1.5  # ratio of norms from which a component is outside of the bounds; others have at most 1
MOST_COLUMNS = 4  # columns of a block on the host up to which products column by column take less time
MOST_GROUPS = 64  # groups of steps whose calls are counted; those that are repeated keep their launches


class Series(NamedTuple):
    """Coefficients of T_0 to T_d, and a bound of what those beyond add, relative to the largest value."""

    coefficients: Any
    tail: float


def cut(coefficients: Any, limit: float) -> Series:
    """Leave out the last coefficients, whose magnitudes add up to at most a limit."""
    tails = np.cumsum(np.abs(coefficients[::-1]))[::-1]  # of this coefficient and all beyond
    degree = max(int(np.count_nonzero(tails > limit)) - 1, 0)
    return Series(coefficients[: degree + 1], float(tails[degree + 1]) if degree + 1 < len(tails) else 0.0)


@functools.lru_cache(maxsize=MOST_SERIES)
def exponential(z: complex, limit: float) -> Series:
    """Compute the coefficients 2 I_k(z) of exp(z x) / exp(``|Re z|``) up to a tail below a limit."""
    # Beyond k = |z| they fall like exp(-(2/3) (2/|z|)^(1/2) (k - |z|)^(3/2)), for a real z like
    # exp(-k^2 / (2 |z|)): from `most` on they are below 21 digits, those of extended precision.
    size = abs(z)
    most = size + 14 * size ** (1 / 3)
    degree = math.ceil(min(most, math.sqrt(96 * size)) if z.imag == 0 else most) + 40
    x = np.cos(np.arccos(np.longdouble(-1)) * np.arange(degree + 1) / degree)
    c = _transformed(np.exp(np.clongdouble(z) * x - abs(z.real)))
    for odd, part in enumerate((c.real, c.imag)):
        part[np.abs(part) < size * np.finfo(part.dtype).eps / math.sqrt(degree)] = 0  # rounding of z x
        if z.real == 0:  # even degrees are real, odd ones imaginary
            part[1 - odd :: 2] = 0
    return cut(c.astype(complex) if z.imag else c.real.astype(float), limit)


def _transformed(values: Any) -> Any:
    """Compute Chebyshev coefficients from values in Chebyshev points."""
    coefficients = scipy.fft.dct(values, type=1) / (len(values) - 1)
    coefficients[[0, -1]] /= 2
    return coefficients


def points(low: float, high: float, degree: int = LOOKS) -> RealArray:
    """Return the Chebyshev points of a degree, the highest one first."""
    x = np.cos(np.pi * np.arange(degree + 1) / degree)
    return np.clip((low + high) / 2 + (high - low) / 2 * x, low, high)


def interpolation(
    f: Callable[[RealArray], Any], low: float, high: float, limit: float, most: int = MOST_DEGREE
) -> list[Series] | None:
    """Interpolate a `checked` function; None if no degree has a tail below a limit, or f is not finite."""
    try:
        values = f(points(low, high))
    except OptionError:
        return None
    scale = np.abs(values).max() or 1.0
    c = _transformed(values / scale)
    # The last quarter consists of rounding errors if the function is resolved.
    is_noise = np.abs(c) <= 2 * np.abs(c[3 * LOOKS // 4 :]).max()
    kept, tail = cut(np.where(is_noise, 0, c), limit)
    rest = np.where(np.arange(len(c)) < len(kept), 0, c)
    error = max(tail, np.abs(scipy.fft.dct(rest, type=1)).max() / 2)
    if len(kept) > most + 1 or error > max(2 * limit, ROUNDING):
        return None
    return [Series(kept * scale, float(error))]


def changes(
    f: Callable[..., Any], theta: RealArray, values: Any, reach: Any, bounds: tuple[float, float] = EVERYWHERE
) -> list[Any]:
    """Compute what the `values` of a `checked` function change by where eigenvalues move by a reach.

    Down and up, within bounds; where f is not defined, by nothing.
    """
    moved = (np.clip(theta + by, *bounds) for by in (-reach, reach))
    return [np.nan_to_num(f(x, is_strict=False) - values) for x in moved]


def missed(values: Any, x: RealArray, T: tuple[RealArray, RealArray], c: Any, power: float) -> float:
    """Bound what one eigenvalue, found or not, adds to an error of Lanczos, from values of f at points x.

    Those that are NaN do not count. With c = f(T) e_1 Lanczos computes p(A) b of p = sum_j c_j p_j, where the
    p_j are orthonormal in the spectral measure of b. An eigenvalue has at most a weight w = 1 / sum_j p_j^2
    there (Christoffel), and adds ``|f - p| w`` to the error of the quadrature of f, ``|f - p| w^(1/2)`` to
    ``||(f - p)(A) b|| / ||b||``.
    """
    before, last, now = np.zeros_like(x), 0.0, np.ones_like(x)
    p, squares = c[0] * now, now.copy()
    with np.errstate(all="ignore"):
        for a, b, coefficient in zip(*T, c[1:], strict=False):
            before, now, last = now, ((x - a) * now - last * before) / b, b
            p = p + coefficient * now
            squares += now * now
        parts = np.abs(values - p) / squares**power
    return float(np.nan_to_num(parts, nan=0.0, posinf=0.0).max())


def checked(
    f: Callable[[RealArray], Any], domain: tuple[float, float] = EVERYWHERE, factor: float = 1
) -> Callable[..., Any]:
    """Make a function of eigenvalues, times a factor, that refuses what is not in a domain or not finite.

    Of numbers that are no eigenvalues, all of that is NaN.
    """

    def evaluated(theta: Any, *, is_strict: bool = True) -> Any:
        theta = factor * theta
        x = np.clip(theta, *domain)  # rounding errors may have moved them out of it
        away = np.abs(theta - x)
        if is_strict and (away > OUTSIDE * np.abs(theta).max(initial=0.0)).any():
            raise OptionError(
                f"domain: got {domain}, but an eigenvalue of A is about {theta[away.argmax()]:.6g}; give one "
                "that holds all of them."
            )
        with np.errstate(all="ignore"):
            values = np.asarray(f(x))
        values = np.broadcast_to(values, x.shape) if values.ndim == 0 else values
        if values.shape != x.shape or values.dtype.kind not in "biufc":
            raise OptionError(
                f"f: returned shape {values.shape} for {len(x)} numbers; give a function as np.exp."
            )
        values = values.astype(complex if values.dtype.kind == "c" else float)
        wrong = ~np.isfinite(values)
        if not is_strict:
            values[wrong | (away > 0)] = np.nan
        elif wrong.any():
            raise OptionError(
                f"f: is {values[wrong][0]} at {x[wrong][0]:.6g}, which is within the bounds of the spectrum, "
                f"{x.min():.6g} to {x.max():.6g}; give domain=(low, high), where f is finite."
            )
        return values

    return evaluated


class Work:
    """The method, the costs and the error bound of functions of a matrix times blocks."""

    def __init__(self, method: str, plan: str, bounds: Any = None, error: float | None = 0.0) -> None:
        self.method, self.plan, self.bounds, self.error = method, plan, bounds, error
        self.products = self.columns = self.degree = 0

    def count(self, products: int, width: int, degree: int) -> None:
        """Count products with blocks of a width, by which polynomials have reached a degree."""
        self.products, self.columns = self.products + products, self.columns + products * width
        self.degree = max(self.degree, degree)

    def described(self) -> dict[str, Any]:
        """Describe all of that as a dictionary of a result."""
        info = {name: getattr(self, name) for name in ("method", "degree", "products", "columns", "bounds")}
        on = "" if self.bounds is None else f" on {self.bounds!r}"
        plan = f"{self.plan}, of degree {self.degree} at most{on}: {self.products} products"
        return info | {"error_bound": self.error, "plan": plan}


class Sums(Work):
    """Sums of series of T_k of a Hermitian operator, times blocks, in memory that is used again."""

    def __init__(
        self, operator: Operator, bounds: SpectralBounds, domain: tuple[float, float] = EVERYWHERE
    ) -> None:
        plan = f"Chebyshev polynomials of a Hermitian matrix of {operator.dtype.name}"
        super().__init__("chebyshev", plan, bounds)
        self.operator, self._domain = operator, domain
        self._prepared: Any = None  # the type and the bounds that memory is for

    def of(self, series_of: Callable[[SpectralBounds], Sequence[Series] | None], X: BlockVector) -> Any:
        """Compute sum_k c_k T_k X of series on bounds that hold, and their error; or return their None."""
        found, self.bounds = self.bounds.holding(
            "A", lambda bounds: self._on(bounds, series_of(bounds), X), self._domain
        )
        return found

    def _on(self, bounds: SpectralBounds, series: Sequence[Series] | None, X: BlockVector) -> Any:
        if series is None:
            return None
        length, is_real = max(len(one.coefficients) for one in series), self.operator.dtype.kind == "f"
        C = np.array([np.pad(one.coefficients, (0, length - len(one.coefficients))) for one in series])
        kind = np.result_type(X.dtype, self.operator.dtype, *[np.complex64] * np.iscomplexobj(C))
        # Sums of a real operator have real coefficients.
        C = np.concatenate([C.real, C.imag]) if is_real and np.iscomplexobj(C) else C
        Y = as_real(X) if is_real else X
        dtype = np.result_type(self.operator.dtype, Y.dtype)
        if self._prepared != (dtype, Y.n_cols, bounds):
            half_width = bounds.half_width or max(map(abs, bounds)) or 1.0
            self._doubled = self.operator.affine(2 / half_width, bounds.centre)
            self._prepared = dtype, Y.n_cols, bounds
            self._blocks = [by_columns(self.operator, Y).like(dtype=dtype)]
            # Groups by first step and coefficients: a recording after a call.
            self._repeats = dict[Any, Any]()
            self._recorder = recorder_for(cast(Any, self.operator), self._blocks[0])
        while len(self._blocks) < 2 + len(C):
            self._blocks.append(self._blocks[0].like())
        first, second, *totals = self._blocks[: 2 + len(C)]
        first[:, :] = Y
        for total, c in zip(totals, C[:, 0].tolist(), strict=True):
            total[:, :] = first
            total.scale(c)
        steps, limits = Recurrence(self._doubled, first, second), GROWTH * to_host(X.norms())
        for begin in range(1, length, GROUP):
            rows = C[:, begin : begin + GROUP].tolist()
            with np.errstate(all="ignore"), blas_threads(self.operator):
                self._take(steps, rows, totals)
                # Norms of each column's parts.
                grown = to_host(steps.current.norms()).reshape(len(limits), -1)
            self.count(len(rows[0]), Y.n_cols, steps.taken)
            if not (np.linalg.norm(grown, axis=1) <= limits).all():
                raise OutsideError
        results = [X.like(dtype=kind) for _ in series]
        for place, total in enumerate(totals):
            is_imaginary, k = divmod(place, len(series))
            results[k].axpby((1, 1j)[is_imaginary], as_block(total, results[k]), is_imaginary)
        # Rounding errors have a unit per degree.
        return results, max(one.tail for one in series) + float(np.finfo(X.dtype).eps) / 2 * length

    def _take(self, steps: Recurrence, rows: list[list[complex]], totals: list[Any]) -> None:
        """Take a group of steps; on a GPU their launches are recorded where they are repeated."""
        if self._recorder is None:
            steps.add(rows, totals)
            return
        key = steps.taken, *map(tuple, rows)
        if key not in self._repeats:
            steps.add(rows, totals)
            self._repeats = {**(self._repeats if len(self._repeats) < MOST_GROUPS else {}), key: None}
            return
        with self._recorder:
            if self._repeats[key] is None:
                first = copy.copy(steps)
                self._repeats[key] = self._recorder.record(lambda: copy.copy(first).add(rows, totals))
            self._repeats[key]()
        steps.skip(len(rows[0]))


def by_columns(A: Operator, x: BlockVector) -> Any:
    """Copy a block to column-major order if products with a sparse matrix then take less time."""
    is_short = x.n_cols <= MOST_COLUMNS and x.n_rows * x.n_cols <= SHORT_ROWS and x.layout is None
    return ColumnBlock.of(x) if is_short and hasattr(A, "nnz") and A.device == "cpu" else x


def as_real(X: BlockVector) -> BlockVector:
    """View complex columns as pairs of real ones, their real and imaginary parts."""
    if X.dtype.kind != "c":
        return X
    return BlockVector(X.array.view(X.dtype.type(0).real.dtype), layout=X.layout)


def as_block(part: Any, like: BlockVector) -> Any:
    """View pairs of real columns as complex ones, or convert columns, as those of another block."""
    if isinstance(part, ColumnBlock):
        part = BlockVector(part.array, copy=True)
    if part.n_cols != like.n_cols:
        return BlockVector(part.array.view(like.dtype), layout=part.layout)
    return part if part.dtype == like.dtype else in_precision(part, like.dtype)
