"""Matrix Market files, of which each process reads a range of bytes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..io import npz
from ..io.matrixmarket import GZIP, LINE_BYTES, Header, read_body, read_header
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

    The processes of `comm` read as many parts of about equal length. The result are records of row, column
    and value, numbered from 0, with those of the other triangle. A broken file raises a `FormatError` on all.
    """
    begin, end = (_line_after(file, header, part, comm.size) for part in (comm.rank, comm.rank + 1))

    @contextlib.contextmanager
    def opened() -> Iterator[IO[bytes]]:
        with file.open("rb") as stream:
            stream.seek(begin)
            yield cast(IO[bytes], _Section(stream, end - begin))

    matrix = read_body(file, header, opened, functools.partial(share, comm))
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
