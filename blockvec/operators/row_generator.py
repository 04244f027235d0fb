"""Matrices given row by row, and their assembly into compressed rows.

A model describes the rows [start, stop) of its matrix as a few *entries*, each with one column, one value and
one mask per row (all left neighbours, all diagonal elements, ...). All steps are array operations over the
rows, of NumPy or on a GPU of CuPy, and any process can create any range of rows independently.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..backends import array_namespace, backend_for
from ..errors import OptionError
from ..interchange import sparse_matrix
from ..system.memory import available_memory

if TYPE_CHECKING:
    from ..kernels.sparse.chain_plan import Chain

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Rows per panel: the temporaries of some 20 entries are about as large as the second-level cache.
_PANEL_ROWS = 8192
_GPU_PANEL_ROWS = 1 << 20  # rows: launches take less time than their work, temporaries about 1 GB
_WASTE = 8  # memory for elements that no row has is returned from one part in so many


class Entry(NamedTuple):
    """At most one matrix element per row of a range; those of one row with the same column are summed."""

    columns: Rows
    values: Any
    mask: Mask | None = None


class RowGenerator:
    """Square Hermitian matrix that creates any range of its rows on demand.

    Parameters
    ----------
    n_rows : int
        Rows and columns.
    entries : callable
        ``entries(start, stop, xp)`` yields the :class:`Entry` objects of the rows [start, stop), the same
        number for every range. `xp` is NumPy or CuPy; arrays of NumPy are copied where CuPy is asked for, as
        all are of a function without `xp`.
    dtype : dtype, default float64
        Element type of the matrix.
    row_entries : float, optional
        Mean number of elements per row, for the memory estimate. Default: the number of entries.
    chain : callable, optional
        Makes the `Chain` of the same matrix, for :func:`blockvec.models.operator`.

    Examples
    --------
    >>> from blockvec import models
    >>> chain = models.generator("laplace1d:n=6")
    >>> chain.rows(4, 6).toarray()
    array([[ 0.,  0.,  0., -1.,  2., -1.],
           [ 0.,  0.,  0.,  0., -1.,  2.]])
    """

    def __init__(
        self,
        n_rows: int,
        entries: Callable[..., Iterator[Entry]],
        *,
        dtype: Any = np.float64,
        row_entries: float | None = None,
        chain: Callable[[], Chain] | None = None,
    ) -> None:
        if n_rows > np.iinfo(np.int64).max:
            raise OptionError(
                f"{n_rows:.3g} rows are more than 64-bit row numbers can count; choose a smaller size"
            )
        self.n_rows = n_rows
        self.dtype = np.dtype(dtype)
        self.chain = chain
        self._entries = entries
        try:
            inspect.signature(entries).bind(0, 0, np)
        except TypeError:  # it takes two, and makes arrays of NumPy
            self._entries = lambda start, stop, _xp: entries(start, stop)
        self._row_entries = row_entries

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        return self.n_rows, self.n_rows

    def __repr__(self) -> str:
        return f"RowGenerator({self.n_rows}x{self.n_rows}, {self.dtype})"

    def matrix(self, *, device: str = "cpu") -> Any:
        """Return the whole matrix.

        Parameters
        ----------
        device : str, default "cpu"
            As for `rows`.

        Returns
        -------
        csr_array, or CuPy's csr_matrix, shape (n_rows, n_rows)
            In canonical form, with 32-bit indices where they fit.

        Raises
        ------
        OptionError
            If it would not fit in the available memory.
        """
        return self.rows(0, self.n_rows, device=device)

    def rows(self, start: int, stop: int, *, device: str = "cpu") -> Any:
        """Return the rows [start, stop).

        Parameters
        ----------
        start, stop : int
            Range of rows, 0 <= start <= stop <= n_rows.
        device : str, default "cpu"
            ``"cpu"`` or ``"gpu"``: where rows are created, with the same bits. Random numbers, and all of
            `banded` and `rmat`, come from the host.

        Returns
        -------
        csr_array, or CuPy's csr_matrix, shape (stop - start, n_rows)
            In canonical form, with 32-bit indices where they fit.

        Raises
        ------
        OptionError
            If the range is not inside the matrix, or would not fit in the available memory.
        """
        self._check_range(start, stop)
        backend = backend_for(device)
        if device == "cpu":
            return self._rows(start, stop, np, _PANEL_ROWS)
        with backend.xp.cuda.Device(int(backend.name.rpartition(":")[2])):
            most = np.iinfo(np.int64).max // max(1, self.n_rows) - 1  # of which all elements are numbered
            return self._rows(start, stop, backend.xp, max(1, min(_GPU_PANEL_ROWS, most)))

    def _rows(self, start: int, stop: int, xp: ModuleType, panel_rows: int) -> Any:
        count, mean = stop - start, self._row_entries
        if is_known := mean is not None and xp is np:  # to count many entries takes long
            self._check_memory(count * mean, count, xp)
        width = sum(1 for _ in self._entries(0, min(1, self.n_rows), np))
        if not is_known:
            self._check_memory(count * width, count, xp)
        index_dtype = np.int32 if max(self.n_rows, count * width) <= np.iinfo(np.int32).max else np.int64
        # An upper bound: pages that are never written take no memory, and the resize below releases them.
        indices = xp.empty(count * width, index_dtype)
        data = xp.empty(count * width, self.dtype)
        indptr = xp.zeros(count + 1, index_dtype)
        filled = 0
        for first in range(start, stop, panel_rows):
            last = min(first + panel_rows, stop)
            places = xp.empty((last - first, width), np.int64)
            numbers = xp.empty((last - first, width), self.dtype)
            masks = xp.ones((last - first, width), np.bool_)
            for position, entry in enumerate(self._entries(first, last, xp)):
                places[:, position] = xp.asarray(entry.columns)
                numbers[:, position] = xp.asarray(entry.values)
                if entry.mask is not None:
                    masks[:, position] = xp.asarray(entry.mask)
            starts, columns, values = in_canonical_form(places, numbers, masks, self.n_rows)
            end = filled + len(columns)
            indices[filled:end], data[filled:end] = columns, values
            indptr[first - start + 1 : last - start + 1] = starts[1:] + filled
            filled = end
        if xp is np:
            indices.resize(filled, refcheck=False)
            data.resize(filled, refcheck=False)
        elif count * width - filled > count * width // _WASTE:
            indices, data = indices[:filled].copy(), data[:filled].copy()
        matrix = sparse_matrix("csr", (count, self.n_rows), data[:filled], indices[:filled], indptr)
        matrix.has_canonical_format = True  # as every panel
        return matrix

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.n_rows:
            raise OptionError(
                f"rows: got start={start}, stop={stop} for a matrix of {self.n_rows} rows; "
                f"give 0 <= start <= stop <= {self.n_rows}."
            )

    def _check_memory(self, elements: float, count: int, xp: ModuleType = np) -> None:
        index_bytes = 4 if max(self.n_rows, elements) <= np.iinfo(np.int32).max else 8
        needed = elements * (self.dtype.itemsize + index_bytes) + count * index_bytes
        available = available_memory()
        if xp is not np:
            pool = xp.get_default_memory_pool()
            available = int(xp.cuda.runtime.memGetInfo()[0] + pool.free_bytes())
        if available is not None and needed > available:
            raise OptionError(
                f"{count} rows with about {elements:.3g} elements take {needed / 1e9:.3g} GB, but "
                f"{available / 1e9:.3g} GB of memory are available; choose a smaller matrix, or make some of "
                "its rows with models.generator(...).rows(start, stop)."
            )


class AssembledRows(RowGenerator):
    """Matrix whose rows cannot be created independently; the first request for a part assembles all of them.

    The mean number of elements per row counts what the assembly needs memory for.
    """

    def __init__(
        self, n_rows: int, assemble: Callable[[], scipy.sparse.csr_array], *, row_entries: float
    ) -> None:
        super().__init__(n_rows, lambda start, stop, xp: iter(()))
        self._assemble, self._mean, self._whole = assemble, row_entries, functools.cache(self.matrix)

    def matrix(self, *, device: str = "cpu") -> Any:
        self._check_memory(self.n_rows * self._mean, self.n_rows)
        return _on_device(self._assemble(), device)

    def rows(self, start: int, stop: int, *, device: str = "cpu") -> Any:
        self._check_range(start, stop)
        return _on_device(self._whole()[start:stop], device)


def _on_device(rows: scipy.sparse.csr_array, device: str) -> Any:
    if device == "cpu":
        return rows
    data, indices, indptr = map(backend_for(device).from_host, (rows.data, rows.indices, rows.indptr))
    return sparse_matrix("csr", rows.shape, data, indices, indptr)


def in_canonical_form(columns: Any, values: Any, masks: Any, n_columns: int) -> tuple[Any, Any, Any]:
    """Sort the elements of each row by column, and sum those of one column in the order given.

    Parameters
    ----------
    columns, values, masks : array, shape (n_rows, width)
        Of NumPy or CuPy; elements whose mask is False are left out.
    n_columns : int
        Times `n_rows` less than 2^63.

    Returns
    -------
    indptr, indices, data : array
    """
    xp = array_namespace(columns)
    first = xp.arange(len(columns) + 1) * n_columns  # numbers of elements of the whole rows
    numbers, data = (columns + first[:-1, None])[masks], values[masks]
    order = xp.argsort(numbers, kind="stable")
    numbers, data = numbers[order], data[order]
    while (same := xp.flatnonzero(numbers[1:] == numbers[:-1])).size:
        heads = same[xp.diff(same, prepend=-2) > 1]  # where several elements begin
        data[heads] += data[heads + 1]
        kept = xp.ones(len(data), np.bool_)
        kept[heads + 1] = False
        numbers, data = numbers[kept], data[kept]
    return xp.searchsorted(numbers, first), numbers % n_columns, data


def check_seed(seed: int) -> None:
    """Check that a seed is not negative."""
    if seed < 0:
        raise OptionError(f"seed={seed}; it must not be negative")


def uniform(start: int, stop: int, seed: int | tuple[int, ...]) -> NDArray[np.float64]:
    """Generate the random numbers of the rows [start, stop), uniform on [-1/2, 1/2).

    A counter-based generator makes the number of a row depend on seed and row only, not on the division into
    ranges. Raw bits are converted here because NumPy guarantees the bit stream of a generator across
    versions, but not the values of its distributions.
    """
    bits = np.random.Philox(seed)
    first = start // 4  # the counter advances once per four numbers
    bits.advance(first)
    raw = bits.random_raw(stop - 4 * first)[start - 4 * first :]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
