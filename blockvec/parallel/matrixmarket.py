"""Matrix Market files, of which each process reads a range of bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..io import npz
from ..io.matrixmarket import (
    GZIP,
    LINE_BYTES,
    Body,
    Header,
    both_triangles,
    count_numbers,
    defect_in,
    diagonal_fits,
    expanded,
    read_header,
)
from ..system.memory import check_readable
from .communicator import Communicator, share


def splittable_header(file: Path) -> Header | None:
    """Read the header of a file that processes can read in parts; None for other files.

    These are gzipped or dense matrices, or have another format.
    """
    with file.open("rb") as stream:
        if stream.read(2) in (GZIP, npz.SIGNATURE):
            return None
    header = read_header(file)
    return header if header.format == "coordinate" else None


def read_part(file: Path, header: Header, comm: Communicator) -> NDArray[Any]:
    """Read a part of a file in coordinate format: the lines that begin in a range of its bytes.

    Parameters
    ----------
    file, header
        The header is that of `splittable_header`.
    comm : Communicator
        Its processes read as many parts of about equal length.

    Returns
    -------
    structured array
        Records of row, column and value, numbered from 0; with those of the other triangle.

    Raises
    ------
    FormatError
        On all processes if the file is broken.
    """
    from scipy.io import mmread  # imports the readers of ten other formats

    begin, end = (_line_after(file, header, part, comm.size) for part in (comm.rank, comm.rank + 1))
    with file.open("rb") as stream:
        stream.seek(begin)
        count = count_numbers(file, cast(IO[bytes], _Section(stream, end - begin)), header)
    counts = share(comm, count)
    if (
        count is None
        or None in counts
        or any(n % header.line_numbers for n in counts)
        or sum(counts) != header.n_numbers
    ):
        raise defect_in(file, header, "found other characters than numbers, or too few or too many of them")
    own = replace(header, n_lines=count // header.line_numbers)
    check_readable(f"{file}: {own.n_lines} of {header.n_lines} elements", 2 * own.needed_bytes)
    matrix: Any = None
    reason = ""
    try:
        with file.open("rb") as stream:
            stream.seek(begin)
            body = Body(cast(IO[bytes], _Section(stream, end - begin)), own)
            matrix = mmread(cast(IO[bytes], body), spmatrix=False)
    except (ValueError, OverflowError) as error:
        reason = str(error).rstrip(".")
    if reasons := [found for found in share(comm, reason) if found]:
        raise defect_in(file, header, reasons[0])
    rows, columns = matrix.coords
    sides = bool((rows < columns).any()), bool((rows > columns).any()), diagonal_fits(matrix, header)
    above, below, is_right = zip(*share(comm, sides), strict=True)
    if not all(is_right):
        raise defect_in(file, header, f"found a diagonal that cannot be in a {header.symmetry} matrix")
    if header.symmetry != "general":
        if any(above) and any(below):
            raise both_triangles(file, header)
        matrix = expanded(matrix, header.symmetry)
    value = np.complex128 if header.values == 2 else np.float64
    triplets = np.empty(matrix.nnz, [("row", np.int64), ("column", np.int64), ("value", value)])
    triplets["row"], triplets["column"] = matrix.coords
    triplets["value"] = matrix.data
    return triplets


def _line_after(file: Path, header: Header, part: int, parts: int) -> int:
    """Find the first line that begins at or after a part of the body."""
    size = file.stat().st_size
    if part == parts:
        return size
    begin = header.body_offset + max(size - header.body_offset, 0) * part // parts
    with file.open("rb") as stream:
        stream.seek(begin - 1)
        stream.readline(LINE_BYTES + 1)  # a header ends with a newline, too
        return min(stream.tell(), size)


class _Section:
    """Stream of the next bytes of another stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes."""
        data = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data
