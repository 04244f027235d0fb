"""Densities of states by the kernel polynomial method.

With H scaled to h, whose spectrum is within [-1, 1], and moments mu_k = tr T_k(h) / n, the density is

    rho(x) = (g_0 mu_0 + 2 sum_k g_k mu_k T_k(x)) / (pi sqrt(1 - x^2)),

where the factors g_k of a kernel damp the oscillations of the cut series. Random vectors estimate the traces;
the moments <x|T_k(h)|x> of one vector x, such as a site, are exact. A step of the recurrence gives two of
them: <T_j x|T_j x> = (mu_2j + mu_0) / 2 and <T_j x|T_{j-1} x> = (mu_{2j-1} + mu_1) / 2.

Double moments <x|T_k(h) J T_l(h) J|x> are products of two blocks: T_k(h) x for 64 orders k, and T_l(h) J x
after one product with J. Blocks of the second kind are computed again for each of the first.

References
----------
Weisse, Wellein, Alvermann, Fehske, Rev. Mod. Phys. 78 (2006) 275 (double moments: section III.D); Kreutzer et
al., IPDPS (2015) 417 (blocks of vectors, and dots in the pass of their product).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.polynomial import chebyshev

from blockvec import BlockVector, Operator, as_operator, start_copies
from blockvec.errors import OptionError, ShapeError
from blockvec.parallel import partial_sums
from blockvec.precompile import precompile
from blockvec.system.frozen import frozen

from ..arguments import blas_threads, check_choice, check_shape, integer, on_device_of
from ..blocks import RealArray, to_host
from ..costs import require_memory
from ..iterations.chebyshev import recorder_for
from ..runtime.processes import together
from ..runtime.progress import counted_bar
from .bounds import OutsideError, SpectralBounds, bounds_of
from .operands import generator_for, operands, random_signs
from .recurrence import Recurrence
from .series import GROUP, checked

KERNELS = ("jackson", "lorentz")
LORENTZ = 4.0  # exponent of the Lorentz kernel, with which its resolution is LORENTZ / moments
# Of ||x||^2, by which rounding may let ||T_k x||^2 exceed it; eps^(1/2) in single precision.
EXCESS = 1e-6
MARGIN = 0.01  # of the half width: bounds are moved outwards, since kernels widen the ends of a spectrum
WIDTH = 32  # columns of a block at most
POINTS = 1000  # energies in a picture
TILE = 64  # columns of a block


def damped(count: int, kernel: str) -> RealArray:
    """Return the factors of the terms of a series: those of a kernel, all but the first of them twice."""
    k, q = np.arange(count), np.pi / (count + 1)
    if kernel == "jackson":  # a Gaussian of width pi / count, never negative
        factors = ((count - k + 1) * np.cos(q * k) + np.sin(q * k) / np.tan(q)) / (count + 1)
    else:  # with which Green functions keep their causality
        factors = np.sinh(LORENTZ * (1 - k / count)) / math.sinh(LORENTZ)
    factors[1:] *= 2
    return np.asarray(factors)


def scaled(energies: Any, bounds: SpectralBounds) -> tuple[RealArray, RealArray]:
    """Return scaled energies and the weights of the series there, which are 0 outside of the bounds."""
    energies = np.asarray(energies)
    if energies.dtype.kind not in "biuf" or np.isnan(energies).any():
        raise OptionError(f"energies: got NaN, or numbers of type {energies.dtype}; give real numbers.")
    x = (energies.astype(np.float64) - bounds.centre) / bounds.half_width
    is_inside = np.abs(x) < 1
    x = np.where(is_inside, x, 0.0)
    return x, is_inside / (np.pi * bounds.half_width * np.sqrt(1 - x**2))


def standard_error(values: Any) -> Any:
    """Return the standard error of the mean along the first axis; infinite for a single number."""
    count = len(values)
    return values.std(axis=0, ddof=1) / math.sqrt(count) if count > 1 else np.full_like(values[0], np.inf)


@frozen
class DensityOfStates:
    """Density of the eigenvalues of a matrix; as a function of energies, it integrates to 1.

    The sum of g over all n eigenvalues is about ``n * rho.integrate(g)``. With `sites`, arrays have one more
    axis, the last, of local densities.

    Attributes
    ----------
    moments : array, shape (N,) or (N, len(sites))
        Traces of Chebyshev polynomials of the scaled matrix, divided by n, without the factors of the kernel.
    samples : array, shape (N, R)
        The same for each vector.
    bounds : SpectralBounds
        Between them the matrix is scaled from; outside there are no states.
    kernel : str
    sites : sequence of int or None
    products : int
        Columns that the matrix was applied to.
    """

    samples: RealArray
    bounds: SpectralBounds
    kernel: str
    sites: tuple[int, ...] | None
    products: int

    @property
    def moments(self) -> RealArray:
        """The means over random vectors, or the moments of each site."""
        return self.samples.mean(axis=1) if self.sites is None else self.samples

    def __call__(self, energies: Any) -> Any:
        """Return the density at energies, zero outside of the spectrum."""
        return self._sampled(*scaled(energies, self.bounds)).mean(axis=0)

    def error(self, energies: Any) -> Any:
        """Return standard errors of the density, from the spread over random vectors; zero for sites."""
        values = self._sampled(*scaled(energies, self.bounds))
        return standard_error(values) if self.sites is None else np.zeros_like(values[0])

    def integrate(self, f: Callable[[Any], Any] = np.ones_like) -> Any:
        """Integrate f(E) rho(E) over all energies, by Gauss-Chebyshev quadrature in twice as many points."""
        count = 2 * len(self.samples)
        x = np.cos(np.pi * (np.arange(count) + 0.5) / count)
        values = checked(f)(self.bounds.centre + self.bounds.half_width * x)
        return self._sampled(x, values).mean(axis=1).mean(axis=0)

    def plot(self, axes: Any = None, energies: Any = None) -> Any:
        """Draw the density and its standard errors with matplotlib; return the axes."""
        if axes is None:
            import matplotlib.pyplot as plt

            axes = plt.figure().subplots()
        if energies is None:
            energies = np.linspace(*self.bounds, POINTS)
        values, errors = (np.atleast_2d(part.T) for part in (self(energies), self.error(energies)))
        names = ["density of states"] if self.sites is None else [f"site {site}" for site in self.sites]
        for name, value, error in zip(names, values, errors, strict=True):
            (line,) = axes.plot(energies, value, lw=1, label=name)
            if error.any() and np.isfinite(error).all():
                axes.fill_between(energies, value - error, value + error, color=line.get_color(), alpha=0.3)
        axes.set(xlabel="energy", ylabel="density of states", ylim=(0, None))
        if self.sites is not None:
            axes.legend()
        return axes

    def _sampled(self, x: RealArray, weights: Any) -> Any:
        """Sum up the damped series of each vector, or of all sites, at scaled energies, shape (R, ...)."""
        factors = damped(len(self.samples), self.kernel)
        values = chebyshev.chebval(x, factors[:, None] * self.samples) * weights
        return values if self.sites is None else np.moveaxis(values, 0, -1)[None]


@together
def density_of_states(
    H: Any,
    moments: int = 1024,
    vectors: int = 16,
    kernel: Literal["jackson", "lorentz"] = "jackson",
    rng: Any = None,
    *,
    sites: Sequence[int] | None = None,
    bounds: Any = None,
    progress: bool = False,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> DensityOfStates:
    """Compute the density of states of a Hermitian matrix, or local densities.

    Parameters
    ----------
    H : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`.
    moments : int
        Number of Chebyshev moments, rounded up to an even one: the resolution is about pi / moments of half
        the width of the spectrum (Jackson). There are two per product.
    vectors : int
        Random vectors: four times as many halve the standard errors.
    kernel : {"jackson", "lorentz"}
        Gaussian peaks, for densities; or Lorentzian ones, of Green functions.
    rng : Generator, int or None
        Source of the random vectors, which are the same for any number of processes.
    sites : sequence of int, optional
        Rows whose local densities are computed, by unit vectors in place of random ones.
    bounds : pair of float, optional
        Numbers that enclose the spectrum; by default they are computed as `spectral_bounds` does. Where
        moments grow, part of it is outside, and wider ones take their place: see `bounds` of the result.
    progress, shape, dtype, device, like, comm
        As for `eigsh`.

    Returns
    -------
    DensityOfStates

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, and for a matrix that is not Hermitian.
    BreakdownError
        If H returns NaN or Inf.

    Examples
    --------
    >>> import blockvec
    >>> rho = blockvec.density_of_states(blockvec.models.model("laplace2d:n=50"), moments=128, rng=0)
    >>> float(rho(9.0)), float(rho.integrate())
    (0.0, 1.0)
    >>> bool(abs(rho.integrate(lambda E: E) - 4) < 0.1)  # the mean of the eigenvalues
    True
    """
    check_choice("kernel", kernel, KERNELS)
    half, columns = (integer("moments", moments, 2) + 1) // 2, integer("vectors", vectors, 1)
    op, ends = _bounded(H, bounds, shape=shape, dtype=dtype, device=device, like=like, comm=comm)
    chosen = None
    if sites is not None:
        chosen = tuple(integer("sites", site, 0, op.shape[0] - 1) for site in np.atleast_1d(sites))
        if not (columns := len(chosen)):
            raise OptionError("sites: got none; give numbers of rows, or leave it out.")
    width, begins, done, products = min(columns, WIDTH), range(0, columns, WIDTH), 0, 0
    n_bytes = 2.0 * op.local_shape[0] * width * op.dtype.itemsize
    require_memory(op, n_bytes, f"two blocks of {width} columns", "give fewer vectors")
    precompile("moments", op, b=width)
    keys = generator_for(op, rng).integers(1 << 63, size=len(begins)).tolist()

    def note(steps: int, width: int) -> None:
        nonlocal done, products
        done, products = done + steps, products + steps * width
        show(done, f"{done} of {len(begins) * half} products", len(begins) * half)

    def samples(bounds: SpectralBounds) -> Any:
        doubled, found = op.affine(2 / bounds.half_width, bounds.centre), []
        for begin, key in zip(begins, keys, strict=True):  # the same vectors on all bounds
            if chosen is None:
                X = random_signs(op, min(width, columns - begin), key)
            else:
                X = _unit_vectors(op, chosen[begin : begin + width])
            found.append(_moments(doubled, X, half, note))
        return np.concatenate(found, axis=1)

    is_shown = progress and (op.layout is None or op.layout.rank == 0)
    with blas_threads(op), counted_bar("moments") if is_shown else nullcontext(lambda *_: None) as show:
        return DensityOfStates(*ends.holding("H", samples), kernel, chosen, products)


def _bounded(H: Any, bounds: Any, **options: Any) -> tuple[Operator, SpectralBounds]:
    """Convert H to a Hermitian operator, with bounds of its spectrum."""
    given = operands(H, **options).hermitian("H")
    op = given.operator if given.factor == 1 else given.factor * given.operator
    if not op.shape[0]:
        raise ShapeError("H has no rows; there are no states.")
    if bounds is None:
        found = bounds_of(given).widened(MARGIN)
        return op, found if found.half_width else SpectralBounds(-1.0, 1.0, True, "a matrix of zeros")
    ends: Any = np.ravel(bounds)
    if ends.dtype.kind not in "iuf" or len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
        raise OptionError(f"bounds: got {bounds!r}; give two finite numbers, the lower one first.")
    return op, SpectralBounds(ends[0], ends[1], False, "the caller")


def _unit_vectors(op: Operator, sites: Sequence[int]) -> BlockVector:
    first = 0 if op.layout is None else op.layout.first_row
    is_site = np.arange(first, first + op.local_shape[0])[:, None] == np.array(sites)
    return on_device_of(op, BlockVector(is_site.astype(op.dtype), layout=op.layout))


def _check_growth(ratios: Any, dtype: Any) -> None:
    """Refuse bounds beside which ``||T_k(h) x|| / ||x||`` exceeds 1 by more than rounding."""
    if not (np.abs(ratios) <= 1 + max(EXCESS, math.sqrt(np.finfo(dtype).eps))).all():
        raise OutsideError


def _moments(doubled: Any, X: BlockVector, half: int, note: Callable[[int, int], object]) -> Any:
    """Compute <x|T_k(h)|x> / <x|x> of the columns of a block, which is overwritten, shape (2 half, b)."""
    squares, rows = to_host(X.norms()).astype(np.float64) ** 2, list[Any]()
    steps, found = Recurrence(doubled, X, X.like()), list[dict[str, Any]]()
    recorder, again = recorder_for(doubled, X), None

    def take(steps: Recurrence, count: int) -> None:
        with partial_sums():
            found[:] = [steps.step(dots=("xy", "yy")) for _ in range(count)]

    def take_from(steps: Recurrence) -> None:
        take(copy.copy(steps), GROUP)

    while steps.taken < half:
        count = min(GROUP, half - steps.taken)
        with np.errstate(all="ignore"):
            if recorder is None or count < GROUP or not steps.taken:  # the first group compiles kernels
                take(steps, count)
            else:
                with recorder:
                    again = again or recorder.record(partial(take_from, copy.copy(steps)))
                    again()
                steps.skip(count)
        parts = start_copies(*(step[name] for step in found for name in ("xy", "yy")))()
        dots = parts if X.layout is None else X.layout.sum(np.stack(parts))
        rows += [(part.real / squares).astype(np.float64) for part in dots]
        note(count, X.n_cols)
        _check_growth(rows, X.dtype)
    moments = 2 * np.array(rows)  # <T_{j-1} x|T_j x>, <T_j x|T_j x> for j = 1, 2, ...
    moments[::2] -= moments[0] / 2
    moments[1::2] -= 1
    return np.concatenate([np.ones((1, X.n_cols)), moments[:-1]])


@frozen
class DoubleMoments:
    """Moments of ``j(E, F) = tr[J delta(E - H) J delta(F - H)] / n``, a function of two energies.

    By Kubo and Greenwood the conductivity at a Fermi energy E and temperature zero is a multiple of j(E, E).

    Attributes
    ----------
    samples : array, shape (R, N, N)
        Moments for each random vector x, divided by ``<x|x>``.
    bounds : SpectralBounds
        Between them the matrix is scaled from.
    kernel : str
    """

    samples: Any
    bounds: SpectralBounds
    kernel: str

    @property
    def moments(self) -> Any:
        """The means over random vectors, shape (N, N)."""
        return self.samples.mean(axis=0)

    def __call__(self, energies: Any, others: Any = None) -> Any:
        """Return the real part of j(E, F) at pairs of energies; at equal ones, if `others` is None."""
        return self._sampled(energies, others).mean(axis=0)

    def error(self, energies: Any, others: Any = None) -> Any:
        """Return standard errors of j, from the spread over random vectors."""
        return standard_error(self._sampled(energies, others))

    def _sampled(self, energies: Any, others: Any) -> Any:
        x, weight = scaled(energies, self.bounds)
        y, other = scaled(energies if others is None else others, self.bounds)
        factors = damped(self.samples.shape[1], self.kernel)
        table = np.moveaxis(self.samples.real * np.outer(factors, factors), 0, -1)
        return chebyshev.chebval2d(x, y, table) * (weight * other)


def double_moments(
    H: Any,
    J: Any,
    moments: int = TILE,
    vectors: int = 4,
    kernel: Literal["jackson", "lorentz"] = "jackson",
    rng: Any = None,
    *,
    bounds: Any = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
) -> DoubleMoments:
    """Compute the double moments of a Hermitian matrix H with an observable J, such as a current.

    Parameters
    ----------
    H, J : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`. J is a matrix or an operator.
    moments : int
        Chebyshev moments in each direction.
    vectors, kernel, rng, bounds, shape, dtype, device, like
        As for `density_of_states`.

    Returns
    -------
    DoubleMoments

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, and for matrices that are not Hermitian.
    BreakdownError
        If H or J returns NaN or Inf.

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> H = blockvec.models.model("laplace1d:n=200")
    >>> found = blockvec.double_moments(H, np.eye(200), 32, rng=0)  # tr(T_k T_l) / n
    >>> found.moments.shape, bool(abs(found.moments[0, 0] - 1) < 1e-12)
    ((32, 32), True)
    """
    check_choice("kernel", kernel, KERNELS)
    count, columns = integer("moments", moments, 1), integer("vectors", vectors, 1)
    op, found = _bounded(H, bounds, shape=shape, dtype=dtype, device=device, like=like)
    if op.layout is not None:
        raise OptionError("H: has rows in several processes; double moments need one.")
    check_shape("J", J, op)
    current = as_operator(J, device=op.device if device is None else device)
    current.check_hermitian(name="J")
    size = np.result_type(op.dtype, current.dtype).itemsize
    n_bytes = 3.0 * op.shape[0] * min(TILE, count) * size
    require_memory(op, n_bytes, "Chebyshev vectors", "give fewer moments")
    keys = generator_for(op, rng).integers(1 << 63, size=columns).tolist()

    def samples(bounds: SpectralBounds) -> Any:
        doubled = op.affine(2 / bounds.half_width, bounds.centre)
        return np.array([_double(doubled, current, random_signs(op, 1, key), count) for key in keys])

    with blas_threads(op):
        return DoubleMoments(*found.holding("H", samples), kernel)


def _double(doubled: Any, J: Operator, x: BlockVector, count: int) -> Any:
    start, square = J @ x, float(to_host(x.norms())[0]) ** 2
    found = np.zeros((count, count), np.result_type(start.dtype, doubled.dtype))
    for k, left in _tiles(doubled, x, count):
        image = J @ left
        for l, right in _tiles(doubled, start, count):
            found[k : k + image.n_cols, l : l + right.n_cols] = to_host(image.dot(right)) / square
    return found


def _tiles(doubled: Any, x: BlockVector, count: int) -> Iterator[tuple[int, BlockVector]]:
    """Compute T_k(h) x by blocks of columns, with the first order of each."""
    steps, norm, tile = Recurrence(doubled, x.copy(), x.like()), to_host(x.norms()), x.like(min(TILE, count))
    for begin in range(0, count, TILE):
        block = tile[:, : min(TILE, count - begin)]
        for column in range(block.n_cols):
            steps.take(min(begin + column, 1))
            block[:, column : column + 1] = steps.current
        _check_growth(to_host(block.norms()) / norm, x.dtype)
        yield begin, block
