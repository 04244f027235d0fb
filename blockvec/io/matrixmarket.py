"""Matrix Market files: `scipy.io.mmread`, with the checks that it lacks.

SciPy silently reads ``1.0D+3`` as 1.0, ignores what follows a number, doubles a symmetric matrix of which
both triangles are given, allocates what the header claims and the longest line takes, and does not always
name file and line. So the header is parsed here, and a regular expression checks that the body consists of
the right number of lines; only for a broken file, a slow pass finds the line.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..errors import FormatError
from ..system.frozen import frozen
from ..system.memory import check_readable

_CHUNK_BYTES = 1 << 20  # per step of the check
LINE_BYTES = 1 << 20  # of the longest line; the standard allows 1024
_HEADER_BYTES = 1 << 20
_ELEMENT_BYTES = 1024  # at most so many per element on average: compressed blanks take as good as no space
_MAX_DIGITS = 18  # of sizes and indices, which are 64-bit integers
GZIP = b"\x1f\x8b"
_GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


def read(file: Path) -> scipy.sparse.coo_array | NDArray[Any]:
    """Read a file, gzipped or not; symmetric files are expanded to all elements, duplicates are kept.

    A broken file raises a `FormatError` with the line, the text found and the text expected.
    """
    header = read_header(file)

    @contextlib.contextmanager
    def opened() -> Iterator[IO[bytes]]:
        with _opened(file) as stream:
            stream.seek(header.body_offset)
            yield stream

    matrix: scipy.sparse.coo_array | NDArray[Any] = read_body(file, header, opened)
    return matrix


def read_body(
    file: Path,
    header: Header,
    opened: Callable[[], AbstractContextManager[IO[bytes]]],
    share: Callable[[Any], Sequence[Any]] = lambda own: [own],
) -> Any:
    """Read a body, or in several processes parts of one in coordinate format.

    `opened` opens this process's part, and `share` collects an object from each: all of them refuse a part
    that is broken.
    """
    from scipy.io import mmread  # imports the readers of ten other formats

    try:
        with opened() as stream:
            count = count_lines(file, stream, header)
    except _GZIP_ERRORS:
        count = None
    counts = share(count)
    if count is None or None in counts or sum(counts) != header.n_lines:
        raise defect_in(file, header, "found other characters than numbers, or too few or too many of them")
    own = replace(header, n_lines=count)
    check_readable(
        f"{file}:{header.size_line}: {header.n_rows} rows with {own.n_lines} of {header.n_lines} elements",
        own.needed_bytes * (1 if len(counts) == 1 else 2),  # they are sent to others
    )
    matrix: Any = None
    reason = ""
    try:
        with opened() as stream:
            matrix = mmread(cast(IO[bytes], Body(stream, own)), spmatrix=False)
    except (ValueError, OverflowError) as error:
        reason = str(error).rstrip(".")
    if reasons := [found for found in share(reason) if found]:
        raise defect_in(file, header, reasons[0])
    above = below = False
    if not isinstance(matrix, np.ndarray):
        rows, columns = matrix.coords
        above, below = bool((rows < columns).any()), bool((rows > columns).any())
    above_any, below_any, fit = zip(*share((above, below, diagonal_fits(matrix, header))), strict=True)
    if not all(fit):
        raise defect_in(file, header, f"found a diagonal that cannot be in a {header.symmetry} matrix")
    if isinstance(matrix, np.ndarray) or header.symmetry == "general":
        return matrix
    if any(above_any) and any(below_any):
        raise FormatError(
            f"{file}: found elements on both sides of the diagonal, expected one triangle of a "
            f"{header.symmetry} matrix, from which the other follows; if both are given, line 1 must say "
            "general."
        )
    return expanded(matrix, header.symmetry)


class Body:
    """Stream of a body after a header of its own: without comments, and of a general matrix if it is sparse.

    A newline is appended: without one SciPy 1.17 can read beyond its buffer and crash.
    """

    def __init__(self, stream: IO[bytes], header: Header) -> None:
        self._parts = [io.BytesIO(header.text.encode()), stream, io.BytesIO(b"\n")]

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes."""
        while self._parts:
            if data := self._parts[0].read(size):
                return data
            del self._parts[0]
        return b""


def expanded(triangle: scipy.sparse.coo_array, symmetry: str) -> scipy.sparse.coo_array:
    """Append the other triangle to that of a symmetric, Hermitian or skew-symmetric matrix."""
    rows, columns = triangle.coords
    beside = rows != columns
    mirrored = triangle.data[beside]
    if symmetry != "symmetric":
        mirrored = -mirrored if symmetry == "skew-symmetric" else mirrored.conj()
    coords = np.concatenate((rows, columns[beside])), np.concatenate((columns, rows[beside]))
    return scipy.sparse.coo_array((np.concatenate((triangle.data, mirrored)), coords), shape=triangle.shape)


def diagonal_fits(matrix: scipy.sparse.coo_array | NDArray[Any], header: Header) -> bool:
    """Check that a skew-symmetric matrix has a diagonal of zeros, and a Hermitian one of real numbers."""
    if header.symmetry in ("general", "symmetric"):
        return True
    if isinstance(matrix, np.ndarray):
        diagonal = matrix.diagonal()
    else:
        rows, columns = matrix.coords
        diagonal = matrix.data[rows == columns]
    return not (diagonal if header.symmetry == "skew-symmetric" else diagonal.imag).any()


@frozen
class Header:
    """Header of a Matrix Market file: banner and size line."""

    format: str
    field: str
    symmetry: str
    n_rows: int
    n_cols: int
    n_lines: int  # lines with numbers after the header
    size_line: int  # line number
    body_offset: int  # bytes

    @property
    def text(self) -> str:
        """Header for SciPy, of as many lines, which expands no triangle of a sparse matrix."""
        is_sparse = self.format == "coordinate"
        banner = f"%%MatrixMarket matrix {self.format} {self.field} "
        banner += "general" if is_sparse else self.symmetry
        sizes = f"{self.n_rows} {self.n_cols} {self.n_lines}" if is_sparse else f"{self.n_rows} {self.n_cols}"
        return banner + "\n" * (self.size_line - 1) + sizes + "\n"

    @property
    def needed_bytes(self) -> int:
        """Memory for the elements as they are read, expanded and converted."""
        value = 16 if self.field == "complex" else 8
        if self.format == "array":
            return 3 * self.n_rows * self.n_cols * value
        index = 4 if max(self.n_rows, self.n_cols) < 1 << 31 else 8
        triangles = 1 if self.symmetry == "general" else 3  # one as read, two expanded
        expanded = self.n_lines * (1 if self.symmetry == "general" else 2)
        rows = (self.n_rows + 1) * (4 if max(self.n_rows, self.n_cols, expanded) < 1 << 31 else 8)
        return self.n_lines * triangles * (2 * index + value) + expanded * (index + value) + rows

    @property
    def indices(self) -> int:
        """Number of indices per line."""
        return 2 if self.format == "coordinate" else 0

    @property
    def values(self) -> int:
        """Number of values per line, after the indices."""
        return {"pattern": 0, "complex": 2}.get(self.field, 1)

    @property
    def whole(self) -> bool:
        """Whether values are integers."""
        return self.field in ("integer", "unsigned-integer")

    @property
    def line_form(self) -> str:
        """Description of a valid line."""
        kind = "an integer" if self.whole else "a number"
        value = ("", kind, "a real and an imaginary part")[self.values]
        return " and ".join(
            part for part in ("a row and a column index" if self.indices else "", value) if part
        )


# Words of a banner: object, format, field, symmetry.
_WORDS = (
    ("matrix",),
    ("coordinate", "array"),
    ("real", "double", "complex", "integer", "unsigned-integer", "pattern"),
    ("general", "symmetric", "skew-symmetric", "hermitian"),
)


def read_header(file: Path) -> Header:
    """Read and check the banner and the size line."""
    number = 1
    try:
        with _opened(file) as stream:
            first = stream.readline(1 << 16).decode("latin-1")  # a binary file may have no newline
            banner, *words = first.split() or [""]
            words = [word.lower() for word in words]
            if banner != "%%MatrixMarket":
                raise _defect(
                    file,
                    1,
                    first,
                    "'%%MatrixMarket matrix ...': this is no Matrix Market file, and none of SciPy or PETSc "
                    "(convert others in Python: scipy.io.loadmat or hb_read, then scipy.sparse.save_npz)",
                )
            if len(words) != len(_WORDS) or any(w not in k for w, k in zip(words, _WORDS, strict=True)):
                known = " ".join("|".join(known) for known in _WORDS)
                raise _defect(file, 1, first, f"'%%MatrixMarket {known}'")
            line = b"%"
            while line and (line.isspace() or line.lstrip().startswith(b"%")):
                number += 1
                line = stream.readline(_HEADER_BYTES)
                if stream.tell() > _HEADER_BYTES:
                    shown = line.decode("latin-1")
                    raise _defect(file, number, shown, f"the sizes within the first {_HEADER_BYTES} bytes")
            return _sizes(file, number, line.decode("latin-1"), words[1:], stream.tell())
    except _GZIP_ERRORS as error:
        raise _broken_gzip(file, number, error) from None


def _sizes(file: Path, number: int, line: str, words: list[str], offset: int) -> Header:
    layout, field, symmetry = words
    names = "rows, columns and elements" if layout == "coordinate" else "rows and columns"
    sizes = line.split()
    if len(sizes) != (3 if layout == "coordinate" else 2) or not all(map(_is_index, sizes)):
        raise _defect(file, number, line, f"the numbers of {names}, of at most {_MAX_DIGITS} digits")
    n_rows, n_cols = int(sizes[0]), int(sizes[1])
    if symmetry != "general" and n_rows != n_cols:
        raise _defect(file, number, line, f"as many rows as columns in a {symmetry} matrix")
    if symmetry == "skew-symmetric" and field == "unsigned-integer":
        raise _defect(
            file, 1, f"{field} {symmetry}", "signed values: those of the other triangle are negative"
        )
    if layout == "coordinate":
        n_lines = int(sizes[2])
    elif field == "pattern":
        raise _defect(file, 1, f"{layout} {field}", "values: a pattern has the coordinate format")
    else:  # one triangle; of a skew-symmetric matrix without the diagonal
        triangle = n_rows * (n_rows + (-1 if symmetry == "skew-symmetric" else 1)) // 2
        n_lines = n_rows * n_cols if symmetry == "general" else triangle
    return Header(layout, field, symmetry, n_rows, n_cols, n_lines, number, offset)


def _is_index(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


_NUMBER = rb"-?(?:(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?+\d++)?+|(?i:nan|inf(?:inity)?+))"


@functools.cache
def _lines_of(indices: int, values: int, whole: bool) -> re.Pattern[bytes]:
    """Compile a pattern of lines that are blank or have so many indices and values, without backtracking."""
    numbers = [rb"\d++"] * indices + [rb"-?\d++" if whole else _NUMBER] * values
    return re.compile(rb"(?:[ \t\r]*+(?:" + rb"[ \t]++".join(numbers) + rb"[ \t\r]*+)?+\n)*+")


def count_lines(file: Path, stream: IO[bytes], header: Header) -> int | None:
    """Count the lines with numbers of a body, or of a part of it; None if it has something else.

    Without this check SciPy silently returns a wrong matrix for numbers that it reads in part (``1.0D+3``,
    ``1.5-100``, ``2.5`` for an integer) and for elements with too many or too few values. Lines and blanks
    have an upper bound, because SciPy keeps whole lines in memory.
    """
    pattern = _lines_of(header.indices, header.values, header.whole)
    found = read = 0
    rest = b""
    for chunk in itertools.chain(iter(lambda: stream.read(_CHUNK_BYTES), b""), [b"\n"]):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > LINE_BYTES or not pattern.fullmatch(whole + newline):
            return None
        lines = whole.split(b"\n")
        found += len(lines) - lines.count(b"") - sum(map(bytes.isspace, lines))
        read += len(chunk)
        if read > _ELEMENT_BYTES * (found + _ELEMENT_BYTES):
            raise FormatError(
                f"{file}: found {read} characters with {found} elements, expected at most {_ELEMENT_BYTES} "
                "per element; remove the blanks."
            )
    return found


def defect_in(file: Path, header: Header, otherwise: str) -> FormatError:
    """Create the error for the first wrong line of the body; without one, from the text `otherwise`."""
    number = header.size_line
    count = 0
    try:
        with _opened(file) as stream:
            stream.seek(header.body_offset)
            for raw in iter(lambda: stream.readline(LINE_BYTES + 1), b""):
                number += 1
                line = raw.decode("latin-1")
                if len(raw) > LINE_BYTES:
                    return _defect(file, number, line, f"a line of at most {LINE_BYTES} characters")
                words = line.split()
                if not words:
                    continue
                count += 1
                expected = _wrong(raw, words, header)
                if count > header.n_lines:
                    expected = (
                        f"the end of the file after {header.n_lines} elements as line {header.size_line} says"
                    )
                if expected:
                    return _defect(file, number, line, expected)
    except _GZIP_ERRORS as error:
        return _broken_gzip(file, number, error)
    if count < header.n_lines:
        return FormatError(
            f"{file}:{number}: found the end of the file after {count} elements, expected {header.n_lines} "
            f"as line {header.size_line} says: it is truncated; copy or download it again."
        )
    return FormatError(f"{file}: {otherwise}.")


def _wrong(line: bytes, words: list[str], header: Header) -> str:
    """Describe what a line of the body should contain; empty if the line is valid."""
    indices, values = words[: header.indices], words[header.indices :]
    if not _lines_of(header.indices, header.values, header.whole).fullmatch(line.rstrip(b"\n") + b"\n"):
        if len(values) == header.values and not header.whole:
            if any(value.upper().count("D") == 1 for value in values):
                return f"{header.line_form}; write exponents with E"
            if any(value.startswith("+") for value in values):  # SciPy rejects it
                return f"{header.line_form} without a leading +"
        return header.line_form
    for index, extent, name in zip(indices, (header.n_rows, header.n_cols), ("row", "column"), strict=False):
        if not (_is_index(index) and 1 <= int(index) <= extent):
            return f"a {name} index between 1 and {extent}"
    on_diagonal = bool(indices) and int(indices[0]) == int(indices[1])
    if on_diagonal and header.symmetry == "skew-symmetric" and any(float(value) for value in values):
        return "no diagonal elements but zeros in a skew-symmetric matrix"
    if on_diagonal and header.symmetry == "hermitian" and header.values == 2 and float(values[1]):
        return "a real diagonal in a Hermitian matrix"
    return ""


def _defect(file: Path, number: int, line: str, expected: str) -> FormatError:
    shown = line.strip()
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return FormatError(f"{file}:{number}: found {shown!r}, expected {expected}.")


def _broken_gzip(file: Path, number: int, error: BaseException) -> FormatError:
    return FormatError(
        f"{file}:{number}: the gzip data break off or are damaged here ({error}); download the file again."
    )


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    with file.open("rb") as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield io.BufferedReader(unpacked)
