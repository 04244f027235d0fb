"""What the multiply-add families share on the host: operands, slabs in shared memory, limits of a device.

Pure arithmetic on sizes, the counterpart of ``cuda/dense/fma.cuh`` and ``cuda/dense/staging.cuh``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..device import DeviceInfo
from ..problem import TsmmProblem, TsmttsmProblem, is_complex, itemsize

__all__ = [
    "MAX_REGISTERS",
    "MAX_WIDTH",
    "NAMED_BARRIERS",
    "Operand",
    "Slab",
    "ceil_div",
    "covered_rate",
    "excess",
    "load_cycles",
    "make_slab",
    "parts_of",
    "round_up",
    "smooth_max",
    "supports",
    "widest",
]

MAX_REGISTERS = 255  # of a thread
MAX_WIDTH = 64  # columns of either block
NAMED_BARRIERS = 14  # left for teams of several warps

_BANK_BYTES = 128  # of shared memory, served in a cycle: 32 banks of 4
_PADS = (0, 16, 32, 64)  # bytes; more would leave gaps that cost capacity
_RESERVED_SHARED_BYTES = 1024  # the driver's share of every block
_MEMORY_LATENCY_S = 0.8e-6  # of a loaded memory system: what bytes in flight must cover (Little's law)
_SHARPNESS = 8


def supports(problem: TsmttsmProblem | TsmmProblem, device: DeviceInfo) -> str | None:
    """Say why the families cannot run a problem, or None when they can."""
    if device.kind != "cuda":
        return f"{device.name} is not a GPU that runs CUDA"
    if not 1 <= problem.M <= MAX_WIDTH or not 1 <= problem.N <= MAX_WIDTH:
        return f"widths are 1 to {MAX_WIDTH}, not {problem.M} and {problem.N}"
    return None


def ceil_div(value: int, unit: int) -> int:
    """Return value / unit, rounded up."""
    return -(-value // unit)


def round_up(value: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-value // unit) * unit


def parts_of(dtype: str) -> int:
    """Return the real numbers that make an element."""
    return 2 if is_complex(dtype) else 1


def widest(*multiples: int, limit: int = 16) -> int:
    """Return the widest access in bytes, at most `limit`, that divides all the numbers."""
    bits = limit
    for multiple in multiples:
        bits |= multiple
    return bits & -bits


# ---- operands and slabs


@dataclass(frozen=True, slots=True)
class Operand:
    """What a kernel must know of a tall operand.

    Attributes
    ----------
    width : int
        Columns.
    parts, real_bytes : int
        Real numbers of an element, and their size.
    is_linear : bool
        Whether its rows are contiguous.
    align : int
        Bytes that its address divides by, and its pitch if rows are not contiguous.
    tile, tiles : int
        Columns that a thread takes at a time, and how many tiles make a row.
    """

    width: int
    parts: int
    real_bytes: int
    is_linear: bool
    align: int
    tile: int
    tiles: int

    @classmethod
    def of(cls, width: int, dtype: str, ld: int, align: int, tile: int) -> Operand:
        """Describe a K x `width` operand cut into tiles of columns."""
        parts = parts_of(dtype)
        return cls(width, parts, itemsize(dtype) // parts, ld == width, align, tile, ceil_div(width, tile))

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.parts * self.real_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.size

    def direct_vector(self, count: int) -> int:
        """Bytes of a thread's accesses to `count` rows in memory; columns past the width are not touched."""
        if self.tiles == 1 and self.is_linear:
            return widest(self.align, count * self.row_bytes)
        return widest(self.align, self.row_bytes, self.tile * self.size)

    def staged_vector(self, pitch: int, count: int, is_linear: bool) -> int:
        """Bytes of a thread's accesses to `count` rows in a slab; they may read past the width."""
        if self.tiles == 1:
            return widest(count * self.row_bytes) if is_linear else 16
        return widest(pitch, self.tile * self.size)

    def accesses(self, count: int, vector: int, is_linear: bool) -> int:
        """Return how many a thread makes for `count` rows."""
        if self.tiles == 1 and is_linear:
            return count * self.row_bytes // vector
        return count * ceil_div(self.tile * self.size, vector)


@dataclass(frozen=True, slots=True)
class Slab:
    """Rows of an operand in shared memory; names as in the kernels' constants.

    Attributes
    ----------
    rows : int
        Rows of the slab.
    row_bytes : int
        Bytes of a row that exist.
    is_linear : bool
        Whether the rows are contiguous in memory and copied as one range.
    piece : int
        Bytes copied at a time.
    pitch : int
        Bytes between rows.
    pad_rows, pad : int
        After every `pad_rows` rows, `pad` more bytes.
    """

    rows: int
    row_bytes: int
    is_linear: bool
    piece: int
    pitch: int
    pad_rows: int
    pad: int

    def offset(self, row: int) -> int:
        """Return where a row begins."""
        return row * self.pitch + row // self.pad_rows * self.pad

    @property
    def size(self) -> int:
        """Bytes of the slab, a multiple of 16."""
        return round_up(self.offset(self.rows), 16)

    def copies(self, threads: int) -> int:
        """Return how many copies each thread starts."""
        if self.is_linear:
            return ceil_div(self.rows * self.row_bytes, self.piece * threads)
        pieces = ceil_div(self.row_bytes, self.piece)
        side = max(1, threads // pieces)
        return ceil_div(self.rows, side) * ceil_div(pieces, threads)

    def constants(self, name: str) -> dict[str, bool | int | float]:
        """Return the kernels' constants of operand `name`."""
        return {
            f"{name}_PIECE": self.piece,
            f"{name}_PITCH": self.pitch,
            f"{name}_PAD_ROWS": self.pad_rows,
            f"{name}_PAD": self.pad,
        }


def load_cycles(offsets: Iterable[int], vector: int) -> int:
    """Return the cycles that shared memory takes to serve one load of a warp.

    Loads of 16 bytes are served by quarters of a warp, of 8 bytes by halves; equal addresses count once.
    `vector` bytes divide the offsets.
    """
    slots = _BANK_BYTES // vector  # accesses without a conflict in one cycle
    where = [offset // vector for offset in offsets]
    cycles = 0
    for first in range(0, len(where), slots):
        distinct = [access % slots for access in set(where[first : first + slots])]
        cycles += max(map(distinct.count, distinct))
    return cycles


def make_slab(
    operand: Operand,
    rows: int,
    count: int,
    lanes: Callable[[Slab, int], Iterable[int]],
    *,
    is_padded: bool = False,
    is_stored: bool = False,
) -> tuple[Slab, int, int]:
    """Lay out a slab so that its readers meet few bank conflicts.

    Parameters
    ----------
    operand : Operand
        Whose rows are staged.
    rows : int
        How many.
    count : int
        Consecutive rows that one thread takes, as linear memory where it takes all columns.
    lanes : callable
        Offsets at which the lanes of a warp start, given the slab and the bytes of their accesses.
    is_padded : bool
        Whether contiguous rows are nevertheless staged one by one.
    is_stored : bool
        Whether the slab goes back to memory, which takes whole pieces.

    Returns
    -------
    slab : Slab
    vector : int
        Bytes of a thread's accesses.
    cycles : int
        Cycles that shared memory takes to serve one access of a warp.
    """
    row_bytes = operand.row_bytes
    is_linear = operand.is_linear and not is_padded
    if is_linear:
        piece = widest(operand.align, rows * row_bytes)
        period = _BANK_BYTES // math.gcd(_BANK_BYTES, row_bytes)  # rows after which the banks repeat
        pad_rows = math.lcm(period, count)
        choices = [Slab(rows, row_bytes, True, piece, row_bytes, pad_rows, pad) for pad in _PADS]
    else:
        # The alignment of contiguous rows is that of their first one.
        align = widest(operand.align, row_bytes) if operand.is_linear else operand.align
        whole = widest(row_bytes) if is_stored else 1 << (row_bytes.bit_length() - 1)
        pitch = round_up(row_bytes, 16)
        choices = [Slab(rows, row_bytes, False, min(align, whole, 16), pitch + pad, rows, 0) for pad in _PADS]
    best, best_vector, least = choices[0], 0, 1 << 30
    for slab in choices:
        vector = operand.staged_vector(slab.pitch, count, is_linear)
        cycles = load_cycles(lanes(slab, vector), vector)
        if cycles < least:
            best, best_vector, least = slab, vector, cycles
        if cycles * _BANK_BYTES <= 32 * vector:
            break  # nothing is faster
    return best, best_vector, least


# ---- limits of a device


def excess(
    threads: int, blocks: int, registers: int, shared_bytes: int, static_bytes: int, device: DeviceInfo
) -> str | None:
    """Say what `blocks` blocks need and a multiprocessor does not have, or None."""
    if threads > 1024 or threads * blocks > device.threads_per_multiprocessor:
        return f"{blocks} blocks of {threads} threads on a multiprocessor"
    # Each quadrant of a multiprocessor deals out a quarter of its registers by whole warps.
    warps_a_quadrant = ceil_div(threads * blocks, 128)
    limit = min(MAX_REGISTERS, device.registers_per_multiprocessor // 4 // warps_a_quadrant // 32 // 8 * 8)
    if registers > limit:
        return f"needs {registers} registers of {limit}"
    shared = shared_bytes + static_bytes
    if shared > device.shared_bytes_per_block:
        return f"needs {shared} bytes of shared memory of {device.shared_bytes_per_block}"
    if blocks * (shared + _RESERVED_SHARED_BYTES) > device.shared_bytes_per_multiprocessor:
        return f"{blocks} blocks of {shared} bytes of shared memory do not fit a multiprocessor"
    return None


def covered_rate(share: float, flight: float) -> float:
    """Return what `flight` bytes in flight sustain of a `share` in bytes a second (Little's law)."""
    cover = max(flight, 1.0) / (share * _MEMORY_LATENCY_S)
    return float(share * cover / (1 + cover**4) ** 0.25)


def smooth_max(*times: float) -> float:
    """Return a little more than the largest: limits that are close get in each other's way."""
    longest = max(*times, 1e-12)
    return float(longest * sum((time / longest) ** _SHARPNESS for time in times) ** (1 / _SHARPNESS))
