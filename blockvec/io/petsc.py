"""PETSc's binary files: sparse matrices (AIJ) as ``MatView`` writes them.

A file contains, in big-endian order, a class id, the numbers of rows, columns and elements, the length of
each row, the column indices, and the values. Nothing says whether PETSc was built for indices of 32 or 64
bits and for real or complex numbers. So the class id is recognised in both lengths, and the values must end
where the file ends or the next object begins: one length only fits, but for a file of complex values that is
cut in their middle, which is also one of real values.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse

from ..errors import FormatError
from ..system.memory import check_readable

_MATRIX = 1211216  # class id
_OBJECTS = range(1211211, 1211231)  # class ids of vectors, index sets and other objects
_INDICES = (np.dtype(">i4"), np.dtype(">i8"))
_VALUES = (np.dtype(">f8"), np.dtype(">c16"))
SIGNATURES = tuple(_MATRIX.to_bytes(index.itemsize, "big") for index in _INDICES)


def read(file: Path) -> scipy.sparse.csr_array:
    """Read the first matrix of a file; a broken file raises a `FormatError`."""
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
        value = _value_type(file, stream, size, begin, nnz, index)
        check_readable(
            f"{file}: {n_rows} rows with {nnz} elements", 2 * (begin + nnz * value.itemsize) + 16 * n_rows
        )
        stream.seek(4 * index.itemsize)
        lengths, columns, values = (
            np.fromfile(stream, kind, count) for kind, count in ((index, n_rows), (index, nnz), (value, nnz))
        )
    starts = np.concatenate(([0], lengths.cumsum(dtype=np.int64)))
    if starts[-1] != nnz or (starts[1:] < starts[:-1]).any():
        raise FormatError(f"{file}: the lengths of its rows do not add up to {nnz} elements; write it again.")
    if nnz and not 0 <= columns.min() <= columns.max() < n_cols:
        raise FormatError(f"{file}: found a column index that is not from 0 to {n_cols - 1}; write it again.")
    kind = np.int32 if max(n_rows, n_cols, nnz) < 1 << 31 else np.int64
    rows = values.astype(value.newbyteorder("=")), columns.astype(kind), starts.astype(kind)
    return scipy.sparse.csr_array(rows, (n_rows, n_cols))


def _value_type(
    file: Path, stream: IO[bytes], size: int, begin: int, nnz: int, index: np.dtype[Any]
) -> np.dtype[Any]:
    """Find the type of values with which the matrix ends at the end of the file, or before another object."""
    for value in _VALUES:
        end = begin + nnz * value.itemsize
        if end < size:
            stream.seek(end)
            following = int.from_bytes(stream.read(index.itemsize), "big")
        if end == size or (end < size and following in _OBJECTS):
            return value
    raise FormatError(
        f"{file}: {nnz} elements of double precision take {begin + 8 * nnz} bytes, complex ones "
        f"{begin + 16 * nnz}, but the file has {size}: it is truncated, damaged or of another precision; "
        "write it again."
    )
