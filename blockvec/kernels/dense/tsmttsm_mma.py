"""TSMTTSM on FP64 tensor cores: C = alpha A^H B + beta C, or A^T B, for two operands of one of four types.

Single precision is converted on its way to the tensor cores, whose peak is that of its own multiply-adds:
products are exact and sums in double precision.

The kernel (``tsmttsm_mma.cu`` explains it, ``tsmttsm_boxes.cu`` its boxes) streams A and B through a ring of
stages in shared memory, and sums over the blocks in a fixed order in the same launch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import MAX_REGISTERS, RESERVED_SHARED_BYTES, ceil_div, register_limit
from ..problem import FEW_ROWS, SOME_ROWS, TsmttsmProblem, is_complex, itemsize, real_bytes
from ..source import Body, Constant, Kernel, c_type, constants_of
from .family import DenseFamily
from .layout import refuse_tensor_cores
from .tsmttsm_mma_ring import (
    BULK_UNIT,
    FEW_PRODUCTS,
    TsmttsmMmaConfig,
    goes_through_l1,
    groups,
    has_boxes,
    layout,
    pieces,
    tensor_maps,
    tile,
    tile_blocks,
    tiles,
)

_STATIC_BYTES = 1024  # of barriers and counters, beside the ring
# With fewer blocks each product of a warp depends on the one before, and there the assembler of CUDA 13.0
# was seen to omit the scoreboard wait for an accumulator across the end of such a loop.
_MIN_AHEAD = 4
_TENSOR_REGISTERS = 64  # that tensor products need
# As `FEW_PRODUCTS`, if warps do not share columns equally, and for Gram matrices.
FEW_UNEVEN, FEW_SQUARES = 56, 48


_PIECE_PRODUCERS = 4  # warps that issue cp.async: one a quadrant
_UNUSED_BYTES = _STATIC_BYTES + RESERVED_SHARED_BYTES + 2048
_GAP_BYTES = 640  # bound on what gaps between chunks and loads past the widths add to a stage
_MAX_STAGES = 24
_L1_RING_BYTES = 64 << 10  # of a ring that leaves room for copies through L1


@frozen
class Recipe:
    """A configuration but for the widths; equal names mean the same."""

    # Warps that share the columns of A and B, of all warps that multiply.
    columns: int
    warps: int
    stage_kb: int  # kilobytes of a stage, about
    # Whether chunks are odd multiples of 32 bytes, which have the fewest bank conflicts, instead of equal
    # shares for all warps.
    odd: bool = False
    # As in the configuration; operands in pieces have `_PIECE_PRODUCERS`.
    ahead: bool = False
    blocks: int = 1
    producers: int = 1
    small: bool = False  # whether the ring leaves most of shared memory to L1


# In order of preference by class of problem, see `TsmttsmMma.preferred`. Of 2,900 recipes; the best would
# gain 4 per cent of the time that a model predicts, in the geometric mean of drawn products, 2 of 2^20 rows.
_AHEAD = (
    Recipe(4, 8, 40, ahead=True, producers=0),
    Recipe(8, 8, 40, ahead=True, producers=0),
    Recipe(4, 4, 40, odd=True, ahead=True),
)
_FEW_ROWS = (
    Recipe(4, 4, 8, ahead=True),
    Recipe(4, 4, 8),
    Recipe(4, 4, 8, odd=True),
    Recipe(1, 4, 8, blocks=2, small=True),
    Recipe(1, 4, 8),
)
_THROUGH_L1 = (
    *_AHEAD,
    Recipe(1, 4, 8, blocks=2, small=True),
    Recipe(1, 4, 16, small=True),
    Recipe(2, 4, 40),
    Recipe(8, 8, 40),
)
_SOME_ROWS = (*_AHEAD, Recipe(4, 4, 16, blocks=2), Recipe(1, 4, 16), Recipe(2, 4, 40), Recipe(8, 8, 40))
_SOME_ROWS_OF_GRAM = (*_AHEAD, Recipe(1, 4, 16))
_NARROW = (*_AHEAD, Recipe(2, 4, 40), Recipe(8, 8, 40), Recipe(1, 4, 16), Recipe(1, 4, 40, blocks=2))
_USUAL = (*_AHEAD, Recipe(1, 4, 40), Recipe(1, 4, 64), Recipe(2, 8, 64, producers=0), Recipe(2, 4, 40))
_WIDE = (*_AHEAD, Recipe(1, 4, 64), Recipe(2, 8, 64, producers=0), Recipe(2, 4, 40), Recipe(8, 8, 40))
RECIPES: Sequence[Recipe] = tuple(
    dict.fromkeys((*_WIDE, *_USUAL, *_NARROW, *_SOME_ROWS, *_FEW_ROWS, *_THROUGH_L1))
)
_WIDE_GROUPS = 25  # products of groups of 8 columns
SPARE: Sequence[Recipe] = tuple(
    Recipe(*warps, kb, odd=odd, producers=producers)
    for warps in ((1, 4), (2, 4), (4, 4), (4, 8), (8, 8), (16, 16))
    for kb, odd, producers in itertools.product((8, 16), (False, True), (1, 0))
)


@functools.lru_cache(maxsize=4096)
def _split(groups_m: int, groups_n: int, columns: int) -> tuple[int, int] | None:
    """Split warps between the columns of A and of B, with the squarest tiles."""
    split = ((wm, columns // wm) for wm in (1, 2, 4, 8, 16) if columns % wm == 0)
    pairs = [(wm, wn) for wm, wn in split if wm <= groups_m and wn <= groups_n]
    return min(
        pairs, key=lambda pair: ceil_div(groups_m, pair[0]) + ceil_div(groups_n, pair[1]), default=None
    )


def _rows(
    problem: TsmttsmProblem, config: TsmttsmMmaConfig, recipe: Recipe, device: DeviceInfo
) -> int | None:
    size = itemsize(problem.dtype)
    widths = {config.fold * problem.M, config.fold * (problem.M if problem.same else problem.N)}
    row_bytes = config.fold * (problem.M + (0 if problem.same else problem.N)) * size
    if has_boxes(problem, device):
        whole = odd = 4
    else:
        whole = math.lcm(*(BULK_UNIT // math.gcd(width * size, BULK_UNIT) for width in widths))
        odd = math.lcm(*(32 // math.gcd(width * size, 32) for width in widths))
    wanted = (recipe.stage_kb << 10) // (4 * row_bytes)
    even = math.lcm(config.wk, whole)  # equal shares for all warps
    chunk = (wanted // odd | 1) * odd if recipe.odd else max(1, round(wanted / even)) * even
    return None if chunk % whole or chunk < config.wk else 4 * chunk


def _stages(problem: TsmttsmProblem, config: TsmttsmMmaConfig, recipe: Recipe, device: DeviceInfo) -> int:
    row_bytes = config.fold * (problem.M + (0 if problem.same else problem.N)) * itemsize(problem.dtype)
    if has_boxes(problem, device):
        stage = layout(problem, config, device)
        row_bytes = stage.a_row + (0 if problem.same else stage.b_row)
    ring = device.shared_bytes_per_multiprocessor
    if recipe.small:
        ring = min(ring, _L1_RING_BYTES)
    share = min(ring, 224 << 10) // config.blocks - _UNUSED_BYTES
    return min(share // (config.rows * row_bytes + _GAP_BYTES), _MAX_STAGES)


class TsmttsmMma(DenseFamily[TsmttsmProblem, TsmttsmMmaConfig]):
    """The tensor-core family of TSMTTSM."""

    name = "tsmttsm_mma"
    problem_type = TsmttsmProblem
    unit = "mma"

    static_bytes = _STATIC_BYTES
    recipes, spare = RECIPES, SPARE

    def refuse_problem(self, problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
        if min(problem.K, problem.M, problem.N) < 1:
            return "has no rows or columns to multiply"
        return refuse_tensor_cores(problem, device)

    def registers(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> int:
        """Estimate the registers per thread."""
        parts = 2 if is_complex(problem.dtype) else 1
        shares = tiles(problem, config)
        loaded = max(im if triangle else im + in_ for im, in_, triangle in shares)
        fragments = 2 * parts * loaded * (1 + config.ahead)
        if config.three_m:
            added = max(im + in_ for im, in_, _ in shares)
            sums, more = 3, 2 * added + 8
        else:
            groups_m, groups_n = groups(problem, config)
            is_uneven = groups_m % config.wm > 0 or groups_n % config.wn > 0
            sums, more = parts, 8 * (parts == 2 or is_uneven)
        needed = 4 * sums * tile_blocks(problem, config) + fragments + more + (48 if config.ahead else 40)
        # Where a warp loads ahead, the assembler spills if that nearly fits.
        limit = register_limit(config.threads * config.blocks, device)
        spared = 8 if config.ahead and limit < MAX_REGISTERS else 0
        return max(_TENSOR_REGISTERS, needed + spared)

    def resources(
        self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo
    ) -> tuple[int, int]:
        # The ring, then the sums over its warps.
        parts = 2 if is_complex(problem.dtype) else 1
        im, in_ = tile(problem, config)
        ring = config.stages * layout(problem, config, device).stage_bytes
        slabs = config.wk // 2 * config.wm * config.wn * im * in_ * parts * 512
        product = config.fold**2 * problem.M * problem.N * parts * 8
        shared = max(ring, slabs, product, 32 * config.readers * 8)
        return self.registers(problem, config, device), shared

    def rows(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> int:
        return config.rows * config.fold

    def kernel(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> Kernel:
        kernel = super().kernel(problem, config, device)
        if not goes_through_l1(problem, device):
            return kernel
        # Where copies go through L1, its lines limit how many are in flight: it gets what the ring leaves.
        taken = config.blocks * (kernel.shared_bytes + self.static_bytes + RESERVED_SHARED_BYTES)
        return replace(kernel, carveout=ceil_div(100 * taken, device.shared_bytes_per_multiprocessor))

    def body(self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> Body:
        constants: dict[str, Constant] = {"COMPLEX": is_complex(problem.dtype)}
        constants |= constants_of(config) | constants_of(layout(problem, config, device))
        body = "dense/tsmttsm_boxes" if has_boxes(problem, device) else "dense/tsmttsm_mma"
        return body, constants, {"Real": c_type(problem.dtype)}

    def pack(
        self, problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo
    ) -> Callable[..., tuple[Any, ...]]:
        pack = super().pack(problem, config, device)
        if not has_boxes(problem, device):
            return pack
        maps = functools.lru_cache(maxsize=64)(functools.partial(tensor_maps, problem, config))
        return lambda A, B, *rest: (*pack(A, B, *rest), maps(A, B))

    def configure(
        self, problem: TsmttsmProblem, recipe: Recipe, device: DeviceInfo
    ) -> TsmttsmMmaConfig | None:
        boxes = has_boxes(problem, device)
        in_pieces = not boxes and any(pieces(problem, device))
        if recipe.small and not goes_through_l1(problem, device):
            return None
        if real_bytes(problem.dtype) == 4 and recipe.blocks > 1 and not in_pieces:
            return None  # products wait for conversions
        # Rows that are treated as one: they fill a group of 8 columns.
        most = 8 // max(problem.M, problem.N)
        is_whole = most > 1 and not in_pieces and not boxes
        fold = 1 << (most.bit_length() - 1) if is_whole else 1
        base = TsmttsmMmaConfig(4, 2, 1, 1, 1, fold=fold, blocks=recipe.blocks, three_m=self.three_m)
        groups_m, groups_n = groups(problem, base)
        if (split := _split(groups_m, groups_n, recipe.columns)) is None:
            return None
        base = replace(base, wm=split[0], wn=split[1], wk=recipe.warps // recipe.columns)
        if (rows := _rows(problem, base, recipe, device)) is None:
            return None
        tile = tile_blocks(problem, base)
        if recipe.ahead:
            # Where products take less than two thirds of the time of memory, waiting early for a stage costs
            # more than it gains.
            few = tile < _MIN_AHEAD or groups_m * groups_n <= 2.3 * (groups_m + groups_n)
            if few or not is_complex(problem.dtype):
                return None
            base = replace(base, rows=rows, unroll=1, ahead=True)
        else:
            base = replace(base, rows=rows, unroll=1 if tile > 8 else 2 if tile > 2 else 4)
        if self.registers(problem, base, device) > MAX_REGISTERS:
            return None
        stages = _stages(problem, base, recipe, device)
        producers = _PIECE_PRODUCERS if in_pieces else recipe.producers
        return replace(base, stages=stages, producers=producers) if stages >= 2 else None

    def preferred(self, problem: TsmttsmProblem, device: DeviceInfo) -> Iterable[Recipe]:
        if problem.K <= FEW_ROWS:
            return _FEW_ROWS
        if goes_through_l1(problem, device):
            return _THROUGH_L1
        if problem.K <= SOME_ROWS:
            return _SOME_ROWS_OF_GRAM if problem.same else _SOME_ROWS
        if min(problem.M, problem.N) <= 8:
            return _NARROW
        is_wide = ceil_div(problem.M, 8) * ceil_div(problem.N, 8) > _WIDE_GROUPS
        return _WIDE if is_wide else _USUAL


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
    three_m = True
    unit = "3m"

    def refuse_problem(self, problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
        if not is_complex(problem.dtype):
            return "takes complex operands"
        return super().refuse_problem(problem, device)

    def is_faster(self, problem: TsmttsmProblem) -> bool:
        even = all(ceil_div(width, 8) % 2 == 0 for width in (problem.M, problem.N))
        is_view = (problem.lda, problem.ldb) != (problem.M, problem.N)
        if problem.dtype == "complex64" and not problem.same and is_view:
            return min(problem.M, problem.N) > 8 and max(problem.M, problem.N) > FEW_PRODUCTS
        few = FEW_SQUARES if problem.same else FEW_PRODUCTS if even else FEW_UNEVEN
        return is_complex(problem.dtype) and min(problem.M, problem.N) > few
