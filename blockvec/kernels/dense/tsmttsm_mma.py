"""TSMTTSM on FP64 tensor cores: C = alpha A^H B + beta C, or A^T B, for two operands of one of four types.

Single precision is converted on its way to the tensor cores, whose peak is that of its own multiply-adds:
products are exact and sums in double precision.

The kernel (``tsmttsm_mma.cu`` explains it) streams A and B through a ring of stages in shared memory, filled
by bulk copies where operands are contiguous and 16-byte aligned, by boxes of tensor maps elsewhere on sm_90
(``tsmttsm_boxes.cu``), and by ``cp.async`` where neither is possible. It sums over the blocks in a fixed
order in the same launch.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..device import DeviceInfo
from ..launch import Launch, pack_product, partials_bytes, partials_chain
from ..limits import (
    BANK_ROW_BYTES,
    MAX_REGISTERS,
    MAX_THREADS,
    RESERVED_SHARED_BYTES,
    architecture_of,
    ceil_div,
    excess_shared,
    excess_threads,
    register_limit,
    round_up,
)
from ..problem import TsmttsmProblem, is_complex, itemsize, real_bytes
from ..source import Constant, c_type, constants_of, render
from ..tensor_map import BOX_ALIGNMENT, MAX_BOX_ROWS, Encode, TallOperand, TensorMaps, encode
from .family import DenseFamily

STATIC_SHARED_BYTES = 1024  # bound on barriers and counters, beside the ring
BULK_UNIT = 16  # bytes: alignment and granularity of bulk copies
# With fewer blocks each product of a warp depends on the one before, and there the assembler of CUDA 13.0
# was seen to omit the scoreboard wait for an accumulator across the end of such a loop.
_MIN_AHEAD = 4
# Columns up to which four real products for a complex one are as fast as three: of A^H B whose groups of
# columns warps share equally, and of others; of Gram matrices.
FEW_PRODUCTS, FEW_UNEVEN, FEW_SQUARES = 40, 56, 48
_GAP = 32  # bytes per row of a fragment load, which has four rows
# The copy engine takes about 7 cycles per line of memory that a row touches. Boxes of rows of so many bytes
# are faster than pieces of 4 or 8 bytes, which go through L1: in single precision (the mean of the operands)
# and in double (the longer row), unless the longer rows are contiguous. Pieces of 16 bytes are as fast, but
# their warps take registers.
_LEAST_BOX_BYTES, _LONG_ROW_BYTES = 120, 384


@dataclass(frozen=True, slots=True)
class TsmttsmMmaConfig:
    """One way to run the kernel.

    Attributes
    ----------
    rows : int
        Folded rows of a stage, a multiple of 4.
    stages : int
        Stages of the ring.
    wm, wn, wk : int
        Warps that share the columns of A, the columns of B, and the rows of a stage (but see `takes_turns`).
    kstep : int
        Sets of 4 rows in one tensor product: 1, 2 or 4.
    fold : int
        Consecutive rows of narrow operands treated as one row.
    unroll : int
        Unrolled steps.
    blocks : int
        Blocks resident on a multiprocessor.
    producers : int
        Warps that only copy; with 0 the last warp that reads a stage refills it.
    gapless : bool
        Whether one copy loads the rows of a stage, even where a gap in their middle would halve the bank
        conflicts.
    ahead : bool
        Whether a warp loads the columns of a step while it multiplies the step before, also across stages;
        else the compiler moves loads ahead within `unroll` steps of a stage.
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

    three_m: ClassVar[bool] = False  # three real products for a complex one instead of four

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return self.wm * self.wn * self.wk

    @property
    def takes_turns(self) -> bool:
        """Whether the `wk` warps of a tile process whole stages cyclically."""
        return self.ahead and self.stages > self.wk

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.warps + self.producers)


@dataclass(frozen=True, slots=True)
class Tsmttsm3mConfig(TsmttsmMmaConfig):
    """One way to run the kernel with three real products for a complex one."""

    three_m: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
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
    """Compute the bytes per cp.async of A and of B, 0 where bulk copies or boxes are possible."""
    if has_boxes(problem, device):
        return 0, 0
    return _pieces(problem, device)


def _pieces(problem: TsmttsmProblem, device: DeviceInfo) -> tuple[int, int]:
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
    copied = [piece for piece in _pieces(problem, device) if piece]
    if architecture_of(device) < 90 or not copied:
        return False
    if min(copied) == BULK_UNIT and problem.dtype != "complex128":
        return False
    operands = tall_operands(problem)
    rows = [operand.width * operand.size for operand in operands]
    apart = sum(row for row, piece in zip(rows, _pieces(problem, device), strict=False) if piece)
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
    return any(0 < piece < 16 for piece in pieces(problem, device))


def carveout(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int | None:
    """Compute the percentage of the largest shared memory to configure; None for all of it.

    Where copies go through L1, its lines limit how many are in flight, and it gets what the ring leaves.
    """
    if not goes_through_l1(problem, device):
        return None
    shared = shared_bytes(problem, config, device) + STATIC_SHARED_BYTES + RESERVED_SHARED_BYTES
    return ceil_div(100 * config.blocks * shared, device.shared_bytes_per_multiprocessor)


def groups(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> tuple[int, int]:
    """Count the groups of 8 columns of A and of B."""
    return ceil_div(config.fold * problem.M, 8), ceil_div(config.fold * problem.N, 8)


def grid(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
    """Compute the number of blocks of a launch."""
    return min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows * config.fold))


def _spacing(chunk_bytes: int, piece: int, size: int, gapless: bool) -> tuple[int, int]:
    """Compute the pitch of chunks, and the gap between the second and the third."""
    if piece:  # copies of pieces allow any pitch: 32 bytes modulo 128 avoid all conflicts
        free = chunk_bytes % BANK_ROW_BYTES in (32, 96)
        return (chunk_bytes if free else round_up(chunk_bytes, BANK_ROW_BYTES) + _GAP), 0
    helps = conflicts(chunk_bytes, _GAP, size) < conflicts(chunk_bytes, 0, size)
    return chunk_bytes, _GAP if helps and not gapless else 0


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
    a_pitch, a_gap = _spacing(chunk * a_row, a_piece, size, config.gapless)
    b_pitch, b_gap = _spacing(chunk * b_row, b_piece, size, config.gapless)
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
    return TensorMaps.of(rows, encode)


def copies(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
    """Count the bulk copies of a stage: one per operand, or two with a gap between them."""
    if has_boxes(problem, device):
        return 4 * (2 - problem.same)
    stage = layout(problem, config, device)
    gaps = ((stage.a_piece, stage.a_gap), (stage.b_piece, stage.b_gap))
    return sum(2 if gap else 1 for piece, gap in gaps[: 2 - problem.same] if not piece)


@functools.lru_cache(maxsize=4096)
def conflicts(pitch: int, gap: int, size: int, *, swaps: bool = False) -> int:
    """Count the bank conflicts of a fragment load of elements of `size` bytes: 1, 2 or 4 cycles."""
    starts = [t * pitch + t // 2 * gap + swaps * (t % 2) * BANK_ROW_BYTES // 2 for t in range(4)]
    slots = [
        (start + column * size) % BANK_ROW_BYTES // size for start in starts for column in range(_GAP // size)
    ]
    return max(Counter(slots).values())


def _tile(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> tuple[int, int]:
    groups_m, groups_n = groups(problem, config)
    return ceil_div(groups_m, config.wm), ceil_div(groups_n, config.wn)


def is_triangle(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> bool:
    """Check whether only blocks of C on and above the diagonal are computed."""
    return problem.same and config.wm * config.wn == 1


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
    triangle = is_triangle(problem, config)
    return [
        (_share(groups_m, config.wm, m), _share(groups_n, config.wn, n), triangle)
        for m in range(config.wm)
        for n in range(config.wn)
    ]


def _share(count: int, warps: int, warp: int) -> int:
    """Count the groups of one warp."""
    return count // warps + (warp < count % warps)


def tile_blocks(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> int:
    """Count the 8 x 8 blocks of C that a warp accumulates."""
    im, in_ = _tile(problem, config)
    if is_split_triangle(problem, config):
        return im * (im + 1) // 2 + 1
    return im * (im + 1) // 2 if is_triangle(problem, config) else im * in_


def shared_bytes(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
    """Compute the dynamic shared memory of a block: the ring, later reused for the sums over its warps."""
    parts = 2 if is_complex(problem.dtype) else 1
    im, in_ = _tile(problem, config)
    ring = config.stages * layout(problem, config, device).stage_bytes
    slabs = config.wk // 2 * config.wm * config.wn * im * in_ * parts * 512
    product = config.fold**2 * problem.M * problem.N * parts * 8
    return max(ring, slabs, product, 32 * config.warps * 8)


def registers(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> int:
    """Estimate the registers per thread, from above."""
    parts = 2 if is_complex(problem.dtype) else 1
    shares = tiles(problem, config)
    loaded = max(im if triangle else im + in_ for im, in_, triangle in shares)
    fragments = 2 * parts * loaded * config.kstep * (1 + config.ahead)
    if config.three_m:
        added = max(im + in_ for im, in_, _ in shares)
        sums, more = 3, 2 * added * config.kstep + 8
    else:
        sums, more = parts, 8 * config.kstep if parts == 2 else 8 * _is_uneven(problem, config)
    return 4 * sums * tile_blocks(problem, config) + fragments + more + (48 if config.ahead else 40)


def _is_uneven(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> bool:
    """Check whether warps have different numbers of groups."""
    groups_m, groups_n = groups(problem, config)
    return groups_m % config.wm > 0 or groups_n % config.wn > 0


def refuse(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> str | None:
    """Explain why a configuration is invalid for a problem; None if it is valid."""
    return _refuse_shape(problem, config, device) or _refuse_resources(problem, config, device)


def _refuse_shape(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> str | None:
    groups_m, groups_n = groups(problem, config)
    chunk = config.rows // 4
    if config.rows % 4 or chunk % config.kstep:
        return f"{config.rows} rows are not whole steps of {4 * config.kstep}"
    boxes = has_boxes(problem, device)
    if boxes and (chunk % 4 or chunk > MAX_BOX_ROWS):
        return f"boxes of {chunk} rows; they have a multiple of 4, at most {MAX_BOX_ROWS}"
    stage = layout(problem, config, device)
    for piece, row in ((stage.a_piece, stage.a_row), (stage.b_piece, stage.b_row)):
        if not piece and chunk * row % BULK_UNIT:
            return f"a chunk of {chunk * row} bytes; bulk copies take multiples of {BULK_UNIT}"
    if config.wm > groups_m or config.wn > groups_n:
        return f"{config.wm} x {config.wn} warps for {groups_m} x {groups_n} groups of columns"
    if config.wk > chunk // config.kstep and not config.takes_turns:
        return f"{config.wk} warps for {chunk // config.kstep} steps"
    if config.ahead:
        if tile_blocks(problem, config) < _MIN_AHEAD or not is_complex(problem.dtype):
            return f"loading ahead is for complex tiles of at least {_MIN_AHEAD} blocks"
        if not config.takes_turns and chunk // config.kstep % config.wk:
            return f"loading ahead needs equal shares of {chunk // config.kstep} steps for {config.wk} warps"
    in_pieces = bool(stage.a_piece or stage.b_piece)
    if config.fold > 1 and (in_pieces or boxes):
        return "only contiguous aligned operands can be folded"
    if in_pieces and config.producers == 0:
        return "operands copied in pieces need producer warps"
    row = (
        stage.a_row + stage.b_row
        if boxes
        else config.fold * (problem.M + problem.N) * itemsize(problem.dtype)
    )
    if 4 * chunk * row >= 1 << 20:
        return "a stage is larger than a barrier can count"
    return None


def _refuse_resources(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> str | None:
    if config.threads > MAX_THREADS:
        return f"{config.threads} threads; a block has at most {MAX_THREADS}"
    if reason := excess_threads(config.threads, config.blocks, device):
        return reason
    needed, limit = registers(problem, config), register_limit(config.threads * config.blocks, device)
    if limit < 64:
        return f"tensor products need 64 registers of {limit}"
    # Where a warp loads ahead, the assembler spills if that nearly fits.
    if needed > limit - (8 if config.ahead and limit < MAX_REGISTERS else 0):
        return f"needs {needed} registers of {limit}"
    shared = shared_bytes(problem, config, device) + STATIC_SHARED_BYTES
    return excess_shared(shared, config.blocks, device)


class TsmttsmMma(DenseFamily[TsmttsmProblem, TsmttsmMmaConfig]):
    """The tensor-core family of TSMTTSM."""

    name = "tsmttsm_mma"
    Config = TsmttsmMmaConfig
    problem_type = TsmttsmProblem
    unit = "mma"

    refuse = staticmethod(refuse)
    shared_bytes = staticmethod(shared_bytes)
    carveout = staticmethod(carveout)
    grid = staticmethod(grid)
    pack = staticmethod(pack_product)

    def supports(self, problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
        """Explain why the family cannot run a problem; None if it can."""
        if device.kind != "cuda" or architecture_of(device) < 80:
            return f"{device.name} has no FP64 tensor cores"
        if problem.dtype_a != problem.dtype_b:
            return f"takes operands of one type, not {problem.dtype_a} and {problem.dtype_b}"
        if min(problem.K, problem.M, problem.N) < 1:
            return "has no rows or columns to multiply"
        size = itemsize(problem.dtype)
        real = real_bytes(problem.dtype)
        if min(problem.align_a, problem.align_b) < real:
            return f"operands must be aligned to {real} bytes, not {min(problem.align_a, problem.align_b)}"
        if not self.model.has_choice(problem, device):
            result = f"{problem.M} x {problem.N}"
            return f"rows of {(problem.M + problem.N) * size} bytes or a {result} result do not fit"
        return None

    def chain_length(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
        """Compute the longest chain of additions, in the result's precision, that makes an element of C."""
        if real_bytes(problem.dtype) == 4:
            return 2  # sums are in double precision
        blocks = grid(problem, config, device)
        turns = ceil_div(ceil_div(problem.K, config.rows * config.fold), blocks)
        steps = config.rows // 4 // config.kstep
        chain = (
            ceil_div(turns, config.wk) * steps if config.takes_turns else turns * ceil_div(steps, config.wk)
        )
        products = chain * 4 * config.kstep * (2 if is_complex(problem.dtype) else 1)
        if config.three_m:
            # The third sum is bounded by twice that of moduli, and both of its factors are rounded sums; the
            # first two sums are subtracted from it.
            products += products // 2 + 2 * 2 + 2
        sums = partials_chain(blocks)
        return products + (config.wk - 1).bit_length() + config.fold + max(sums, blocks if sums else 0)

    def source(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> str:
        """Generate the CUDA source; it does not depend on K."""
        constants: dict[str, Constant] = {
            "M": problem.M,
            "N": problem.N,
            "COMPLEX": is_complex(problem.dtype),
            "CONJ": is_complex(problem.dtype) and problem.conj,
            "SAME": problem.same,
            "THREE_M": config.three_m,
            "ALPHA_ONE": problem.alpha == "one",
            "BETA_ZERO": problem.beta == "zero",
            "SUMMED": True,
        }
        constants |= constants_of(config, omit=("gapless",)) | constants_of(layout(problem, config, device))
        types = {"Real": c_type(problem.dtype)}
        body = "tsmttsm_boxes" if has_boxes(problem, device) else "tsmttsm_mma"
        return render(self.kernel_name(problem), f"dense/{body}.cu", constants, types)

    def launch(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> Launch:
        """Prepare the launch of the kernel of `source`, with tensor maps of its operands if it takes them."""
        plain = super().launch(problem, config, device)
        if not has_boxes(problem, device):
            return plain
        maps = functools.lru_cache(maxsize=64)(functools.partial(tensor_maps, problem, config))
        pack = plain.pack

        def with_maps(A: int, B: int, *rest: Any) -> tuple[Any, ...] | None:
            packed = pack(A, B, *rest)
            return packed and (*packed, maps(A, B))

        return replace(plain, pack=with_maps)

    def workspace_bytes(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
        """Compute the workspace of a launch in bytes; see `launch.partials_bytes`."""
        doubles = problem.M * problem.N * (2 if is_complex(problem.dtype) else 1)
        return partials_bytes(grid(problem, config, device), doubles)


class Tsmttsm3m(TsmttsmMma):
    """The same with three real products for a complex one, where products take longer than memory.

    Each part of the result has an error of a small multiple of u sum |a| |b|, as with four products, but a
    part that is much smaller than the other one has fewer correct digits [1]_. An infinite or nearly
    overflowing element may make both parts NaN where four products make one infinite.

    References
    ----------
    .. [1] N. J. Higham, Stability of a method for multiplying complex matrices with three real matrix
       multiplications, SIAM J. Matrix Anal. Appl. 13 (1992) 681-687.
    """

    name = "tsmttsm_3m"
    Config = Tsmttsm3mConfig
    three_m = True
    unit = "3m"

    def supports(self, problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
        """Explain why the family cannot run a problem; None if it can."""
        if not is_complex(problem.dtype):
            return "takes complex operands"
        return super().supports(problem, device)

    def is_faster(self, problem: TsmttsmProblem) -> bool:
        """Check whether products rather than memory limit the product with four real products."""
        even = all(ceil_div(width, 8) % 2 == 0 for width in (problem.M, problem.N))
        if (
            problem.dtype == "complex64"
            and not problem.same
            and (problem.lda, problem.ldb) != (problem.M, problem.N)
        ):
            return min(problem.M, problem.N) > 8 and max(problem.M, problem.N) > FEW_PRODUCTS
        few = FEW_SQUARES if problem.same else FEW_PRODUCTS if even else FEW_UNEVEN
        return is_complex(problem.dtype) and min(problem.M, problem.N) > few
