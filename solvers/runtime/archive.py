"""Files of named arrays, as `numpy.savez` writes them, in panels of rows, that end with a digest.

If rows are split over processes, process 0 has the file: it receives the rows of the others in panels and
writes them, or reads them and sends them to their owners.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import IO, Any, NamedTuple

import numpy as np

from blockvec import RowLayout

from ..blocks import Array
from .processes import from_first

DIGEST_BYTES = hashlib.sha256().digest_size
PANEL_BYTES = 1 << 24


class Part(NamedTuple):
    """An array that is written: type, shape, and its rows in panels; those of all processes on the first."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    panels: Iterator[Array]


def part_of(array: Array, layout: RowLayout | None, *, has_rows: bool) -> Part:
    """Describe an array, with `has_rows` one whose rows are those of the layout."""
    if not has_rows or array.ndim != 2:
        return Part(array.dtype, array.shape, iter([array]))
    layout = RowLayout.equal(len(array), None) if layout is None else layout
    panels = layout.panels(array, _panel_rows(array))
    return Part(array.dtype, (layout.n_global, *array.shape[1:]), panels)


def write(file: IO[bytes], parts: Mapping[str, Part]) -> None:
    """Write parts in the order of their names, and the digest of what was written."""
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted(parts):
            dtype, shape, panels = parts[name]
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                descr = np.lib.format.dtype_to_descr(dtype)
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                for panel in panels:
                    stream.write(np.ascontiguousarray(panel).data)
    file.flush()
    with open(file.name, "rb") as written:
        file.write(hashlib.file_digest(written, "sha256").digest())


def is_intact(file: IO[bytes]) -> bool:
    """Check the digest at the end of a file."""
    digest, last = hashlib.sha256(), b""
    file.seek(0)
    while data := file.read(PANEL_BYTES):
        data = last + data
        digest.update(data[:-DIGEST_BYTES])
        last = data[-DIGEST_BYTES:]
    return digest.digest() == last


def read(
    archive: zipfile.ZipFile | None, layout: RowLayout | None, has_rows: Callable[[str], bool]
) -> dict[str, Array]:
    """Read all parts of an intact file, which the first process has.

    Arrays for whose names `has_rows` is true are split by the layout; all processes receive the others.
    """
    comm = None if layout is None else layout.comm
    names = None if archive is None else [name.removesuffix(".npy") for name in archive.namelist()]
    arrays: dict[str, Array] = {}
    for name in from_first(comm, names):
        if comm is not None and layout is not None and has_rows(name):
            arrays[name] = _own_rows(archive, name, layout)
        else:
            arrays[name] = from_first(comm, None if archive is None else array_of(archive, name))
    return arrays


def array_of(archive: zipfile.ZipFile, name: str) -> Array:
    """Read one array."""
    with archive.open(f"{name}.npy") as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _own_rows(archive: zipfile.ZipFile | None, name: str, layout: RowLayout) -> Array:
    shape, dtype = None, None
    with nullcontext() if archive is None else archive.open(f"{name}.npy") as stream:
        if stream is not None:
            np.lib.format.read_magic(stream)
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        shape, dtype = from_first(layout.comm, (shape, dtype))
        rows = np.empty((layout.n_local, shape[1]), dtype)

        def next_panel(count: int) -> Array:
            assert stream is not None
            data = stream.read(count * shape[1] * dtype.itemsize)
            return np.frombuffer(data, dtype).reshape(count, shape[1])

        layout.fill(rows, next_panel, _panel_rows(rows))
    return rows


def _panel_rows(array: Array) -> int:
    return max(1, PANEL_BYTES // max(1, int(array.shape[1]) * array.itemsize))
