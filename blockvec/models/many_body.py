"""Models of many particles on a chain: quantum spins and interacting electrons.

The basis are bit patterns with a fixed number of set bits, numbered in ascending order. The number of a
pattern whose set bits are at p_1 < p_2 < ... is sum_k C(p_k, k) (the combinadic): neither
table nor search is needed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ..backends import array_namespace
from ..errors import OptionError
from ..kernels.sparse.chain_plan import Chain
from ..operators.row_generator import Entry, Mask, RowGenerator, Rows
from .definition import physics_model

_MAX_SITES = 62  # patterns and their numbers are signed 64-bit integers


class Sector:
    """All patterns of 2 to 62 ``sites`` bits with ``count`` of them set; `name` names it in messages.

    Patterns and their numbers are arrays of NumPy or CuPy.

    References
    ----------
    D. E. Knuth, The Art of Computer Programming 4A, section 7.2.1.3 (the combinatorial number system).
    """

    def __init__(self, sites: int, count: int, name: str) -> None:
        if not 2 <= sites <= _MAX_SITES:
            raise OptionError(f"sites={sites}; it must be between 2 and {_MAX_SITES}")
        if not 0 <= count <= sites:
            raise OptionError(f"{name}={count}; it must be between 0 and sites={sites}")
        self.sites = sites
        self.count = count
        self.dimension = math.comb(sites, count)
        self._binomials: NDArray[np.int64] = np.array(
            [[math.comb(site, k) for k in range(count + 1)] for site in range(sites)], np.int64
        )

    def patterns(self, numbers: Rows) -> Rows:
        """Compute the patterns of numbers."""
        rest = numbers.copy()
        left = np.full_like(numbers, self.count)
        result, choose = np.zeros_like(numbers), array_namespace(numbers).asarray(self._binomials)
        for site in reversed(range(self.sites)):
            below = choose[site][left]  # patterns that keep all remaining bits below this site
            is_set = rest >= below
            rest -= np.where(is_set, below, 0)
            left -= is_set
            result |= is_set.astype(np.int64) << site
        return result

    def numbers(self, patterns: Rows) -> Rows:
        """Compute the numbers of patterns."""
        result, choose = np.zeros_like(patterns), array_namespace(patterns).asarray(self._binomials)
        seen = np.zeros_like(patterns)
        for site in range(self.sites):
            bit = (patterns >> site) & 1
            seen += bit
            result += bit * choose[site][seen]
        return result

    def exchanges_per_row(self, *, periodic: bool) -> float:
        """Compute the mean number of bonds with two different bits over all patterns."""
        differ = 2 * self.count * (self.sites - self.count) / (self.sites * (self.sites - 1))  # of a pair
        return (self.sites - (not periodic)) * differ

    def bonds(self, numbers: Rows, patterns: Rows, *, periodic: bool) -> Iterator[tuple[Rows, Mask, bool]]:
        """Yield the bonds (i, i + 1) and, on a ring, the closing bond, for many patterns at once.

        For each, the numbers of the patterns with the two bits exchanged, undefined where they do not differ;
        where they differ; and whether the bond closes the ring.

        A bit that moves from i to i + 1 with b set bits below changes only its own term of the combinadic,
        from C(i, b + 1) to C(i + 1, b + 1): the number grows by C(i, b).
        """
        below, choose = np.zeros_like(numbers), array_namespace(numbers).asarray(self._binomials)
        here = patterns & 1
        for site in range(self.sites - 1):
            above = (patterns >> (site + 1)) & 1
            step = choose[site][below]
            yield numbers + (here - above) * step, here != above, False
            below += here
            here = above
        if periodic:
            ends = 1 | 1 << (self.sites - 1)
            differ = (patterns & 1) != here
            exchanged = numbers.copy()
            exchanged[differ] = self.numbers(patterns[differ] ^ ends)
            yield exchanged, differ, True


@physics_model(
    "spin-1/2 XXZ chain at fixed magnetisation (Heisenberg: delta=1)", example="xxz:sites=20,up=10"
)
def xxz(*, sites: int, up: int, delta: float = 1.0, j: float = 1.0, periodic: bool = True) -> RowGenerator:
    """Create the XXZ chain H = j sum_i (Sx_i Sx_i+1 + Sy_i Sy_i+1 + delta Sz_i Sz_i+1), spins 1/2.

    Parameters
    ----------
    sites : int
        Spins, 2 to 62. The sum on a ring runs over every i, so a ring of two counts its bond twice.
    up : int
        Number of up spins: the total Sz is up - sites/2.
    delta : float, default 1
        Anisotropy: 1 Heisenberg (XXX), 0 the XX chain of free fermions.
    j : float, default 1
        Coupling; positive is antiferromagnetic.
    periodic : bool, default True
        A ring; otherwise an open chain.

    Returns
    -------
    csr_array, shape (C(sites, up), C(sites, up))
        Real symmetric; row numbers are combinadics of the up spins. Closed forms:
        :func:`~blockvec.models.spectra.xx_chain_eigenvalues` for delta=0,
        :func:`~blockvec.models.spectra.magnon_eigenvalues` for up=1.

    References
    ----------
    H. Bethe, Z. Phys. 71, 205 (1931). H. Q. Lin, Phys. Rev. B 42, 6561 (1990).

    Examples
    --------
    The four-site Heisenberg ring has the ground-state energy -2 j.

    >>> import numpy as np
    >>> from blockvec import models
    >>> float(np.linalg.eigvalsh(models.xxz(sites=4, up=2).toarray())[0].round(12))
    -2.0
    """
    sector = Sector(sites, up, "up")
    n_bonds = sites - (not periodic)

    def entries(start: int, stop: int, xp: ModuleType) -> Iterator[Entry]:
        numbers = xp.arange(start, stop)
        patterns = sector.patterns(numbers)
        antiparallel = np.zeros_like(numbers)
        for exchanged, differ, _ in sector.bonds(numbers, patterns, periodic=periodic):
            antiparallel += differ
            yield Entry(exchanged, j / 2, differ)
        if delta:
            yield Entry(numbers, j * delta / 4 * (n_bonds - 2 * antiparallel))

    row_entries = sector.exchanges_per_row(periodic=periodic) + bool(delta)
    chain = functools.partial(Chain, sites, (up,), j / 2, j * delta / 4, periodic)
    return RowGenerator(sector.dimension, entries, row_entries=row_entries, chain=chain)


@physics_model("Hubbard chain of electrons", example="hubbard:sites=10,up=5,down=5,U=8")
def hubbard(
    *, sites: int, up: int, down: int, u: float, t: float = 1.0, periodic: bool = True
) -> RowGenerator:
    """Create the Hubbard chain H = -t sum_i,s (c+_i,s c_i+1,s + h.c.) + u sum_i n_i,up n_i,down.

    In the ordered product of creation operators all up electrons stand left of all down electrons, by site
    inside each. So H = T_up x 1 + 1 x T_down + u D, and a hop has a sign only across the end of a ring:
    (-1)^(N - 1) with N electrons of its spin.

    Parameters
    ----------
    sites : int
        Sites, 2 to 62. The sum on a ring runs over every i, so a ring of two counts its bond twice.
    up, down : int
        Electrons of each spin.
    u : float
        Repulsion on a site (``U`` in a string).
    t : float, default 1
        Hopping energy.
    periodic : bool, default True
        A ring; otherwise an open chain.

    Returns
    -------
    csr_array, shape (C(sites, up) C(sites, down), C(sites, up) C(sites, down))
        Real symmetric; the down electrons' number runs fastest. For u=0:
        :func:`blockvec.models.spectra.free_electron_eigenvalues`.

    References
    ----------
    J. Hubbard, Proc. R. Soc. A 276, 238 (1963). H. Q. Lin, J. E. Gubernatis, Comput. Phys. 7, 400 (1993).

    Examples
    --------
    Two sites: the ground-state energy is (u - sqrt(u^2 + 16 t^2)) / 2.

    >>> import numpy as np
    >>> from blockvec import models
    >>> H = models.hubbard(sites=2, up=1, down=1, u=6.0, t=2.0, periodic=False)
    >>> float(np.linalg.eigvalsh(H.toarray())[0].round(12))
    -2.0
    """
    ups = Sector(sites, up, "up")
    downs = Sector(sites, down, "down")
    closing = t, -t  # the hop that closes the ring passes all other electrons of its spin

    def entries(start: int, stop: int, xp: ModuleType) -> Iterator[Entry]:
        rows = xp.arange(start, stop)
        up_numbers, down_numbers = np.divmod(rows, downs.dimension)
        up_patterns, down_patterns = ups.patterns(up_numbers), downs.patterns(down_numbers)
        for exchanged, differ, wraps in ups.bonds(up_numbers, up_patterns, periodic=periodic):
            yield Entry(exchanged * downs.dimension + down_numbers, closing[up % 2] if wraps else -t, differ)
        if u:
            yield Entry(rows, u * np.bitwise_count(up_patterns & down_patterns).astype(np.float64))
        for exchanged, differ, wraps in downs.bonds(down_numbers, down_patterns, periodic=periodic):
            columns = up_numbers * downs.dimension + exchanged
            yield Entry(columns, closing[down % 2] if wraps else -t, differ)

    hops = ups.exchanges_per_row(periodic=periodic) + downs.exchanges_per_row(periodic=periodic)
    chain = functools.partial(Chain, sites, (down, up), -t, u, periodic)
    return RowGenerator(ups.dimension * downs.dimension, entries, row_entries=hops + bool(u), chain=chain)
