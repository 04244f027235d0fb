"""How tall operands are staged in shared memory: the host side of ``cuda/staging.cuh``.

Pure arithmetic on sizes: which pieces can be copied, how far apart rows lie, how many cycles a load of a
warp takes on the 32 banks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["BANK_BYTES", "Slab", "load_cycles", "make_slab", "widest"]

BANK_BYTES = 128  # of shared memory, served in a cycle: 32 banks of 4
_PIECES = (16, 8, 4)  # bytes that cp.async and plain loads move at a time
_PADS = (0, 16, 32, 64)  # bytes; more pads would leave gaps that cost capacity


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
        return -(-self.offset(self.rows) // 16) * 16

    def copies(self, threads: int) -> int:
        """Return how many copies each thread starts."""
        if self.is_linear:
            return -(-self.rows * self.row_bytes // (self.piece * threads))
        pieces = -(-self.row_bytes // self.piece)
        side = max(1, threads // pieces)
        return -(-self.rows // side) * -(-pieces // threads)


def widest(*multiples: int, limit: int = 16) -> int:
    """Return the widest access in bytes, at most `limit`, that divides all numbers; 2 or 1 if even 4 does not."""
    bits = limit
    for multiple in multiples:
        bits |= multiple
    return bits & -bits


def load_cycles(offsets: Iterable[int], vector: int) -> int:
    """Return the cycles that shared memory takes to serve one load of a warp.

    Loads of 16 bytes are served by quarters of a warp, of 8 bytes by halves; equal addresses count once.
    `vector` bytes divide the offsets.
    """
    slots = BANK_BYTES // vector  # accesses without a conflict in one cycle
    where = [offset // vector for offset in offsets]
    cycles = 0
    for first in range(0, len(where), slots):
        distinct = [access % slots for access in set(where[first : first + slots])]
        cycles += max(map(distinct.count, distinct))
    return cycles


def make_slab(
    rows: int,
    row_bytes: int,
    is_linear: bool,
    align: int,
    unit: int,
    vector: Callable[[int], int],
    lanes: Callable[[Slab], Iterable[int]],
) -> tuple[Slab, int]:
    """Lay out a slab so that its readers meet few bank conflicts.

    Parameters
    ----------
    rows, row_bytes : int
        Its extents.
    is_linear : bool
        Whether to copy the rows as one range, which must then be contiguous.
    align : int
        Bytes that the address of the operand divides by, and if not `is_linear` its pitch.
    unit : int
        Consecutive rows that one thread reads as linear memory.
    vector : callable
        Bytes of a thread's loads, given the pitch.
    lanes : callable
        Offsets at which the lanes of a warp start, given the slab.

    Returns
    -------
    slab : Slab
    vector : int
        Bytes of a thread's loads.
    """
    if is_linear:
        piece = widest(align, rows * row_bytes)
        pitch = row_bytes
        period = BANK_BYTES // math.gcd(BANK_BYTES, row_bytes)  # rows after which the banks repeat
        pad_rows = math.lcm(period, unit)
        choices = [Slab(rows, row_bytes, True, piece, pitch, pad_rows, pad) for pad in _PADS]
    else:
        piece = min(align, 1 << (row_bytes.bit_length() - 1), 16)
        least = -(-row_bytes // 16) * 16
        choices = [Slab(rows, row_bytes, False, piece, least + pad, rows, 0) for pad in _PADS]
    best, least_cycles = choices[0], 1 << 30
    for slab in choices:
        cycles = load_cycles(lanes(slab), vector(slab.pitch))
        if cycles < least_cycles:
            best, least_cycles = slab, cycles
        if cycles * BANK_BYTES <= 32 * vector(slab.pitch):
            break  # nothing is faster
    return best, vector(best.pitch)
