"""Operands of the multiply-add families and their slabs in shared memory.

Sizes and offsets only, the counterpart of ``cuda/dense/fma.cuh`` and ``cuda/dense/staging.cuh``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import BANK_ROW_BYTES, LINE_BYTES, WARP, architecture_of, ceil_div, is_slow_in_double, round_up
from ..problem import TsmmProblem, TsmttsmProblem, itemsize, parts_of, real_bytes
from ..source import Constant, constants_of

Product = TypeVar("Product", TsmttsmProblem, TsmmProblem)

MAX_WIDTH = 64  # columns of either block

_PADS = (0, 16, 32, 64)  # bytes; more would waste capacity


def refuse_widths(problem: TsmttsmProblem | TsmmProblem, device: DeviceInfo) -> str | None:
    """Explain why the multiply-add families cannot run a problem; None if they can."""
    if device.kind != "cuda":
        return f"{device.name} is not a GPU that runs CUDA"
    if not 1 <= problem.M <= MAX_WIDTH or not 1 <= problem.N <= MAX_WIDTH:
        return f"widths are 1 to {MAX_WIDTH}, not {problem.M} and {problem.N}"
    return None


def refuse_tensor_cores(problem: TsmttsmProblem | TsmmProblem, device: DeviceInfo) -> str | None:
    """Explain why the tensor-core families cannot run a problem of any widths; None if they can."""
    if device.kind != "cuda" or architecture_of(device) < 80:
        return f"{device.name} has no FP64 tensor cores"
    if len(set(problem.dtypes)) > 1:
        return f"takes operands of one type, not {' and '.join(problem.dtypes)}"
    real = real_bytes(problem.dtype)
    if real == 4 and is_slow_in_double(device):
        return f"computes in double precision, in which {device.name} is slow"
    if (align := min(problem.align_a, problem.align_b)) < real:
        return f"operands must be aligned to {real} bytes, not {align}"
    return None


def shape_of(problem: Product) -> Product:
    """Reduce a problem to what source and layout depend on: neither K nor the length of a pitch."""
    lda = problem.M if problem.lda == problem.M else problem.M + 1
    ldb = problem.N if problem.ldb == problem.N else problem.N + 1
    return replace(problem, K=1, lda=lda, ldb=ldb)


def prefetches_ends(problem: TsmmProblem) -> bool:
    """Check whether a kernel requests the sectors that rows of B fill in part before it stores the rows.

    Rows that lie apart begin and end anywhere; with beta, and in place, their sectors were read. This pays
    where most of the traffic is B's, in rows of a line or more; shorter rows are slower by up to a quarter
    [H100].
    """
    is_new = problem.ldb != problem.N and problem.beta == "zero" and not problem.inplace
    return is_new and problem.N > problem.M and problem.N * itemsize(problem.dtype) >= LINE_BYTES


def widest(*multiples: int) -> int:
    """Compute the widest access in bytes, at most 16, that divides all the numbers."""
    bits = 16
    for multiple in multiples:
        bits |= multiple
    return bits & -bits


@frozen
class Operand:
    """A tall operand, as a kernel accesses it."""

    width: int  # columns
    # Real numbers of an element, and their size.
    parts: int
    real_bytes: int
    is_linear: bool  # whether its rows are contiguous
    align: int  # alignment of its address in bytes, and of its pitch if rows are not contiguous
    # Columns per tile, which a thread loads at a time, and tiles per row.
    tile: int
    tiles: int

    @classmethod
    def of(cls, width: int, dtype: str, ld: int, align: int, tile: int) -> Operand:
        """Describe a K x `width` operand cut into tiles of columns."""
        parts = parts_of(dtype)
        return cls(width, parts, itemsize(dtype) // parts, ld == width, align, tile, ceil_div(width, tile))

    @property
    def size(self) -> int:
        return self.parts * self.real_bytes

    @property
    def row_bytes(self) -> int:
        return self.width * self.size

    def vector(self, pitch: int, count: int) -> int:
        """Bytes of a thread's accesses to `count` rows in a slab; they may read past the width."""
        if self.tiles == 1:
            return widest(count * self.row_bytes) if self.is_linear else 16
        return widest(pitch, self.tile * self.size)


@frozen
class Slab:
    """Rows of an operand in shared memory; the names are those of the kernels' constants."""

    rows: int  # rows of the slab
    row_bytes: int  # bytes of a row, without padding
    piece: int  # bytes per copy
    pitch: int  # bytes between rows
    # `pad` bytes follow every `pad_rows` rows.
    pad_rows: int
    pad: int

    def offset(self, row: int) -> int:
        """Compute the offset of a row."""
        return row * self.pitch + row // self.pad_rows * self.pad

    @property
    def size(self) -> int:
        return round_up(self.offset(self.rows), 16)


def operand_constants(letter: str, operand: Operand, slab: Slab, vector: int) -> dict[str, Constant]:
    """Collect the kernels' constants of a tall operand."""
    constants: dict[str, Constant] = {"LINEAR": operand.is_linear, "VECTOR": vector}
    constants |= constants_of(slab, "piece", "pitch", "pad_rows", "pad")
    return {f"{letter}_{name}": value for name, value in constants.items()}


def load_cycles(offsets: Iterable[int], vector: int) -> int:
    """Compute the cycles in which shared memory serves one load of a warp.

    Loads of 16 bytes are served by quarters of a warp, of 8 bytes by halves; equal addresses count once.
    `vector` bytes divide the offsets.
    """
    slots = BANK_ROW_BYTES // vector  # accesses without a conflict in one cycle
    accesses = [offset // vector for offset in offsets]
    cycles = 0
    for first in range(0, len(accesses), slots):
        distinct = [access % slots for access in set(accesses[first : first + slots])]
        cycles += max(map(distinct.count, distinct))
    return cycles


def make_slab(
    operand: Operand,
    rows: int,
    count: int,
    lanes: Callable[[Slab, int], Iterable[int]],
    *,
    is_stored: bool = False,
) -> tuple[Slab, int]:
    """Lay out a slab of `rows` rows so that reading it causes few bank conflicts.

    A thread reads `count` consecutive rows, which are contiguous where it takes all columns. `lanes` computes
    the offsets at which the lanes of a warp start from the slab and the bytes of their accesses. A slab that
    `is_stored` is copied back to memory, in whole pieces.

    Returns the slab and the bytes of a thread's accesses.
    """
    row_bytes = operand.row_bytes
    if operand.is_linear:
        piece = widest(operand.align, rows * row_bytes)
        period = BANK_ROW_BYTES // math.gcd(BANK_ROW_BYTES, row_bytes)  # rows after which the banks repeat
        pad_rows = math.lcm(period, count)
        choices = [Slab(rows, row_bytes, piece, row_bytes, pad_rows, pad) for pad in _PADS]
    else:
        whole = widest(row_bytes) if is_stored else 1 << (row_bytes.bit_length() - 1)
        pitch = round_up(row_bytes, 16)
        choices = [
            Slab(rows, row_bytes, min(operand.align, whole, 16), pitch + pad, rows, 0) for pad in _PADS
        ]
    best, best_vector, least = choices[0], 0, 1 << 30
    for slab in choices:
        vector = operand.vector(slab.pitch, count)
        cycles = load_cycles(lanes(slab, vector), vector)
        if cycles < least:
            best, best_vector, least = slab, vector, cycles
        if cycles * BANK_ROW_BYTES <= WARP * vector:
            break  # no layout has fewer
    return best, best_vector
