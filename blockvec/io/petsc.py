"""PETSc's binary files: sparse matrices (AIJ) as ``MatView`` writes them.

A file contains, in big-endian order, a class id, the numbers of rows, columns and elements, the length of
each row, the column indices, and the values. Nothing says whether PETSc was built for indices of 32 or 64
bits and for real or complex numbers. So the class id is recognised in both lengths, and the values must end
where the file ends or the next object begins: one length only fits, but for a file of complex values that is
cut in their middle, which is also one of real values.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..errors import FormatError
from ..system.frozen import frozen
from ..system.memory import check_readable

_MATRIX = 1211216  # class id
_OBJECTS = range(1211211, 1211231)  # class ids of vectors, index sets and other objects
_INDICES = (np.dtype(">i4"), np.dtype(">i8"))
_VALUES = (np.dtype(">f8"), np.dtype(">c16"))
SIGNATURES = tuple(_MATRIX.to_bytes(index.itemsize, "big") for index in _INDICES)


def read(file: Path) -> scipy.sparse.csr_array:
    """Read the first matrix of a file; a broken file raises a `FormatError`."""
    with opened(file) as stored:
        lengths = stored.lengths(0, stored.n_rows)
        stored.check_sum(int(lengths.sum()))
        return stored.rows(lengths, 0)


@frozen
class Stored:
    """The first matrix of an open file, of which ranges of rows can be read."""

    file: Path
    stream: IO[bytes]
    n_rows: int
    n_cols: int
    nnz: int
    index: np.dtype[Any]
    value: np.dtype[Any]

    def lengths(self, first_row: int, count: int) -> NDArray[np.int64]:
        """Read the numbers of elements of some rows."""
        check_readable(f"{self.file}: {count} rows", 2 * self.index.itemsize * count)
        lengths = self._array(self.index, 4 + first_row, count).astype(np.int64)
        self.check_sum(self.nnz if (lengths >= 0).all() else -1)
        return lengths

    def check_sum(self, total: int) -> None:
        """Refuse lengths of all rows that do not add up to the number of elements."""
        if total != self.nnz:
            raise FormatError(
                f"{self.file}: the lengths of its rows do not add up to {self.nnz} elements; write it again."
            )

    def rows(self, lengths: NDArray[np.int64], before: int) -> scipy.sparse.csr_array:
        """Read the rows of these lengths, which come after `before` elements."""
        starts = np.concatenate(([0], lengths.cumsum()))
        count = int(starts[-1])
        check_readable(
            f"{self.file}: {len(lengths)} rows with {count} elements",
            2 * count * (self.index.itemsize + self.value.itemsize) + 16 * len(lengths),
        )
        columns = self._array(self.index, 4 + self.n_rows + before, count)
        if count and not 0 <= columns.min() <= columns.max() < self.n_cols:
            raise FormatError(
                f"{self.file}: found a column index that is not from 0 to {self.n_cols - 1}; write it again."
            )
        self.stream.seek((4 + self.n_rows + self.nnz) * self.index.itemsize + before * self.value.itemsize)
        values = np.fromfile(self.stream, self.value, count).astype(self.value.newbyteorder("="))
        kind = np.int32 if max(len(lengths), self.n_cols, count) < 1 << 31 else np.int64
        arrays = values, columns.astype(kind), starts.astype(kind)
        return scipy.sparse.csr_array(arrays, (len(lengths), self.n_cols))

    def _array(self, kind: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
        self.stream.seek(offset * kind.itemsize)
        return np.fromfile(self.stream, kind, count)


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Stored]:
    """Open a file and read the header of its first matrix; a broken one raises a `FormatError`."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        index = _INDICES[SIGNATURES[0] != stream.read(_INDICES[0].itemsize)]
        stream.seek(0)
        header = np.fromfile(stream, index, 4).tolist()
        if len(header) < 4:
            raise FormatError(f"{file}: the file ends within its header; copy or write it again.")
        _, n_rows, n_cols, nnz = header
        if min(header) < 0:
            raise FormatError(
                f"{file}: found {n_rows} rows, {n_cols} columns and {nnz} elements, expected a sparse "
                "matrix; convert a dense one to MATAIJ."
            )
        begin = (4 + n_rows + nnz) * index.itemsize
        for value in _VALUES:  # with one of which the matrix ends with the file, or before another object
            stream.seek(end := begin + nnz * value.itemsize)
            if end == size or int.from_bytes(stream.read(index.itemsize), "big") in _OBJECTS:
                break
        else:
            raise FormatError(
                f"{file}: {nnz} elements of double precision take {begin + 8 * nnz} bytes, complex ones "
                f"{begin + 16 * nnz}, but the file has {size}: it is truncated, damaged or of another "
                "precision; write it again."
            )
        yield Stored(file, stream, n_rows, n_cols, nnz, index, value)
