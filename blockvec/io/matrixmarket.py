"""Matrix Market files: `scipy.io.mmread`, whose silent errors are caught.

SciPy reads ``1.0D+3`` as 1.0, ignores what follows a number, and doubles a symmetric matrix of which both
triangles are given. So a regular expression checks each line on its way to SciPy. Other errors are SciPy's.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from pathlib import Path
from typing import IO, Any, cast

import scipy.sparse
from numpy.typing import NDArray

from ..errors import FormatError
from ..system.memory import check_readable

_CHUNK_BYTES = 1 << 20  # bytes: lines checked at a time, and the longest one; the standard allows 1024
_GZIP = b"\x1f\x8b"
_NUMBER = rb"-?(?:(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?+\d++)?+|(?i:nan|inf(?:inity)?+))"
_COPIES = 3  # copies of the elements, at most, while they are read and converted


def read(file: Path) -> scipy.sparse.coo_array | NDArray[Any]:
    """Read a file, gzipped or not; symmetric files are expanded to all elements, duplicates are kept.

    A broken file raises a `FormatError`.
    """
    from scipy.io import mminfo, mmread  # imports the readers of ten other formats

    try:
        with file.open("rb") as raw:
            is_packed = raw.read(2) == _GZIP
            raw.seek(0)
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_packed else raw
            header = _header(stream)
            n_rows, n_cols, count, layout, field, symmetry = mminfo(io.BytesIO(header))
            is_sparse, is_general = layout == "coordinate", symmetry == "general"
            if not is_general and n_rows != n_cols:
                raise ValueError(f"found a {symmetry} matrix of {n_rows} x {n_cols}, expected a square one")
            element_bytes = (16 if field == "complex" else 8) + (8 if is_sparse else 0)
            elements = count * (1 if is_general or not is_sparse else 2)
            needed = _COPIES * elements * element_bytes + 8 * n_rows
            check_readable(f"{file}: {n_rows} rows with {elements} elements", needed)
            lines = cast(IO[bytes], _Lines(file, stream, header, is_sparse, field))
            matrix: Any = mmread(lines, spmatrix=False)
    except FormatError:
        raise
    except (ValueError, OverflowError, EOFError, OSError, zlib.error) as error:
        raise FormatError(f"{file}: {str(error).rstrip('.')}.") from None
    if is_sparse and not is_general:  # elements as they are given come first
        rows, columns = (coordinates[:count] for coordinates in matrix.coords)
        if (rows < columns).any() and (rows > columns).any():
            raise FormatError(
                f"{file}: found elements on both sides of the diagonal, expected one triangle of a "
                f"{symmetry} matrix; if both are given, line 1 must say general."
            )
    diagonal = matrix.diagonal()
    if {"hermitian": diagonal.imag, "skew-symmetric": diagonal}.get(symmetry, diagonal[:0]).any():
        raise FormatError(f"{file}: found a diagonal that cannot be in a {symmetry} matrix.")
    return matrix  # type: ignore[no-any-return]


def _header(stream: IO[bytes]) -> bytes:
    """Read the lines up to that of the sizes; refuse another format."""
    header = io.BytesIO()
    line = stream.readline(_CHUNK_BYTES)  # a binary file may have no newline
    if not line.startswith(b"%%MatrixMarket"):
        raise ValueError(
            "this is no file of Matrix Market, SciPy or PETSc (convert others in Python: scipy.io.loadmat or "
            "hb_read, then scipy.sparse.save_npz)"
        )
    while line and (not line.strip() or line.lstrip().startswith(b"%")):
        header.write(line)
        if header.tell() > _CHUNK_BYTES:  # a small packed file may have more comments than memory
            raise ValueError(f"found no sizes within {_CHUNK_BYTES} bytes")
        line = stream.readline(_CHUNK_BYTES)
    return header.getvalue() + line


class _Lines:
    """Stream of a file of which SciPy reads all lines to their ends; others are refused.

    The last line ends with a newline: without one SciPy 1.17 can read beyond its buffer and crash.
    """

    def __init__(self, file: Path, stream: IO[bytes], header: bytes, is_sparse: bool, field: str) -> None:
        self._file, self._stream, self._number = file, stream, header.count(b"\n")
        self._ready, self._rest, self._is_at_end = io.BytesIO(header), b"", False
        indices = 2 if is_sparse else 0
        values = {"pattern": 0, "complex": 2}.get(field, 1)
        is_whole = "integer" in field
        self._expected = f"{indices} indices and {values} {'integers' if is_whole else 'numbers'}"
        numbers = [rb"\d++"] * indices + [rb"-?\d++" if is_whole else _NUMBER] * values
        blanks = rb"[ \t\r]*+"
        self._lines = re.compile(
            rb"(?:" + blanks + rb"(?:" + rb"[ \t]++".join(numbers) + blanks + rb")?+\n)*+"
        )

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes of the header, then of lines that are checked."""
        data = self._ready.read(size)
        if not data and not self._is_at_end:
            self._ready = io.BytesIO(self._next())
            data = self._ready.read(size)
        return data

    def _next(self) -> bytes:
        """Read whole lines, and check them."""
        chunk = self._stream.read(_CHUNK_BYTES)
        self._is_at_end = len(chunk) < _CHUNK_BYTES
        lines, newline, self._rest = (self._rest + chunk + b"\n" * self._is_at_end).rpartition(b"\n")
        lines += newline
        checked = self._lines.match(lines)
        end = checked.end() if checked else 0
        if end < len(lines) or not newline:
            number = self._number + lines.count(b"\n", 0, end) + 1
            shown = (lines[end:] + self._rest).partition(b"\n")[0].decode("latin-1").strip()
            raise FormatError(
                f"{self._file}:{number}: found {shown[:60]!r}, expected {self._expected} per "
                "line, with exponents written by E."
            )
        self._number += lines.count(b"\n")
        return lines
