"""Products of chains without a matrix on the host, block by block; see `blockvec.kernels.sparse.chain_plan`.

Hops inside a block are a product with a small sparse matrix, which stays in cache; hops among the upper bits
add multiples of contiguous rows. SciPy's compiled kernels do both, without the interpreter lock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ...kernels.sparse.chain_plan import Blocks, Chain, blocks_of
from ..base import Array
from .sparse import add_product, block_count

# Elements of X in the largest block: for one column as many as the matrix of a block leaves in a second-level
# cache, and enough for wider ones that a call takes longer than Python's part of it.
BLOCK_ROWS, BLOCK_ELEMENTS = 1 << 13, 1 << 15

_ONE_ROW = np.array([0, 1], np.int32)
_FIRST = np.zeros(1, np.int32)


class ChainBlocks:
    """A chain as products on the host take it, in place of the rows of a matrix."""

    coded = False

    def __init__(self, chain: Chain) -> None:
        self.chain, self.pattern, self.index_bytes = chain, chain.pattern, chain.index_bytes
        self.shape, self.longest, self.scaled = chain.shape, chain.longest, chain.scaled
        self._plan = functools.cache(lambda low: _Plan(chain, low))

    def plan(self, width: int) -> _Plan:
        """Get the plan for so many real columns."""
        rows = min(BLOCK_ROWS, max(1, BLOCK_ELEMENTS // max(1, width)))
        return self._plan(self.chain.low_bits(rows))

    def cuts(self, width: int) -> list[int]:
        """List the first rows of groups of blocks for so many real columns, and the number of rows last."""
        starts = self.plan(width).blocks.starts
        count = block_count(self.chain.n_rows + self.chain.nnz, max(1, width))
        targets = np.linspace(0, self.chain.n_rows, count + 1).astype(np.int64)
        cuts: list[int] = np.unique(starts[np.searchsorted(starts, targets)]).tolist()
        return cuts

    def adder(self, X: Array) -> Callable[[int, int, Array], None]:
        """Make a function that adds rows [begin, end) of H X to a one-dimensional array.

        X is contiguous, and both are of one type; a range is one or several of `cuts`.
        """
        plan, width = self.plan(X.shape[1]), X.shape[1]
        chain, blocks, x = self.chain, plan.blocks, X.reshape(-1)
        hops = {sign: np.full(len(plan.places), sign * chain.hop).astype(x.dtype) for sign in (-1, 1)}

        scaled = [signs * hops[1][:1] for _, _, signs in plan.inner]

        def add(begin: int, end: int, rows: Array) -> None:
            first, last = np.searchsorted(blocks.starts, (begin, end)).tolist()
            for block in range(first, last):
                start, kind = plan.starts[block], plan.kind[block]
                m = blocks.kinds[kind].rows
                y, here = rows[(start - begin) * width : (start - begin + m) * width], start * width
                own = x[here : here + m * width]
                add_product(m, m, width, *plan.inner[kind][:2], scaled[kind], own, y)
                if chain.diagonal:
                    values = plan.diagonal(block).astype(x.dtype, copy=False)
                    add_product(m, m, width, plan.places[: m + 1], plan.places, values, own, y)
                for hop in range(*plan.outer_starts[block : block + 2]):
                    other, sign = plan.starts[plan.outer[hop]], plan.outer_signs[hop]
                    part = x[other * width : (other + m) * width]
                    add_product(1, 1, m * width, _ONE_ROW, _FIRST, hops[sign], part, y)
                for c, sign in plan.crossings:
                    indptr, indices = plan.crossing(kind, c, bool(blocks.occupied[block, c]))
                    if len(indices):
                        there = int(blocks.crossings[block, c])
                        other, end_of_other = plan.starts[there : there + 2]
                        part = x[other * width : end_of_other * width]
                        add_product(m, end_of_other - other, width, indptr, indices, hops[sign], part, y)

        return add


class _Plan:
    """Blocks of a chain, with the hops inside a block as compressed rows."""

    def __init__(self, chain: Chain, low: int) -> None:
        self._chain = chain
        self.blocks: Blocks = blocks_of(chain, low)
        self.starts: list[int] = self.blocks.starts.tolist()
        self.kind: list[int] = self.blocks.kind.tolist()
        # Blocks that hops among the upper bits lead to, and their signs.
        self.outer_starts: list[int] = self.blocks.outer_starts.tolist()
        self.outer: list[int] = self.blocks.outer.tolist()
        self.outer_signs: list[int] = self.blocks.outer_signs.tolist()
        exists = [(kind, kind.inner >= 0) for kind in self.blocks.kinds]
        self.inner = [(*_compressed(at, kind.inner), kind.signs[at]) for kind, at in exists]
        self.places = np.arange(chain.class_rows(low) + 1, dtype=np.int32)  # rows, columns of a diagonal
        self.crossings = [(c, int(sign)) for c, sign in enumerate(self.blocks.crossing_signs) if sign]
        self.crossing = functools.cache(self._crossing)
        self.inside = functools.cache(self._inside)

    def _crossing(self, kind: int, c: int, occupied: bool) -> tuple[Array, Array]:
        """Select the hops of a crossing from blocks whose upper bit is as given: row pointers, columns."""
        of = self.blocks.kinds[kind]
        return _compressed(of.occupied[:, c] != occupied, of.crossings[:, c])

    def _inside(self, kind: int, occupied: tuple[bool, ...]) -> Array:
        """Compute the elements on the diagonal in blocks whose upper bits count nothing."""
        of = self.blocks.kinds[kind]
        q = of.inside.astype(np.float64)
        if self._chain.pattern == "spins":
            for (c, _), bit in zip(self.crossings, occupied, strict=True):
                q += of.occupied[:, c] != bit
        return self._chain.value(q)

    def diagonal(self, block: int) -> Array:
        """Compute the elements on the diagonal in a block."""
        blocks, kind, step = self.blocks, self.kind[block], self._chain.step
        occupied = tuple(bool(blocks.occupied[block, c]) for c, _ in self.crossings)
        values = self.inside(kind, occupied) + step * int(blocks.outside[block])
        if self._chain.pattern == "electrons":
            values += step * np.bitwise_count(blocks.kinds[kind].mark & blocks.mask[block])
        return values


def _compressed(exists: Array, columns: Array) -> tuple[Array, Array]:
    """Make row pointers and columns of the hops that exist, of which a row has one or several."""
    ends = np.cumsum(exists.sum(axis=tuple(range(1, exists.ndim))))
    return np.concatenate([[0], ends]).astype(np.int32), columns[exists].astype(np.int32)
