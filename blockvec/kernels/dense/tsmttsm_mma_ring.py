"""Configurations of `tsmttsm_mma`: tiles of warps, and the ring of stages through which A and B are streamed.

Rows are copied in bulk where operands are contiguous and 16-byte aligned, in boxes of tensor maps elsewhere
on sm_90, and in pieces by ``cp.async`` where neither is possible or pieces are faster.
"""

from __future__ import annotations

import functools
from collections import Counter

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import BANK_ROW_BYTES, architecture_of, ceil_div, round_up
from ..problem import TsmttsmProblem, is_complex, itemsize
from ..tensor_map import BOX_ALIGNMENT, MAP_BYTES, Encode, TallOperand, TensorMaps, encode
from .family import BlockConfig

BULK_UNIT = 16  # bytes: alignment and granularity of bulk copies
# Columns up to which four real products for a complex one are as fast as three, if warps share them equally.
FEW_PRODUCTS = 40
_GAP = 32  # bytes per row of a fragment load, which has four rows
# The copy engine takes about 7 cycles per line of memory that a row touches. Boxes of rows of so many bytes
# are faster than pieces of 4 or 8 bytes, which go through L1: in single precision (the mean of the operands)
# and in double (the longer row), unless the longer rows are contiguous. Pieces of 16 bytes are as fast, but
# their warps take registers.
_LEAST_BOX_BYTES, _LONG_ROW_BYTES = 120, 384


@frozen
class TsmttsmMmaConfig(BlockConfig):
    """One way to run the kernel."""

    rows: int  # folded rows of a stage, a multiple of 4
    stages: int  # stages of the ring
    # Warps that share the columns of A, the columns of B, and the rows of a stage (but see `takes_turns`).
    wm: int
    wn: int
    wk: int
    fold: int = 1  # consecutive rows of narrow operands treated as one row
    unroll: int = 2  # unrolled steps
    blocks: int = 1  # blocks resident on a multiprocessor
    producers: int = 0  # warps that only copy; with 0 the last warp that reads a stage refills it
    # Whether a warp loads the columns of a step while it multiplies the step before, also across stages; else
    # the compiler moves loads ahead within `unroll` steps of a stage.
    ahead: bool = False
    three_m: bool = False  # three real products for a complex one instead of four

    @property
    def readers(self) -> int:
        """Warps that multiply."""
        return self.wm * self.wn * self.wk

    @property
    def takes_turns(self) -> bool:
        """Whether the `wk` warps of a tile process whole stages cyclically."""
        return self.ahead and self.stages > self.wk

    @property
    def threads(self) -> int:
        return 32 * (self.readers + self.producers)


@frozen
class Layout:
    """Layout of a stage in shared memory, in bytes; the names are those of the kernel.

    `swaps`: whether lanes of odd rows load two groups of columns in the other order, against bank conflicts.
    """

    a_piece: int
    b_piece: int
    a_row: int
    b_row: int
    a_pitch: int
    b_pitch: int
    a_gap: int
    b_gap: int
    b_offset: int
    stage_bytes: int
    swaps: bool


@functools.lru_cache(maxsize=4096)
def pieces(problem: TsmttsmProblem, device: DeviceInfo) -> tuple[int, int]:
    """Compute the bytes per cp.async of A and of B where there are no boxes; 0 for bulk copies."""
    architecture = architecture_of(device)
    piece_a = _piece(problem.M, itemsize(problem.dtype), problem.lda, problem.align_a, architecture)
    if problem.same:
        return piece_a, piece_a
    return piece_a, _piece(problem.N, itemsize(problem.dtype), problem.ldb, problem.align_b, architecture)


def _piece(width: int, size: int, ld: int, align: int, architecture: int) -> int:
    if architecture >= 90 and ld == width and align >= BULK_UNIT:
        return 0
    return min(align, 16, 1 << ((width * size).bit_length() - 1))


@functools.lru_cache(maxsize=4096)
def has_boxes(problem: TsmttsmProblem, device: DeviceInfo) -> bool:
    """Check whether the operands are copied in boxes: where rows lie apart and pieces are slower."""
    copied = [piece for piece in pieces(problem, device) if piece]
    if architecture_of(device) < 90 or not copied:
        return False
    if min(copied) == BULK_UNIT and problem.dtype != "complex128":
        return False
    operands = tall_operands(problem)
    rows = [operand.width * operand.size for operand in operands]
    apart = sum(row for row, piece in zip(rows, pieces(problem, device), strict=False) if piece)
    if problem.dtype == "complex128":
        is_faster = min(problem.M, problem.N) > FEW_PRODUCTS
    elif problem.dtype == "float64":
        is_faster = max(rows) >= _LONG_ROW_BYTES
    else:
        is_faster = sum(rows) >= len(rows) * _LEAST_BOX_BYTES and 2 * apart >= sum(rows)
    return is_faster and all(operand.is_boxable for operand in operands)


def tall_operands(problem: TsmttsmProblem) -> list[TallOperand]:
    """List A and, unless it is A, B."""
    size = itemsize(problem.dtype)
    operands = [
        TallOperand(problem.M, problem.lda, size, problem.align_a),
        TallOperand(problem.N, problem.ldb, size, problem.align_b),
    ]
    return operands[: 2 - problem.same]


def goes_through_l1(problem: TsmttsmProblem, device: DeviceInfo) -> bool:
    """Check for copies of 4 or 8 bytes, each of which occupies a line of L1 until it completes."""
    return not has_boxes(problem, device) and any(0 < piece < 16 for piece in pieces(problem, device))


def groups(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> tuple[int, int]:
    """Count the groups of 8 columns of A and of B."""
    return ceil_div(config.fold * problem.M, 8), ceil_div(config.fold * problem.N, 8)


def tile(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> tuple[int, int]:
    """Count the groups of A and of B of the warp that has most."""
    groups_m, groups_n = groups(problem, config)
    return ceil_div(groups_m, config.wm), ceil_div(groups_n, config.wn)


def is_split_triangle(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> bool:
    """Check whether four warps divide the blocks of C on and above the diagonal among themselves."""
    return problem.same and is_complex(problem.dtype) and config.wm == config.wn == 2


def tiles(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> list[tuple[int, int, bool]]:
    """List the groups of A and of B of each warp that shares C, and whether it takes a triangle of them."""
    groups_m, groups_n = groups(problem, config)
    if is_split_triangle(problem, config):
        first, second = ceil_div(groups_m, 2), groups_m // 2
        halves = (second + 1) // 2, second // 2
        return [(first, first, True), (second, second, True), *((half, first, False) for half in halves)]
    triangle = problem.same and config.wm * config.wn == 1  # blocks of C on and above the diagonal
    return [
        (_share(groups_m, config.wm, m), _share(groups_n, config.wn, n), triangle)
        for m in range(config.wm)
        for n in range(config.wn)
    ]


def _share(count: int, warps: int, warp: int) -> int:
    return count // warps + (warp < count % warps)


def tile_blocks(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> int:
    """Count the 8 x 8 blocks of C that a warp accumulates."""
    im, in_ = tile(problem, config)
    if is_split_triangle(problem, config):
        return im * (im + 1) // 2 + 1
    return im * (im + 1) // 2 if tiles(problem, config)[0][2] else im * in_


def _spacing(chunk_bytes: int, piece: int, size: int) -> tuple[int, int]:
    """Compute the pitch of chunks, and the gap between the second and the third."""
    if piece:  # copies of pieces allow any pitch: 32 bytes modulo 128 avoid all conflicts
        free = chunk_bytes % BANK_ROW_BYTES in (32, 96)
        return (chunk_bytes if free else round_up(chunk_bytes, BANK_ROW_BYTES) + _GAP), 0
    helps = conflicts(chunk_bytes, _GAP, size) < conflicts(chunk_bytes, 0, size)
    return chunk_bytes, _GAP if helps else 0


@functools.lru_cache(maxsize=4096)
def layout(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> Layout:
    """Compute the layout of a stage in shared memory."""
    size = itemsize(problem.dtype)
    groups_m, groups_n = groups(problem, config)
    chunk = config.rows // 4
    if has_boxes(problem, device):
        return _layout_of_boxes(problem, config)
    a_piece, b_piece = pieces(problem, device)
    a_row = round_up(config.fold * problem.M * size, max(a_piece, size))
    b_row = round_up(config.fold * problem.N * size, max(b_piece, size))
    a_pitch, a_gap = _spacing(chunk * a_row, a_piece, size)
    b_pitch, b_gap = _spacing(chunk * b_row, b_piece, size)
    # The last row's loads of columns past the width stay within the stage.
    over_a = round_up(groups_m, config.wm) * 8 * size - a_row
    over_b = round_up(groups_n, config.wn) * 8 * size - b_row
    b_offset = round_up(4 * a_pitch + a_gap + over_a, BANK_ROW_BYTES)
    if problem.same:
        b_offset = 0
        stage_bytes = round_up(4 * a_pitch + a_gap + max(over_a, over_b), BANK_ROW_BYTES)
    else:
        stage_bytes = round_up(b_offset + 4 * b_pitch + b_gap + over_b, BANK_ROW_BYTES)
    places = {(a_pitch, a_gap), (b_pitch, b_gap)}
    swaps = config.three_m and any(
        conflicts(*place, size, swaps=True) < conflicts(*place, size) for place in places
    )
    return Layout(
        a_piece, b_piece, a_row, b_row, a_pitch, b_pitch, a_gap, b_gap, b_offset, stage_bytes, swaps
    )


def _layout_of_boxes(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> Layout:
    chunk = config.rows // 4

    def place(operand: TallOperand, loaded: int) -> tuple[int, int, int]:
        """Compute the bytes of a row, of a chunk and of all four with what is read past the last row."""
        row = operand.box_row(_GAP)
        pitch = round_up(chunk * row, BOX_ALIGNMENT)
        over = operand.slack + loaded * 8 * operand.size - row
        return row, pitch, round_up(4 * pitch + max(0, over), BOX_ALIGNMENT)

    groups_m, groups_n = groups(problem, config)
    loaded_m, loaded_n = round_up(groups_m, config.wm), round_up(groups_n, config.wn)
    first, *others = tall_operands(problem)
    if problem.same:
        row, pitch, stage = place(first, max(loaded_m, loaded_n))
        return Layout(0, 0, row, row, pitch, pitch, 0, 0, 0, stage, False)
    a_row, a_pitch, b_offset = place(first, loaded_m)
    b_row, b_pitch, end = place(others[0], loaded_n)
    return Layout(0, 0, a_row, b_row, a_pitch, b_pitch, 0, 0, b_offset, b_offset + end, False)


def tensor_maps(
    problem: TsmttsmProblem, config: TsmttsmMmaConfig, A: int, B: int, encode: Encode = encode
) -> TensorMaps:
    """Encode the maps of operands at addresses A and B: of the rows t, t + 4, t + 8 ... for each chunk t."""
    rows = []
    for address, operand in zip((A, B), tall_operands(problem), strict=False):
        rows += operand.maps(address, problem.K, 4, _GAP, config.rows // 4)
    return TensorMaps(b"".join(map(encode, rows)).ljust(8 * MAP_BYTES, b"\0"))


@functools.lru_cache(maxsize=4096)
def conflicts(pitch: int, gap: int, size: int, *, swaps: bool = False) -> int:
    """Count the bank conflicts of a fragment load of elements of `size` bytes: 1, 2 or 4 cycles."""
    starts = [t * pitch + t // 2 * gap + swaps * (t % 2) * BANK_ROW_BYTES // 2 for t in range(4)]
    slots = [
        (start + column * size) % BANK_ROW_BYTES // size for start in starts for column in range(_GAP // size)
    ]
    return max(Counter(slots).values())
