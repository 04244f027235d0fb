"""Tensor maps: descriptions of rows of memory for the copy engine of a GPU (sm_90), encoded by the driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import DeviceError
from .limits import ceil_div, round_up

MAP_BYTES, _ALIGNMENT = 128, 64
BOX_UNIT = 16  # bytes: of addresses and pitches
BOX_ALIGNMENT = 128  # bytes, in shared memory
MAX_BOX_UNITS = 256  # elements of a row of a box, as of its rows
_UINT32, _UINT64 = 2, 4  # CUtensorMapDataType, by which elements are copied without a conversion
_TYPES = {4: _UINT32, 8: _UINT64}


class Rows(NamedTuple):
    """Rows of memory and the boxes in which they are copied."""

    # Address of the first row, and bytes between rows: multiples of 16.
    address: int
    pitch: int
    # Bytes per row, and rows.
    row_bytes: int
    n_rows: int
    # Extents of a box in shared memory, a multiple of 16 bytes wide; what is beside the rows becomes zero.
    box_bytes: int
    box_rows: int
    unit: int  # bytes per element, 4 or 8


Encode = Callable[[Rows], bytes]


class TallOperand(NamedTuple):
    """A tall operand whose rows are copied in boxes."""

    # Columns and leading dimension in elements.
    width: int
    ld: int
    size: int  # bytes per element
    align: int  # alignment of its address and, where `ld` exceeds the width, of its pitch, in bytes

    @property
    def pitch(self) -> int:
        return self.ld * self.size

    @property
    def slack(self) -> int:
        """Most bytes from the beginning of a box, a multiple of 16, to that of its rows."""
        bits = self.align | self.pitch | BOX_UNIT
        return BOX_UNIT - (bits & -bits)

    @property
    def unit(self) -> int:
        """Bytes of an element of a map, at most the alignment of rows."""
        return min(self.size, 8)

    @property
    def is_boxable(self) -> bool:
        """Check whether elements are aligned to their size, and rows are short enough."""
        fits = self.box_row(BOX_UNIT) <= MAX_BOX_UNITS * self.unit - 4 * BOX_UNIT
        return self.align >= min(self.size, BOX_UNIT) and fits

    def box_row(self, step: int) -> int:
        """Compute the bytes of a row of a box: an odd multiple of `step`, against bank conflicts."""
        return (ceil_div(self.width * self.size + self.slack, step) | 1) * step

    def maps(self, address: int, n_rows: int, classes: int, step: int, box_rows: int) -> list[Rows]:
        """Describe the rows i, i + classes, i + 2 classes ... for each i below `classes`."""
        return [
            Rows(
                address=begin // BOX_UNIT * BOX_UNIT,
                pitch=classes * self.pitch,
                row_bytes=begin % BOX_UNIT + self.width * self.size,
                n_rows=max(1, ceil_div(n_rows - i, classes)),
                box_bytes=self.box_row(step),
                box_rows=box_rows,
                unit=self.unit,
            )
            for i, begin in enumerate(address + i * self.pitch for i in range(classes))
        ]


class TensorMaps(bytes):
    """Eight maps, an argument of a kernel."""


def encode(rows: Rows) -> bytes:
    """Encode a map; a `DeviceError` is raised if the driver refuses it."""
    memory = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
    place = round_up(ctypes.addressof(memory), _ALIGNMENT)
    status = _driver()(
        *(ctypes.c_void_p(place), _TYPES[rows.unit], 2, ctypes.c_void_p(rows.address)),
        (ctypes.c_uint64 * 2)(rows.row_bytes // rows.unit, rows.n_rows),
        (ctypes.c_uint64 * 1)(rows.pitch),
        (ctypes.c_uint32 * 2)(rows.box_bytes // rows.unit, rows.box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        *(0, 0, 0, 0),  # neither interleaved nor swizzled, no larger fetches to L2, zeros outside
    )
    if status:
        raise DeviceError(f"cuTensorMapEncodeTiled: the driver refuses {rows} with status {status}.")
    return ctypes.string_at(place, MAP_BYTES)


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
