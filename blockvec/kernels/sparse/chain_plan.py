"""Chains of spins or electrons without a matrix: blocks of rows, and tables that all blocks share.

The bits of a basis state are split in two. The states with equal upper bits are a block of consecutive rows.
Hops among the lower bits stay in the block, and are the same in all blocks with equally many lower bits set:
one small table for each number. A hop among the upper bits leads to the same position in another block, so
that whole blocks are added to each other. Only a hop from a lower to an upper bit changes block and position;
a chain has at most two such bonds, where the halves meet and, on a ring, where it closes.

References
----------
H. Q. Lin, Phys. Rev. B 42, 6561 (1990), for numbering states by two tables.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import DTypeError, OptionError
from ...system.frozen import frozen
from ..problem import Pattern

Numbers = NDArray[Any]

MAX_BITS = 62  # of a basis state: patterns are signed 64-bit integers
CROSSINGS = 2  # at most: bonds between a lower and an upper bit
_MOST_BLOCKS = 1 << 24
_DOUBLE: np.dtype[Any] = np.dtype(np.float64)


@frozen
class Chain:
    """A chain of spins (one species of particles) or electrons (two), with fixed numbers of particles.

    H has the element `hop` between states that differ by a hop of one particle to a neighbouring site, and on
    the diagonal ``diagonal (bonds - 2 q)`` for spins, with q bonds between unequal neighbours, and
    ``diagonal q`` for electrons, with q sites that both species occupy. An electron that hops across the end
    of a ring passes all others of its species, which inverts the sign if their number is odd.

    Raises
    ------
    OptionError
        For states of more than 62 bits.
    """

    sites: int
    counts: tuple[int, ...]  # particles of each species; the first species has the lowest bits of a state
    hop: float
    diagonal: float
    periodic: bool = True  # a ring; otherwise an open chain. On a ring of two sites the bond counts twice
    dtype: np.dtype[Any] = _DOUBLE  # of the elements of H

    index_bytes: ClassVar[int] = 8  # bytes of the number of a row

    def __post_init__(self) -> None:
        if self.bits > MAX_BITS:
            raise OptionError(
                f"{self.sites} sites: a chain without a matrix has states of at most {MAX_BITS} bits, this "
                f"one of {self.bits}; choose a smaller chain, or the matrix."
            )

    @property
    def bits(self) -> int:
        return self.sites * len(self.counts)

    @property
    def pattern(self) -> Pattern:
        return "spins" if len(self.counts) == 1 else "electrons"

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_rows, self.n_rows

    @property
    def n_rows(self) -> int:
        return math.prod(math.comb(self.sites, count) for count in self.counts)

    @property
    def n_bonds(self) -> int:
        return self.sites - (not self.periodic)

    @property
    def nnz(self) -> int:
        """Entries of H: hops of all states, and elements on the diagonal."""
        pairs = self.sites * (self.sites - 1)
        unequal = sum(2 * self.n_bonds * count * (self.sites - count) for count in self.counts)
        return self.n_rows * unequal // pairs + self.n_rows * (self.diagonal != 0)

    @property
    def longest(self) -> int:
        hops = (min(2 * count, 2 * (self.sites - count), self.n_bonds) for count in self.counts)
        return sum(hops) + (self.diagonal != 0)

    def scaled(self, factor: float, dtype: np.dtype[Any]) -> Chain:
        """Multiply H by a number and convert its elements to a type; `DTypeError` for a complex one."""
        if dtype.kind == "c":
            raise DTypeError(f"converted: A is a chain, whose elements are real, got dtype={dtype.name}.")
        return replace(self, hop=factor * self.hop, diagonal=factor * self.diagonal, dtype=dtype)

    @property
    def step(self) -> float:
        """Difference of elements on the diagonal whose counts q differ by one."""
        return self.diagonal * (-2 if self.pattern == "spins" else 1)

    def value(self, q: Numbers) -> Numbers:
        """Compute elements of the diagonal."""
        return self.step * q + (self.diagonal * self.n_bonds if self.pattern == "spins" else 0.0)

    def bonds(self) -> list[tuple[int, int]]:
        """List the bits of the two sites of each bond and the sign of its hop, species by species."""
        found = []
        for species, count in enumerate(self.counts):
            first = species * self.sites
            found += [(3 << first + site, 1) for site in range(self.sites - 1)]
            if self.periodic:
                sign = -1 if self.pattern == "electrons" and count % 2 == 0 else 1
                found.append(((1 | 1 << self.sites - 1) << first if self.sites > 1 else 0, sign))
        return found

    def class_rows(self, low: int) -> int:
        """Compute the rows of the largest block with so many lower bits."""
        species, inside = divmod(low - 1, self.sites)
        outside, count = self.sites - inside - 1, self.counts[species]
        kinds = range(max(0, count - outside), min(inside + 1, count) + 1)
        lower = math.prod(math.comb(self.sites, other) for other in self.counts[:species])
        return lower * max(math.comb(inside + 1, kind) for kind in kinds)

    def low_bits(self, most_rows: int) -> int:
        """Choose the most lower bits, at least one, that blocks of at most `most_rows` rows allow."""
        return max(low for low in range(1, self.bits + 1) if low == 1 or self.class_rows(low) <= most_rows)


class Kind(NamedTuple):
    """What blocks with equally many lower bits set have in common; a state is a position in the block."""

    inner: Numbers  # array, shape (rows, bonds): positions after hops among the lower bits, then -1
    signs: Numbers  # array of int8, shape (rows, bonds): their signs
    # array, shape (rows, CROSSINGS): positions in the other block after hops to an upper bit.
    crossings: Numbers
    # array of bool, shape (rows, CROSSINGS): whether the lower bit of that bond is set; a hop is possible if
    # the upper one is not equal to it.
    occupied: NDArray[np.bool_]
    # array, shape (rows,): for the count of the diagonal, see `Blocks`.
    mark: Numbers
    inside: Numbers

    @property
    def rows(self) -> int:
        return len(self.mark)


class Blocks(NamedTuple):
    """The blocks of a chain. In q of `Chain`, a row counts popcount(mark & mask) + inside + outside.

    For spins its crossings that are possible are added.
    """

    kinds: list[Kind]
    starts: Numbers  # array of int64, shape (blocks + 1,): first row of each block, and the number of rows
    kind: Numbers  # array, shape (blocks,): which of the kinds
    outer_starts: Numbers  # array, shape (blocks + 1,): where the outer hops of each block begin
    # Blocks after hops among the upper bits, and their signs.
    outer: Numbers
    outer_signs: Numbers
    crossings: Numbers  # array, shape (blocks, CROSSINGS): blocks after hops to an upper bit
    # array of bool, shape (blocks, CROSSINGS): whether the upper bit of that bond is set.
    occupied: NDArray[np.bool_]
    # array, shape (CROSSINGS,): signs of these hops; 0 where the chain has no such bond.
    crossing_signs: Numbers
    # array, shape (blocks,): for the count of the diagonal.
    mask: Numbers
    outside: Numbers
    # array, shape (blocks,): the blocks in an order in which hops lead to a block that is near.
    order: Numbers


def blocks_of(chain: Chain, low: int) -> Blocks:
    """Divide the rows of a chain into blocks by `low` lower bits of a state, at least one.

    More than 2^24 blocks raise an `OptionError`.
    """
    species, inside = divmod(low - 1, chain.sites)
    inside, outside = inside + 1, chain.sites - inside - 1
    count, upper = chain.counts[species], chain.counts[species + 1 :]
    numbers = range(max(0, count - outside), min(inside, count) + 1)
    n_blocks = sum(math.comb(outside, count - number) for number in numbers)
    n_blocks *= math.prod(math.comb(chain.sites, other) for other in upper)
    if n_blocks > _MOST_BLOCKS:
        raise OptionError(
            f"{chain.sites} sites: a chain without a matrix is divided into at most {_MOST_BLOCKS} blocks of "
            f"rows, this one into {n_blocks}; choose a smaller chain."
        )
    lower: Numbers = np.zeros(1, np.int64)
    for other in range(species):
        lower = _pairs(patterns(chain.sites, chain.counts[other]) << other * chain.sites, lower)
    lows = [_pairs(patterns(inside, number) << species * chain.sites, lower) for number in numbers]
    parts = [patterns(outside, count - number) for number in numbers]
    high: Numbers = np.concatenate(parts)
    order = np.argsort(high)
    kind = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[order]
    high = high[order]
    for other, number in enumerate(upper):
        kind = np.tile(kind, math.comb(chain.sites, number))
        high = _pairs(patterns(chain.sites, number) << outside + other * chain.sites, high)
    return _linked(chain, low, lows, high, kind)


def dealt(order: Numbers, rows: Numbers, grid: int) -> Numbers:
    """Deal blocks out to `grid` thread blocks, which take one in `grid` each, so that all get as many rows.

    In each round the thread block with the fewest rows so far gets the largest block.
    """
    order, shares = order.copy(), np.zeros(grid, np.int64)
    for first in range(0, len(order), grid):
        taken = order[first : first + grid]
        taken = taken[np.argsort(-rows[taken], kind="stable")]
        takers = np.argsort(shares[: len(taken)], kind="stable")
        order[first + takers] = taken
        shares[takers] += rows[taken]
    return order


@functools.lru_cache(maxsize=4096)
def patterns(width: int, count: int) -> NDArray[np.int64]:
    """List the patterns of `width` bits with `count` of them set, in ascending order."""
    if not 0 <= count <= width:
        return np.zeros(0, np.int64)
    if count == 0:
        return np.zeros(1, np.int64)
    below, above = patterns(width - 1, count), patterns(width - 1, count - 1)
    return np.concatenate([below, above | 1 << width - 1])


def _pairs(first: Numbers, second: Numbers) -> Numbers:
    """Combine every pattern with every other one, the second one running fastest."""
    return np.bitwise_or.outer(first, second).ravel()


def _linked(chain: Chain, low: int, lows: list[Numbers], high: Numbers, kind: Numbers) -> Blocks:
    """Tabulate the hops between lower patterns of each kind, and between upper patterns."""
    bonds = [(mask & (1 << low) - 1, mask >> low, sign) for mask, sign in chain.bonds()]
    crossing = [bond for bond in bonds if bond[0] and bond[1]]
    outer = [(above, sign) for below, above, sign in bonds if above and not below]
    inner = [(below, sign) for below, above, sign in bonds if below and not above]
    kinds = []
    for number, states in enumerate(lows):
        hops, signs = _hops(states, inner)
        crossings, occupied = _halves(states, [below for below, _, _ in crossing])
        positions = np.zeros(crossings.shape, np.int32)
        for c in range(len(crossing)):
            for other in (number - 1, number + 1):  # the bit is cleared, or set
                reached = occupied[:, c] == (other < number)
                if 0 <= other < len(lows):
                    positions[reached, c] = np.searchsorted(lows[other], crossings[reached, c])
        if chain.pattern == "spins":
            mark, inside = np.zeros_like(states), np.count_nonzero(hops >= 0, axis=1)
        else:
            mark = states >> max(0, low - chain.sites) & (1 << chain.sites) - 1
            inside = np.bitwise_count(states & states >> chain.sites)
        kinds.append(Kind(hops, signs, positions, occupied, mark, inside))
    hops, signs = _hops(high, outer)
    reached, occupied = _halves(high, [above for _, above, _ in crossing])
    exists = hops >= 0
    outer_starts = np.concatenate([[0], np.cumsum(np.count_nonzero(exists, axis=1))])
    if chain.pattern == "spins":
        mask, outside = np.zeros_like(high), np.diff(outer_starts)
    else:
        left = max(0, chain.sites - low)  # upper bits of the first species
        mask = high >> left & (1 << min(low, chain.sites)) - 1
        outside = np.bitwise_count(high & high >> left + min(low, chain.sites) & (1 << left) - 1)
    return Blocks(
        kinds=kinds,
        starts=np.concatenate([[0], np.cumsum(np.array([len(states) for states in lows])[kind])]),
        kind=kind,
        outer_starts=outer_starts,
        outer=hops[exists],
        outer_signs=signs[exists],
        crossings=np.searchsorted(high, reached).clip(max=len(high) - 1).astype(np.int32),
        occupied=occupied,
        crossing_signs=np.array([*(sign for _, _, sign in crossing), *[0] * (CROSSINGS - len(crossing))]),
        mask=mask,
        outside=outside,
        order=_near(chain, low, high),
    )


def _near(chain: Chain, low: int, high: Numbers) -> Numbers:
    """Order upper patterns by the distances of their bits from the ends of their species.

    A hop changes the sum of these distances by one at most, also across the split and the end of a ring, so
    that it leads to a pattern of the same sum or of the next one. Equal sums are ordered by positions.
    """
    sums, positions = np.zeros((2, len(high)), np.int16)
    for bit in range(low, chain.bits):
        species, site = divmod(bit, chain.sites)
        first = max(0, low - species * chain.sites)  # of the species' upper bits
        is_set = (high >> bit - low & 1).astype(np.int16)
        sums += is_set * (min(site - first, chain.sites - 1 - site) + 1)
        positions += is_set * (site - first + 1)
    return np.lexsort((positions, sums))


def _hops(states: Numbers, bonds: list[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    """Tabulate the positions of the states that hops lead to, and their signs; -1 and 0 after the last."""
    positions = np.full((len(states), max(1, len(bonds))), -1, np.int32)
    signs = np.zeros(positions.shape, np.int8)
    filled = np.zeros(len(states), np.int64)
    for mask, sign in bonds:
        rows = np.flatnonzero(np.bitwise_count(states & mask) == 1)
        positions[rows, filled[rows]] = np.searchsorted(states, states[rows] ^ mask)
        signs[rows, filled[rows]] = sign
        filled[rows] += 1
    most = filled.max(initial=0)
    return positions[:, :most], signs[:, :most]


def _halves(states: Numbers, masks: list[int]) -> tuple[Numbers, NDArray[np.bool_]]:
    """Flip one bit for each crossing bond; return the patterns, and whether the bit was set."""
    flipped = np.zeros((len(states), CROSSINGS), np.int64)
    occupied = np.zeros((len(states), CROSSINGS), np.bool_)
    for c, mask in enumerate(masks):
        flipped[:, c], occupied[:, c] = states ^ mask, states & mask != 0
    return flipped, occupied
