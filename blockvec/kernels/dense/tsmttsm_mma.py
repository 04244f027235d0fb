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
from dataclasses import replace
from typing import Any

from ..device import DeviceInfo
from ..launch import Launch, pack_product, partials_bytes, partials_chain
from ..limits import (
    MAX_REGISTERS,
    MAX_THREADS,
    RESERVED_SHARED_BYTES,
    architecture_of,
    ceil_div,
    excess_shared,
    excess_threads,
    register_limit,
)
from ..problem import TsmttsmProblem, is_complex, itemsize, real_bytes
from ..source import Constant, c_type, constants_of, render
from ..tensor_map import MAX_BOX_ROWS
from .family import DenseFamily
from .tsmttsm_mma_ring import (
    BULK_UNIT,
    FEW_PRODUCTS,
    Tsmttsm3mConfig,
    TsmttsmMmaConfig,
    goes_through_l1,
    groups,
    has_boxes,
    layout,
    tensor_maps,
)

STATIC_SHARED_BYTES = 1024  # bound on barriers and counters, beside the ring
# With fewer blocks each product of a warp depends on the one before, and there the assembler of CUDA 13.0
# was seen to omit the scoreboard wait for an accumulator across the end of such a loop.
_MIN_AHEAD = 4
# As `FEW_PRODUCTS`, if warps do not share columns equally, and for Gram matrices.
FEW_UNEVEN, FEW_SQUARES = 56, 48


def carveout(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int | None:
    """Compute the percentage of the largest shared memory to configure; None for all of it.

    Where copies go through L1, its lines limit how many are in flight, and it gets what the ring leaves.
    """
    if not goes_through_l1(problem, device):
        return None
    shared = shared_bytes(problem, config, device) + STATIC_SHARED_BYTES + RESERVED_SHARED_BYTES
    return ceil_div(100 * config.blocks * shared, device.shared_bytes_per_multiprocessor)


def grid(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
    """Compute the number of blocks of a launch."""
    return min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows * config.fold))


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

    def refuse_problem(self, problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
        if device.kind != "cuda" or architecture_of(device) < 80:
            return f"{device.name} has no FP64 tensor cores"
        if problem.dtype_a != problem.dtype_b:
            return f"takes operands of one type, not {problem.dtype_a} and {problem.dtype_b}"
        if min(problem.K, problem.M, problem.N) < 1:
            return "has no rows or columns to multiply"
        real = real_bytes(problem.dtype)
        if min(problem.align_a, problem.align_b) < real:
            return f"operands must be aligned to {real} bytes, not {min(problem.align_a, problem.align_b)}"
        return None

    def chain_length(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
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
        constants |= constants_of(config) | constants_of(layout(problem, config, device))
        types = {"Real": c_type(problem.dtype)}
        body = "tsmttsm_boxes" if has_boxes(problem, device) else "tsmttsm_mma"
        return render(self.kernel_name(problem), f"dense/{body}.cu", constants, types)

    def launch(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> Launch:
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

    def refuse_problem(self, problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
        if not is_complex(problem.dtype):
            return "takes complex operands"
        return super().refuse_problem(problem, device)

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
