"""Spectra in closed form, as reference for solvers.

Every function returns all eigenvalues in ascending order, repeated by multiplicity.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def laplace_eigenvalues(extents: Sequence[int], *, periodic: bool = False) -> Values:
    """Compute the eigenvalues of the Laplacian in any dimension: sums of 2 - 2 cos(angle).

    Parameters
    ----------
    extents : sequence of int
        Points along each direction.
    periodic : bool, default False
        Torus or Dirichlet boundaries.

    Examples
    --------
    >>> from blockvec.models import spectra
    >>> spectra.laplace_eigenvalues([2, 2])
    array([2., 4., 4., 6.])
    """
    axes = [2.0 - 2.0 * np.cos(_angles(n, periodic)) for n in extents]
    return _ascending(functools.reduce(np.add.outer, axes))


def stencil27_eigenvalues(extents: Sequence[int], *, periodic: bool = False) -> Values:
    """Compute the eigenvalues of the 27-point stencil: 27 - prod (1 + 2 cos(angle)).

    The parameters are those of `laplace_eigenvalues`.
    """
    axes = [1.0 + 2.0 * np.cos(_angles(n, periodic)) for n in extents]
    return _ascending(27.0 - functools.reduce(np.multiply.outer, axes))


def graphene_eigenvalues(nx: int, ny: int, t: float = 1.0) -> Values:
    """Compute the eigenvalues of clean graphene on a torus: ``+-t |2 cos ky + exp(i kx)|``.

    `nx` and `ny` are the even numbers of sites of the brick wall along x and y, `t` is the hopping energy.

    References
    ----------
    P. R. Wallace, Phys. Rev. 71, 622 (1947).
    """
    # One sublattice is centred: (kx + pi, ky + pi) is the same state as (kx, ky), so half of kx suffices.
    kx = 2.0 * np.pi * np.arange(nx // 2) / nx
    ky = 2.0 * np.pi * np.arange(ny) / ny
    band = t * np.abs(np.add.outer(np.exp(1j * kx), 2.0 * np.cos(ky)))
    return _ascending(np.stack([band, -band]))


def hofstadter_eigenvalues(nx: int, ny: int, p: int = 1, q: int = 3, t: float = 1.0) -> Values:
    """Compute the eigenvalues of the Hofstadter model on a torus, from q-by-q Harper equations.

    `nx` and `ny` are the sites along x and y, nx a multiple of q (of the reduced fraction), p/q the flux
    quanta per plaquette, and `t` is the hopping energy.

    References
    ----------
    P. G. Harper, Proc. Phys. Soc. A 68, 874 (1955).
    """
    p, q = p // math.gcd(p, q), q // math.gcd(p, q)
    kx = 2.0 * np.pi * np.arange(nx // q) / nx
    ky = 2.0 * np.pi * np.arange(ny) / ny
    site = np.arange(q)
    harper = np.zeros((kx.size, ny, q, q), np.complex128)
    harper[..., site, site] = -2.0 * t * np.cos(ky[:, None] - 2.0 * np.pi * p / q * site)
    for x in range(q):  # added one at a time: for q = 1 and 2 both hops are one element
        harper[..., x, (x + 1) % q] -= t * np.exp(1j * kx)[:, None]
        harper[..., (x + 1) % q, x] -= t * np.exp(-1j * kx)[:, None]
    return _ascending(np.linalg.eigvalsh(harper))


def chain_levels(sites: int, t: float = 1.0, *, periodic: bool = True, antiperiodic: bool = False) -> Values:
    """Compute the levels of one particle that hops on a ring or an open chain: -2 t cos k.

    With `antiperiodic` the hop that closes the ring has the other sign.
    """
    shift = np.pi / sites if periodic and antiperiodic else 0.0
    return _ascending(-2.0 * t * np.cos(_angles(sites, periodic) + shift))


def free_electron_eigenvalues(
    sites: int, up: int, down: int, t: float = 1.0, *, periodic: bool = True
) -> Values:
    """Compute the eigenvalues of the Hubbard chain without repulsion: sums of levels of each spin."""
    levels = chain_levels(sites, t, periodic=periodic)
    return _ascending(np.add.outer(_fillings(levels, up), _fillings(levels, down)))


def xx_chain_eigenvalues(sites: int, up: int, j: float = 1.0, *, periodic: bool = True) -> Values:
    """Compute the eigenvalues of the XX chain (delta=0): `up` spins are free fermions that hop by j/2.

    On a ring the Jordan-Wigner string makes the fermions antiperiodic if their number is even.

    References
    ----------
    E. Lieb, T. Schultz, D. Mattis, Ann. Phys. 16, 407 (1961).
    """
    levels = chain_levels(sites, -j / 2, periodic=periodic, antiperiodic=up % 2 == 0)
    return _ascending(_fillings(levels, up))


def magnon_eigenvalues(sites: int, delta: float = 1.0, j: float = 1.0) -> Values:
    """Compute the eigenvalues of the XXZ ring with one spin up: j delta (sites/4 - 1) + j cos k."""
    return _ascending(j * delta * (sites / 4 - 1) + chain_levels(sites, -j / 2))


def _angles(n: int, periodic: bool) -> Values:
    """Compute the wave numbers of a ring or an open chain."""
    if periodic:
        return 2.0 * np.pi * np.arange(n) / n
    return np.pi * np.arange(1, n + 1) / (n + 1)


def _fillings(levels: Values, particles: int) -> Values:
    """Compute the energies of all placements of particles into different levels."""
    chosen = itertools.combinations(levels.tolist(), particles)
    return np.array([sum(energies) for energies in chosen], np.float64)


def _ascending(values: NDArray[np.floating]) -> Values:
    return np.sort(values.astype(np.float64, copy=False), axis=None)
