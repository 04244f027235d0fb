"""Files of named arrays, as `numpy.savez` writes them, in panels of rows and with a digest of all parts.

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
from blockvec.errors import FormatError

from ..blocks import Array
from .processes import from_first

DIGEST = "digest"  # name of the last part
PANEL_BYTES = 1 << 24
ALTERED = "it was altered after it was written"


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
    """Write parts in the order of their names, and a digest of them."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted(parts):
            dtype, shape, panels = parts[name]
            digest.update(_title(name, dtype, shape))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                descr = np.lib.format.dtype_to_descr(dtype)
                header = {"descr": descr, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                for panel in panels:
                    rows = np.ascontiguousarray(panel).data
                    digest.update(rows)
                    stream.write(rows)
        with archive.open(f"{DIGEST}.npy", "w") as stream:
            np.lib.format.write_array(stream, np.frombuffer(digest.digest(), np.uint8))


def read(
    archive: zipfile.ZipFile | None, layout: RowLayout | None, has_rows: Callable[[str], bool]
) -> dict[str, Array]:
    """Read all parts of a file.

    Parameters
    ----------
    archive : ZipFile or None
        The file on the first process, None on the others.
    layout : RowLayout or None
        Arrays for which `has_rows` is true are split by it; all processes receive the others.
    has_rows : callable
        Maps the name of a part to a bool.

    Raises
    ------
    FormatError, or any error of zipfile and NumPy
        On the first process, for a file that is broken or was altered.
    """
    comm = None if layout is None else layout.comm
    arrays: dict[str, Array] = {}
    digest, written, is_number = hashlib.sha256(), None, True
    names = [] if archive is None else sorted({name.removesuffix(".npy") for name in archive.namelist()})
    for name in from_first(comm, names):
        if comm is not None and layout is not None and has_rows(name):
            array, is_finite = _own_rows(archive, name, layout, digest)
        else:
            array = from_first(comm, None if archive is None else array_of(archive, name))
            if name == DIGEST:
                written = array.tobytes()
                continue
            digest.update(_title(name, array.dtype, array.shape))
            digest.update(np.ascontiguousarray(array).data)
            is_finite = array.dtype.kind in "iufc" and bool(np.isfinite(array).all())
        arrays[name], is_number = array, is_number and is_finite
    if archive is not None and not (is_number and written == digest.digest()):
        raise FormatError(ALTERED)
    return arrays


def array_of(archive: zipfile.ZipFile, name: str) -> Array:
    """Read one array."""
    with archive.open(f"{name}.npy") as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _own_rows(
    archive: zipfile.ZipFile | None, name: str, layout: RowLayout, digest: Any
) -> tuple[Array, bool]:
    """Read the rows of this process, and whether all rows are finite; the first adds all to the digest."""
    shape, dtype = None, None
    is_finite = True
    with nullcontext() if archive is None else archive.open(f"{name}.npy") as stream:
        if stream is not None:
            np.lib.format.read_magic(stream)
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            if len(shape) != 2 or shape[0] != layout.n_global or is_fortran or dtype.kind not in "fc":
                raise FormatError(ALTERED)
            digest.update(_title(name, dtype, shape))
        shape, dtype = from_first(layout.comm, (shape, dtype))
        rows = np.empty((layout.n_local, shape[1]), dtype)

        def next_panel(count: int) -> Array:
            nonlocal is_finite
            assert stream is not None
            data = stream.read(count * shape[1] * dtype.itemsize)
            digest.update(data)
            panel = np.frombuffer(data, dtype).reshape(count, shape[1])
            is_finite = is_finite and bool(np.isfinite(panel).all())
            return panel

        layout.fill(rows, next_panel, _panel_rows(rows))
    return rows, is_finite


def _panel_rows(array: Array) -> int:
    return max(1, PANEL_BYTES // max(1, int(array.shape[1]) * array.itemsize))


def _title(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Describe a part for the digest."""
    return f"{name} {dtype.str} {shape}\n".encode()
