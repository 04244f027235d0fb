"""Tensor-core TSMTTSM: what can be chosen, where a stage's data lie, and which choices are valid."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..device import DeviceInfo
from ..problem import TsmttsmProblem, is_complex, itemsize

__all__ = [
    "RESERVED_SHARED_BYTES",
    "STATIC_SHARED_BYTES",
    "Config",
    "Layout",
    "architecture_of",
    "carveout",
    "ceil_div",
    "conflicts",
    "copies",
    "goes_through_l1",
    "grid",
    "groups",
    "is_triangle",
    "layout",
    "pieces",
    "refuse",
    "register_limit",
    "registers",
    "round_up",
    "shared_bytes",
    "tile_blocks",
]

STATIC_SHARED_BYTES = 1024  # bound on barriers and counters, beside the ring
RESERVED_SHARED_BYTES = 1024  # the driver's share of every block
_MAX_REGISTERS = 255
_BULK_UNIT = 16  # bytes: alignment and granularity of bulk copies
_BANK_ROW = 128  # bytes of shared memory served in a cycle
# With fewer blocks a warp's products need each other one after another, and there the assembler of CUDA 13.0
# was seen to wait on no scoreboard for an accumulator across the end of such a loop.
_MIN_AHEAD = 4
_GAP = 32  # bytes that a fragment load takes of each of its four rows


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    rows : int
        Folded rows of a stage, a multiple of 4.
    stages : int
        Stages of the ring.
    wm, wn, wk : int
        Warps that share the columns of A, the columns of B and the rows: those of a stage, or see
        `takes_turns`.
    kstep : int
        Sets of 4 rows in one tensor product: 1, 2 or 4.
    fold : int
        Consecutive rows of narrow operands taken as one.
    unroll : int
        Steps unrolled.
    blocks : int
        Blocks resident on a multiprocessor.
    producers : int
        Warps that only copy; 0 when the last warp to read a stage fills it again.
    gapless : bool
        Whether one copy brings the rows of a stage, even where this costs bank conflicts that a gap in their
        middle would halve.
    ahead : bool
        Whether a warp loads a step's columns while it multiplies the step before, also from one stage to the
        next; else the compiler moves loads ahead within `unroll` steps of a stage.
    """

    rows: int
    stages: int
    wm: int
    wn: int
    wk: int
    kstep: int = 1
    fold: int = 1
    unroll: int = 2
    blocks: int = 1
    producers: int = 0
    gapless: bool = False
    ahead: bool = False

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return self.wm * self.wn * self.wk

    @property
    def takes_turns(self) -> bool:
        """Whether the `wk` warps of a tile take whole stages in turn."""
        return self.ahead and self.stages > self.wk

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.warps + self.producers)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a stage's operands lie in shared memory, in bytes; names as in the kernel."""

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


def round_up(value: int, unit: int) -> int:
    """Return the multiple of a unit at or above a value."""
    return -(-value // unit) * unit


def ceil_div(value: int, unit: int) -> int:
    """Return how many units cover a value."""
    return -(-value // unit)


def architecture_of(device: DeviceInfo) -> int:
    """Return 90 of ``"sm_90"``."""
    return int("".join(filter(str.isdigit, device.architecture)) or 0)


def pieces(problem: TsmttsmProblem, device: DeviceInfo) -> tuple[int, int]:
    """Return the bytes of a cp.async of A and of B, 0 where bulk copies can be used."""
    architecture = architecture_of(device)
    piece_a = _piece(problem.M, itemsize(problem.dtype), problem.lda, problem.align_a, architecture)
    if problem.same:
        return piece_a, piece_a
    return piece_a, _piece(problem.N, itemsize(problem.dtype), problem.ldb, problem.align_b, architecture)


def _piece(width: int, size: int, ld: int, align: int, architecture: int) -> int:
    if architecture >= 90 and ld == width and align >= _BULK_UNIT:
        return 0
    return min(align, 16, 1 << ((width * size).bit_length() - 1))


def goes_through_l1(problem: TsmttsmProblem, device: DeviceInfo) -> bool:
    """Return whether pieces are of 4 or 8 bytes, whose copies keep a line of L1 each until they land."""
    return any(0 < piece < 16 for piece in pieces(problem, device))


def carveout(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int | None:
    """Return the per cent of shared memory's most that L1 gives up; None for all.

    Where copies go through L1 its lines bound how many are in flight, and it gets what the ring leaves.
    """
    if not goes_through_l1(problem, device):
        return None
    shared = shared_bytes(problem, config, device) + STATIC_SHARED_BYTES + RESERVED_SHARED_BYTES
    return ceil_div(100 * config.blocks * shared, device.shared_bytes_per_multiprocessor)


def groups(problem: TsmttsmProblem, config: Config) -> tuple[int, int]:
    """Return the groups of 8 columns of A and of B."""
    return ceil_div(config.fold * problem.M, 8), ceil_div(config.fold * problem.N, 8)


def grid(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the blocks of a launch."""
    return min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows * config.fold))


def _spacing(chunk_bytes: int, piece: int, size: int, gapless: bool) -> tuple[int, int]:
    """Return the distance of two chunks and what more there is between the second and the third."""
    if piece:  # copies of pieces may go anywhere: 32 bytes modulo 128 avoid all conflicts
        free = chunk_bytes % _BANK_ROW in (32, 96)
        return (chunk_bytes if free else round_up(chunk_bytes, _BANK_ROW) + _GAP), 0
    helps = conflicts(chunk_bytes, _GAP, size) < conflicts(chunk_bytes, 0, size)
    return chunk_bytes, _GAP if helps and not gapless else 0


@functools.lru_cache(maxsize=4096)
def layout(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> Layout:
    """Return where a stage's operands lie in shared memory."""
    size = itemsize(problem.dtype)
    a_piece, b_piece = pieces(problem, device)
    groups_m, groups_n = groups(problem, config)
    chunk = config.rows // 4
    a_row = round_up(config.fold * problem.M * size, max(a_piece, size))
    b_row = round_up(config.fold * problem.N * size, max(b_piece, size))
    a_pitch, a_gap = _spacing(chunk * a_row, a_piece, size, config.gapless)
    b_pitch, b_gap = _spacing(chunk * b_row, b_piece, size, config.gapless)
    # The last row's loads of columns past the width stay within the stage.
    over_a = round_up(groups_m, config.wm) * 8 * size - a_row
    over_b = round_up(groups_n, config.wn) * 8 * size - b_row
    b_offset = round_up(4 * a_pitch + a_gap + over_a, _BANK_ROW)
    if problem.same:
        b_offset = 0
        stage_bytes = round_up(4 * a_pitch + a_gap + max(over_a, over_b), _BANK_ROW)
    else:
        stage_bytes = round_up(b_offset + 4 * b_pitch + b_gap + over_b, _BANK_ROW)
    return Layout(a_piece, b_piece, a_row, b_row, a_pitch, b_pitch, a_gap, b_gap, b_offset, stage_bytes)


def copies(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bulk copies of a stage: one an operand, or two with a gap between them."""
    where = layout(problem, config, device)
    gaps = ((where.a_piece, where.a_gap), (where.b_piece, where.b_gap))
    return sum(2 if gap else 1 for piece, gap in gaps[: 2 - problem.same] if not piece)


def conflicts(pitch: int, gap: int, size: int) -> int:
    """Return how often a fragment load of elements of `size` bytes comes back to a bank: 1, 2 or 4."""
    starts = [t * pitch + t // 2 * gap for t in range(4)]
    slots = [
        (start + column * size) % _BANK_ROW // size for start in starts for column in range(_GAP // size)
    ]
    return max(slots.count(slot) for slot in slots)


def _tile(problem: TsmttsmProblem, config: Config) -> tuple[int, int]:
    groups_m, groups_n = groups(problem, config)
    return ceil_div(groups_m, config.wm), ceil_div(groups_n, config.wn)


def is_triangle(problem: TsmttsmProblem, config: Config) -> bool:
    """Return whether only blocks of C on and above the diagonal are computed."""
    return problem.same and config.wm * config.wn == 1


def tile_blocks(problem: TsmttsmProblem, config: Config) -> int:
    """Return the 8 x 8 blocks of C that a warp accumulates."""
    im, in_ = _tile(problem, config)
    return im * (im + 1) // 2 if is_triangle(problem, config) else im * in_


def shared_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return a block's dynamic shared memory: the ring, later the sums over its warps and its part of C."""
    parts = 2 if is_complex(problem.dtype) else 1
    im, in_ = _tile(problem, config)
    ring = config.stages * layout(problem, config, device).stage_bytes
    slabs = config.wk // 2 * config.wm * config.wn * im * in_ * parts * 512
    product = config.fold**2 * problem.M * problem.N * parts * 8
    return max(ring, slabs, product, 32 * config.warps * 8)


def registers(problem: TsmttsmProblem, config: Config) -> int:
    """Return the registers a thread needs, by a rule that errs to the high side."""
    parts = 2 if is_complex(problem.dtype) else 1
    im, in_ = _tile(problem, config)
    fragments = 2 * parts * (im + (0 if is_triangle(problem, config) else in_)) * config.kstep
    fragments *= 1 + config.ahead
    more = 8 * config.kstep if parts == 2 else 8 * _is_uneven(problem, config)
    return 4 * parts * tile_blocks(problem, config) + fragments + more + (48 if config.ahead else 40)


def _is_uneven(problem: TsmttsmProblem, config: Config) -> bool:
    """Return whether warps have different numbers of groups."""
    groups_m, groups_n = groups(problem, config)
    return groups_m % config.wm > 0 or groups_n % config.wn > 0


def register_limit(config: Config, device: DeviceInfo) -> int:
    """Return the registers a thread may have: a quadrant deals out a quarter of them by whole warps."""
    warps_a_quadrant = ceil_div((config.warps + config.producers) * config.blocks, 4)
    return min(_MAX_REGISTERS, device.registers_per_multiprocessor // 4 // warps_a_quadrant // 32 // 8 * 8)


def refuse(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    return _refuse_shape(problem, config, device) or _refuse_resources(problem, config, device)


def _refuse_shape(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str | None:
    groups_m, groups_n = groups(problem, config)
    chunk = config.rows // 4
    if config.rows % 4 or chunk % config.kstep:
        return f"{config.rows} rows are not whole steps of {4 * config.kstep}"
    where = layout(problem, config, device)
    for piece, row in ((where.a_piece, where.a_row), (where.b_piece, where.b_row)):
        if not piece and chunk * row % _BULK_UNIT:
            return f"a chunk of {chunk * row} bytes; bulk copies take multiples of {_BULK_UNIT}"
    if config.wm > groups_m or config.wn > groups_n:
        return f"{config.wm} x {config.wn} warps for {groups_m} x {groups_n} groups of columns"
    if config.wk > chunk // config.kstep and not config.takes_turns:
        return f"{config.wk} warps for {chunk // config.kstep} steps"
    if config.ahead:
        if tile_blocks(problem, config) < _MIN_AHEAD or not is_complex(problem.dtype):
            return f"loading ahead is for complex tiles of at least {_MIN_AHEAD} blocks"
        if not config.takes_turns and chunk // config.kstep % config.wk:
            return f"loading ahead needs equal shares of {chunk // config.kstep} steps for {config.wk} warps"
    in_pieces = bool(where.a_piece or where.b_piece)
    if config.fold > 1 and in_pieces:
        return "only contiguous aligned operands can be folded"
    if in_pieces and config.producers == 0:
        return "operands copied in pieces need producer warps"
    if 4 * chunk * config.fold * (problem.M + problem.N) * itemsize(problem.dtype) >= 1 << 20:
        return "a stage is larger than a barrier can count"
    return None


def _refuse_resources(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str | None:
    if config.threads > 1024:
        return f"{config.threads} threads; a block has at most 1024"
    if config.threads * config.blocks > device.threads_per_multiprocessor:
        return f"{config.blocks} blocks of {config.threads} threads on a multiprocessor"
    needed, limit = registers(problem, config), register_limit(config, device)
    if limit < 64:
        return f"tensor products need 64 registers of {limit}"
    # Where a warp loads ahead, the assembler spills if that nearly fits.
    if needed > limit - (8 if config.ahead and limit < _MAX_REGISTERS else 0):
        return f"needs {needed} registers of {limit}"
    shared = shared_bytes(problem, config, device) + STATIC_SHARED_BYTES
    if shared > device.shared_bytes_per_block:
        return f"needs {shared} bytes of shared memory of {device.shared_bytes_per_block}"
    if config.blocks * (shared + RESERVED_SHARED_BYTES) > device.shared_bytes_per_multiprocessor:
        return f"{config.blocks} blocks of {shared} bytes of shared memory do not fit a multiprocessor"
    return None
