"""Models of one particle on a lattice: Laplacians, disorder, honeycombs and magnetic fields."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ..backends import array_namespace
from ..errors import OptionError
from ..operators.row_generator import Entry, Mask, RowGenerator, Rows, check_seed, uniform
from .definition import physics_model


def _extents(n: int | None, /, **extents: int | None) -> list[int]:
    """Replace extents that are None by ``n``."""
    result = []
    for name, extent in extents.items():
        value = n if extent is None else extent
        if value is None:
            raise OptionError(f"{name} is not given; give n for equal extents, or {', '.join(extents)}")
        if value < 1:
            raise OptionError(f"{'n' if extent is None else name}={value}; it must be at least 1")
        result.append(value)
    return result


def _check_disorder(disorder: float, seed: int) -> None:
    if disorder < 0:
        raise OptionError(f"disorder={disorder}; it is a width and must not be negative")
    check_seed(seed)


Term = tuple[tuple[int, ...], Any, Mask | None]  # steps to a neighbour, matrix elements, sites that have it


def _stencil(
    shape: Sequence[int],
    periodic: bool,
    terms: Callable[[list[Rows], int, int], Iterable[Term]],
    **options: Any,
) -> RowGenerator:
    """Create a matrix on a rectangular lattice, whose first coordinate varies fastest: x + nx (y + ny z).

    ``terms(coordinates, start, stop)`` are those of the rows [start, stop).
    """
    strides = [math.prod(shape[:axis]) for axis in range(len(shape))]

    def entries(start: int, stop: int, xp: ModuleType) -> Iterator[Entry]:
        sites = xp.arange(start, stop)
        coordinates = [sites // stride % extent for stride, extent in zip(strides, shape, strict=True)]
        for steps, values, mask in terms(coordinates, start, stop):
            target = sites
            for step, stride, extent, place in zip(steps, strides, shape, coordinates, strict=True):
                if step == 0:
                    continue
                moved = place + step
                if periodic:
                    target = target + (moved % extent - place) * stride
                else:
                    inside = (moved >= 0) & (moved < extent)
                    mask = inside if mask is None else mask & inside
                    target = target + step * stride
            yield Entry(target, values, mask)

    return RowGenerator(math.prod(shape), entries, **options)


def _star(
    shape: Sequence[int], periodic: bool, diagonal: float, hop: float, disorder: float = 0.0, seed: int = 0
) -> RowGenerator:
    """Create a matrix with one value for all nearest neighbours, and a diagonal with optional disorder."""
    # Columns ascend inside the lattice, so that interior rows need no sorting.
    ahead = [tuple(row) for row in np.eye(len(shape), dtype=int).tolist()]
    behind = [tuple(-step for step in steps) for steps in reversed(ahead)]
    here = (0,) * len(ahead)

    def terms(coordinates: list[Rows], start: int, stop: int) -> Iterator[Term]:
        yield from ((steps, hop, None) for steps in behind)
        if disorder:
            yield here, diagonal + disorder * uniform(start, stop, seed), None
        elif diagonal:
            yield here, diagonal, None
        yield from ((steps, hop, None) for steps in ahead)

    return _stencil(shape, periodic, terms)


@physics_model("1-D Laplacian, 3-point stencil", example="laplace1d:n=1000")
def laplace1d(*, n: int, periodic: bool = False) -> RowGenerator:
    """Create the 1-D Laplacian -d^2/dx^2 at unit spacing: 2 on the diagonal, -1 beside it.

    Parameters
    ----------
    n : int
        Points.
    periodic : bool, default False
        A ring; otherwise the function vanishes outside (Dirichlet).

    Returns
    -------
    csr_array, shape (n, n)
        Eigenvalues: :func:`blockvec.models.spectra.laplace_eigenvalues`.

    Examples
    --------
    >>> from blockvec import models
    >>> models.laplace1d(n=3).toarray()
    array([[ 2., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  2.]])
    """
    return _star(_extents(None, n=n), periodic, 2.0, -1.0)


@physics_model("2-D Laplacian, 5-point stencil", example="laplace2d:nx=300,ny=200")
def laplace2d(
    *, n: int | None = None, nx: int | None = None, ny: int | None = None, periodic: bool = False
) -> RowGenerator:
    """Create the 2-D Laplacian on a rectangle at unit spacing: 4 on the diagonal, -1 for the neighbours.

    Parameters
    ----------
    n : int, optional
        Points along each direction without its own value.
    nx, ny : int, optional
        Points along x (which varies fastest) and y.
    periodic : bool, default False
        A torus; otherwise the function vanishes outside (Dirichlet).

    Returns
    -------
    csr_array, shape (nx ny, nx ny)
        Eigenvalues: :func:`blockvec.models.spectra.laplace_eigenvalues`.

    Examples
    --------
    >>> from blockvec import models
    >>> models.laplace2d(nx=4, ny=3).shape
    (12, 12)
    """
    return _star(_extents(n, nx=nx, ny=ny), periodic, 4.0, -1.0)


@physics_model("3-D Laplacian, 7-point stencil", example="laplace3d:n=64")
def laplace3d(
    *,
    n: int | None = None,
    nx: int | None = None,
    ny: int | None = None,
    nz: int | None = None,
    periodic: bool = False,
) -> RowGenerator:
    """Create the 3-D Laplacian on a box at unit spacing: 6 on the diagonal, -1 for the neighbours.

    Parameters are those of :func:`laplace2d`, and `nz` points along z.

    Returns
    -------
    csr_array, shape (nx ny nz, nx ny nz)
        Eigenvalues: :func:`blockvec.models.spectra.laplace_eigenvalues`. On a cube most of them are triple
        or sixfold.

    Examples
    --------
    >>> from blockvec import models
    >>> models.laplace3d(n=4).nnz
    352
    """
    return _star(_extents(n, nx=nx, ny=ny, nz=nz), periodic, 6.0, -1.0)


@physics_model("3-D 27-point stencil, as in the HPCG benchmark", example="stencil27:n=64")
def stencil27(
    *,
    n: int | None = None,
    nx: int | None = None,
    ny: int | None = None,
    nz: int | None = None,
    periodic: bool = False,
) -> RowGenerator:
    """Create the 3-D stencil with 26 on the diagonal and -1 for all 26 neighbours.

    Parameters are those of :func:`laplace2d`, and `nz` points along z.

    Returns
    -------
    csr_array, shape (nx ny nz, nx ny nz)
        Eigenvalues: :func:`blockvec.models.spectra.stencil27_eigenvalues`.

    References
    ----------
    J. Dongarra, M. Heroux, P. Luszczek, "HPCG benchmark", Univ. Tennessee report ut-eecs-15-736 (2015).
    """
    shape = _extents(n, nx=nx, ny=ny, nz=nz)
    steps = [(x, y, z) for z, y, x in itertools.product((-1, 0, 1), repeat=3)]  # ascending columns

    terms = [(step, -1.0 if any(step) else 26.0, None) for step in steps]
    return _stencil(shape, periodic, lambda coordinates, start, stop: terms)


@physics_model("Anderson model of localisation, box disorder", example="anderson:n=40,disorder=16.5,seed=1")
def anderson(
    *, n: int, disorder: float, dim: int = 3, t: float = 1.0, periodic: bool = True, seed: int = 0
) -> RowGenerator:
    """Create the Anderson model: hopping -t to the neighbours, random on-site energies.

    Parameters
    ----------
    n : int
        Sites along each direction.
    disorder : float
        Width W: the energies are uniform on [-W/2, W/2). In three dimensions all states are localised
        from W = 16.5 t on.
    dim : int, default 3
        Dimension, 1 to 3.
    t : float, default 1
        Hopping energy.
    periodic : bool, default True
        A torus; otherwise open boundaries.
    seed : int, default 0
        The same seed gives the same matrix, on any machine and for any range of rows.

    Returns
    -------
    csr_array, shape (n^dim, n^dim)
        Real symmetric.

    References
    ----------
    P. W. Anderson, Phys. Rev. 109, 1492 (1958).
    """
    _check_disorder(disorder, seed)
    if dim not in (1, 2, 3):
        raise OptionError(f"dim={dim}; it must be 1, 2 or 3")
    return _star(_extents(None, n=n) * dim, periodic, 0.0, -t, disorder, seed)


@physics_model("honeycomb lattice (graphene), box disorder", example="graphene:nx=128,ny=64,disorder=0.1")
def graphene(
    *, nx: int, ny: int, t: float = 1.0, disorder: float = 0.0, seed: int = 0, periodic: bool = True
) -> RowGenerator:
    """Create the tight-binding model of graphene: hopping -t to three neighbours, random on-site energies.

    The honeycomb is represented as a brick wall of nx times ny sites (nx ny / 2 cells of two): every site has
    two neighbours along y and one along x, on the right if x + y is even, on the left if it is odd.

    Parameters
    ----------
    nx, ny : int
        Sites along x (which varies fastest) and y; even on a torus.
    t : float, default 1
        Hopping energy.
    disorder : float, default 0
        The on-site energies are uniform on [-disorder/2, disorder/2).
    seed : int, default 0
        The same seed gives the same matrix, on any machine and for any range of rows.
    periodic : bool, default True
        A torus; otherwise open boundaries.

    Returns
    -------
    csr_array, shape (nx ny, nx ny)
        Real symmetric. The interesting eigenvalues lie near 0, where the density of states vanishes.
        Without disorder: :func:`blockvec.models.spectra.graphene_eigenvalues`.

    References
    ----------
    P. R. Wallace, Phys. Rev. 71, 622 (1947).
    """
    _check_disorder(disorder, seed)
    shape = _extents(None, nx=nx, ny=ny)
    if periodic and (nx % 2 or ny % 2):
        raise OptionError(f"nx={nx}, ny={ny}; a periodic honeycomb needs even extents (or periodic=false)")

    def terms(coordinates: list[Rows], start: int, stop: int) -> Iterator[Term]:
        right = (coordinates[0] + coordinates[1]) % 2 == 0
        yield (0, -1), -t, None
        yield (-1, 0), -t, ~right
        yield (1, 0), -t, right
        yield (0, 1), -t, None
        if disorder:
            yield (0, 0), disorder * uniform(start, stop, seed), None

    return _stencil(shape, periodic, terms, row_entries=4 if disorder else 3)


@physics_model("square lattice in a magnetic field, complex", example="hofstadter:nx=120,ny=100,p=1,q=3")
def hofstadter(
    *, nx: int, ny: int, p: int = 1, q: int = 3, t: float = 1.0, periodic: bool = True
) -> RowGenerator:
    """Create the Hofstadter model: a square lattice with p/q flux quanta per plaquette.

    Hopping is -t. Landau gauge: a hop from (x, y) to (x, y + 1) takes the phase
    exp(2 pi i x p/q), one along x takes none.

    Parameters
    ----------
    nx, ny : int
        Sites along x (which varies fastest) and y. On a torus nx must be a multiple of q, else the field
        is discontinuous.
    p, q : int, default 1, 3
        Flux as a fraction; p=0 for no field.
    t : float, default 1
        Hopping energy.
    periodic : bool, default True
        A torus; otherwise open boundaries.

    Returns
    -------
    csr_array, shape (nx ny, nx ny)
        Complex Hermitian. On a torus: :func:`blockvec.models.spectra.hofstadter_eigenvalues`.

    References
    ----------
    D. R. Hofstadter, Phys. Rev. B 14, 2239 (1976).
    """
    shape = _extents(None, nx=nx, ny=ny)
    if q < 1:
        raise OptionError(f"q={q}; it must be at least 1")
    p, q = p // math.gcd(p, q), q // math.gcd(p, q)
    if periodic and nx % q:
        raise OptionError(f"nx={nx}, but a torus needs a multiple of the flux's q={q} (or periodic=false)")
    hops = -t * np.exp(2j * np.pi * np.arange(q) / q)

    def terms(coordinates: list[Rows], start: int, stop: int) -> Iterator[Term]:
        along_y = array_namespace(coordinates[0]).asarray(hops)[coordinates[0] * p % q]
        yield (0, -1), along_y, None
        yield (-1, 0), -t, None
        yield (1, 0), -t, None
        yield (0, 1), along_y.conj(), None

    return _stencil(shape, periodic, terms, dtype=np.complex128)
