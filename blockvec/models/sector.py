"""Bit patterns with a fixed number of set bits: the basis of spin chains and fermions.

Patterns are numbered in ascending order. The number of a pattern whose set bits are at p_1 < p_2 < ... is
sum_k C(p_k, k) (the combinadic), so neither a table of all patterns nor a search is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backends import array_namespace
from ..errors import OptionError
from ..operators.row_generator import Mask, Rows

_MAX_SITES = 62  # patterns and their numbers are signed 64-bit integers


class Bond(NamedTuple):
    """Two neighbouring sites, for many patterns at once."""

    exchanged: Rows  # numbers of the patterns with the two bits exchanged; undefined where they do not differ
    differ: Mask  # patterns in which the two bits differ
    wraps: bool  # whether the bond closes the ring


class Sector:
    """All patterns of 1 to 62 ``sites`` bits with ``count`` of them set; `name` names it in messages.

    Patterns and their numbers are arrays of NumPy or CuPy.

    References
    ----------
    D. E. Knuth, The Art of Computer Programming 4A, section 7.2.1.3 (the combinatorial number system).
    """

    def __init__(self, sites: int, count: int, name: str) -> None:
        if not 1 <= sites <= _MAX_SITES:
            raise OptionError(f"sites={sites}; it must be between 1 and {_MAX_SITES}")
        if not 0 <= count <= sites:
            raise OptionError(f"{name}={count}; it must be between 0 and sites={sites}")
        self.sites = sites
        self.count = count
        self.dimension = math.comb(sites, count)
        self._binomials: NDArray[np.int64] = np.array(
            [[math.comb(site, k) for k in range(count + 1)] for site in range(sites)], np.int64
        )

    def _choose(self, like: Rows) -> Rows:
        """Tabulate C(site, k) where an array is."""
        return array_namespace(like).asarray(self._binomials)  # type: ignore[no-any-return]

    def patterns(self, numbers: Rows) -> Rows:
        """Compute the patterns of numbers."""
        rest = numbers.copy()
        left = np.full_like(numbers, self.count)
        result, choose = np.zeros_like(numbers), self._choose(numbers)
        for site in reversed(range(self.sites)):
            below = choose[site][left]  # patterns that keep all remaining bits below this site
            is_set = rest >= below
            rest -= np.where(is_set, below, 0)
            left -= is_set
            result |= is_set.astype(np.int64) << site
        return result

    def numbers(self, patterns: Rows) -> Rows:
        """Compute the numbers of patterns."""
        result, choose = np.zeros_like(patterns), self._choose(patterns)
        seen = np.zeros_like(patterns)
        for site in range(self.sites):
            bit = (patterns >> site) & 1
            seen += bit
            result += bit * choose[site][seen]
        return result

    def n_bonds(self, *, periodic: bool) -> int:
        """Count the neighbouring pairs; a ring has one per site."""
        return self.sites if periodic else self.sites - 1

    def exchanges_per_row(self, *, periodic: bool) -> float:
        """Compute the mean number of bonds with two different bits over all patterns."""
        pairs = self.sites * (self.sites - 1) or 1
        return self.n_bonds(periodic=periodic) * 2 * self.count * (self.sites - self.count) / pairs

    def bonds(self, numbers: Rows, patterns: Rows, *, periodic: bool) -> Iterator[Bond]:
        """Yield the bonds (i, i + 1) and, on a ring, the closing bond.

        A bit that moves from i to i + 1 with b set bits below changes only its own term of the combinadic,
        from C(i, b + 1) to C(i + 1, b + 1): the number grows by C(i, b).
        """
        below, choose = np.zeros_like(numbers), self._choose(numbers)
        here = patterns & 1
        for site in range(self.sites - 1):
            above = (patterns >> (site + 1)) & 1
            step = choose[site][below]
            yield Bond(numbers + (here - above) * step, here != above, wraps=False)
            below += here
            here = above
        if periodic:
            ends = 1 | 1 << (self.sites - 1)
            differ = (patterns & 1) != here
            exchanged = numbers.copy()
            exchanged[differ] = self.numbers(patterns[differ] ^ ends)
            yield Bond(exchanged, differ, wraps=True)
