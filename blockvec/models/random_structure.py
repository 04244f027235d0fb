"""Models without a lattice: random bands and power-law graphs."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..errors import OptionError
from ..operators.row_generator import AssembledRows, Mask, RowGenerator, Rows, check_seed, uniform
from .definition import physics_model

_CHUNK_EDGES = 1 << 18  # edges per chunk: temporaries of about the size of the second-level cache
_MAX_SCALE = 40
_BITS_PER_LEVEL = 16  # random bits per quadrant: probabilities are rounded to multiples of 2^-16
_LEVELS_PER_WORD = 64 // _BITS_PER_LEVEL

Values = NDArray[np.float64]


@physics_model("random symmetric band", example="banded:n=100000,bandwidth=2000,elements=20")
def banded(*, n: int, bandwidth: int, elements: int, seed: int = 0) -> RowGenerator:
    """Create a symmetric matrix with random elements at random positions in a band.

    The off-diagonal part is a sum of random matchings: each matching pairs the rows of every stretch of
    bandwidth + 1 rows at random, and the two elements of a pair are the same random number. The stretches of
    each matching begin at another offset, so the band is homogeneous.

    Parameters
    ----------
    n : int
        Rows.
    bandwidth : int
        Largest distance of an element from the diagonal, at least 1.
    elements : int
        Elements per row, with the diagonal, at most min(n, 2 bandwidth + 1). A row has fewer if two matchings
        choose the same pair, or if a matching leaves a row of a stretch unpaired.
    seed : int, default 0
        The same seed gives the same matrix, on any machine and for any range of rows.

    Returns
    -------
    csr_array, shape (n, n)
        Real symmetric, elements uniform on [-1/2, 1/2); eigenvalues lie within elements / 2 of 0.

    Examples
    --------
    >>> from blockvec import models
    >>> A = models.banded(n=1000, bandwidth=40, elements=8).tocoo()
    >>> int(abs(A.row - A.col).max()) <= 40
    True
    """
    for name, value in (("n", n), ("bandwidth", bandwidth), ("elements", elements)):
        if value < 1:
            raise OptionError(f"{name}={value}; it must be at least 1")
    if elements > min(n, 2 * bandwidth + 1):
        raise OptionError(f"elements={elements}; a row of the band has room for {min(n, 2 * bandwidth + 1)}")
    check_seed(seed)
    stretch = min(bandwidth + 1, n)

    def assemble() -> scipy.sparse.csr_array:
        index = np.int32 if n * elements <= np.iinfo(np.int32).max else np.int64
        rows = np.arange(n, dtype=index)
        parts = [(uniform(0, n, (seed, 0)), rows, rows)]
        for matching in range(1, elements):
            offset = matching * stretch // elements  # rows by which the first stretch begins before row 0
            partners, exists, values = random_pairs(n, offset, stretch, (seed, matching))
            parts.append((values[exists], rows[exists], partners[exists].astype(index)))
        values, row, column = (np.concatenate(part) for part in zip(*parts, strict=True))
        return scipy.sparse.coo_array((values, (row, column)), shape=(n, n)).tocsr()

    # During assembly the coordinates of all elements are in memory in addition to the matrix.
    return AssembledRows(n, assemble, row_entries=3.0 * elements)


def random_pairs(n: int, offset: int, stretch: int, seed: tuple[int, int]) -> tuple[Rows, Mask, Values]:
    """Pair n rows inside stretches that begin at multiples of `stretch` minus `offset`.

    Rows of a stretch are sorted by random numbers; adjacent rows in that order are paired. Returns the
    partners of the rows, whether they have one, and the numbers of the pairs.
    """
    numbers, place = uniform(0, n, seed), np.arange(n)
    stretches = (place + offset) // stretch
    order = np.lexsort((numbers, stretches))
    begins = np.searchsorted(stretches, stretches)
    ends = np.searchsorted(stretches, stretches, side="right")
    paired = begins + ((place - begins) ^ 1)
    exists, partners = np.empty(n, np.bool_), np.empty(n, np.int64)
    exists[order] = paired < ends
    partners[order] = order[np.minimum(paired, ends - 1)]
    return partners, exists, numbers[np.minimum(partners, place)]


@physics_model("power-law graph (R-MAT), adjacency or Laplacian", example="rmat:scale=16,edges=16")
def rmat(
    *,
    scale: int,
    edges: int = 16,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    laplacian: bool = False,
    seed: int = 0,
) -> RowGenerator:
    """Create an undirected R-MAT graph: few vertices with very many neighbours, many with few or none.

    Every edge is drawn by recursively choosing a quadrant of the adjacency matrix with probabilities a, b, c
    and 1 - a - b - c, down to a single element. Loops are omitted; an edge that is drawn more than once, in
    either direction, counts once. Vertices are not renumbered: the first ones have the most neighbours.

    Parameters
    ----------
    scale : int
        The graph has 2^scale vertices; 1 to 40.
    edges : int, default 16
        Edges drawn per vertex.
    a, b, c : float, default 0.57, 0.19, 0.19
        Probabilities of the quadrants; the defaults are those of the Graph500 benchmark.
    laplacian : bool, default False
        Return degrees minus adjacency, which is positive semidefinite with the constant vector in its kernel;
        otherwise the adjacency matrix of zeros and ones.
    seed : int, default 0
        The same seed gives the same graph on any machine.

    Returns
    -------
    csr_array, shape (2^scale, 2^scale)
        Real symmetric.

    References
    ----------
    D. Chakrabarti, Y. Zhan, C. Faloutsos, "R-MAT: a recursive model for graph mining", SDM (2004).
    """
    if not 1 <= scale <= _MAX_SCALE:
        raise OptionError(f"scale={scale}; it must be between 1 and {_MAX_SCALE}")
    if edges < 1:
        raise OptionError(f"edges={edges}; it must be at least 1")
    if min(a, b, c) < 0 or a + b + c > 1:
        raise OptionError(f"a={a}, b={b}, c={c}; they are probabilities, of sum at most 1")
    check_seed(seed)

    def assemble() -> scipy.sparse.csr_array:
        rows, columns = _draw_edges(scale, edges << scale, np.cumsum((a, b, c)), seed)
        pairs = (np.concatenate((rows, columns)), np.concatenate((columns, rows)))
        graph = scipy.sparse.coo_array((np.ones(len(pairs[0])), pairs), shape=(1 << scale,) * 2).tocsr()
        graph.data[:] = 1.0
        if laplacian:
            graph = (scipy.sparse.diags_array(graph.sum(axis=1)) - graph).tocsr()
        return graph

    # During assembly the coordinates of the edges are in memory in addition to the matrix.
    return AssembledRows(1 << scale, assemble, row_entries=4.0 * edges)


def _draw_edges(scale: int, count: int, cuts: Values, seed: int) -> tuple[Rows, Rows]:
    """Draw the two ends of edges without loops; `cuts` are cumulative probabilities of the quadrants."""
    stream = np.random.Philox(seed)
    thresholds = np.rint(cuts * 2.0**_BITS_PER_LEVEL).astype(np.int64)
    parts = []
    for first in range(0, count, _CHUNK_EDGES):
        row, column = np.zeros((2, min(_CHUNK_EDGES, count - first)), np.int64)
        for level in range(scale):
            if level % _LEVELS_PER_WORD == 0:
                words = stream.random_raw(len(row))
            chance = (words & np.uint64(2**_BITS_PER_LEVEL - 1)).astype(np.int32)
            words >>= np.uint64(_BITS_PER_LEVEL)
            lower = chance >= thresholds[1]
            row = row << 1 | lower
            column = column << 1 | np.where(lower, chance >= thresholds[2], chance >= thresholds[0])
        ends = np.stack((row, column))[:, row != column]
        parts.append(ends.astype(np.int32 if scale < 32 else np.int64))
    rows, columns = np.concatenate(parts, axis=1)
    return rows, columns
