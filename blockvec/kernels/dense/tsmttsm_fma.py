"""TSMTTSM by multiply-adds: C = alpha A^H B + beta C, or A^T B, all types, widths, pitches, alignments.

The kernel (``tsmttsm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for
real and complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMTTSM", and beyond
the paper a ring in shared memory from which they are fed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import MAX_REGISTERS, WARP, architecture_of, ceil_div, round_up
from ..problem import SOME_ROWS, TsmttsmProblem, is_complex, parts_of
from ..source import Body, Constant, c_type, constants_of
from .family import BlockConfig, DenseFamily
from .layout import Operand, Slab, make_slab, operand_constants, refuse_widths, shape_of, widest

SCRATCH_BYTES = 24 << 10  # per block, for the sum of tiles over the block; with less it takes more passes

_CHAIN_ROWS = {"registers": 128, "shared": 1024}  # that a thread adds up in single precision

Sums = Literal["plain", "registers", "shared"]


@frozen
class TsmttsmFmaConfig(BlockConfig):
    """One way to run the kernel."""

    # Tile of C per thread.
    tm: int
    tn: int
    count: int = 1  # consecutive rows that a thread multiplies at a time
    steps: int = 1  # sets of rows per chunk
    stages: int = 2  # slabs of a team's ring
    warps: int = 1  # warps of a team, whose threads share the tiles of a row
    teams: int = 8  # teams of a block
    # Whether columns are assigned to tiles cyclically ("transposed" in the paper), not in blocks.
    interleaved: bool = False
    unroll: int = 1  # unrolled steps of a stage
    # Accumulation: ``"plain"`` in the result's type (double precision problems), ``"registers"`` or
    # ``"shared"`` in short single precision chains that are added to double precision sums there.
    sums: Sums = "plain"

    @property
    def lanes(self) -> int:
        """Threads of a team."""
        return WARP * self.warps

    @property
    def threads(self) -> int:
        return self.lanes * self.teams


def is_single(problem: TsmttsmProblem) -> bool:
    """Check whether the result is in single precision."""
    return problem.dtype in ("float32", "complex64")


def operands_of(problem: TsmttsmProblem, tm: int, tn: int) -> tuple[Operand, Operand]:
    """Describe A and B, cut into the tiles of a thread."""
    a = Operand.of(problem.M, problem.dtype_a, problem.lda, problem.align_a, tm)
    if problem.same:
        return a, replace(a, tile=tn, tiles=ceil_div(problem.N, tn))
    return a, Operand.of(problem.N, problem.dtype_b, problem.ldb, problem.align_b, tn)


def tiles_of(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> int:
    """Count the tiles of C; of A^H A with square tiles, none below the diagonal."""
    across, down = ceil_div(problem.M, config.tm), ceil_div(problem.N, config.tn)
    return across * (across + 1) // 2 if _is_triangle(problem, config) else across * down


def _is_triangle(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> bool:
    return problem.same and config.tm == config.tn and not config.interleaved


@functools.lru_cache(maxsize=16384)
def _slab(
    operand: Operand, rows: int, count: int, groups: int, others: int, first: bool, interleaved: bool
) -> tuple[Slab, int]:
    """Lay out the slab of an operand as `make_slab` does; `others` tiles of C share each of its tiles."""

    def lanes(slab: Slab, vector: int) -> Iterator[int]:
        step = max(vector, operand.size) if interleaved else operand.tile * operand.size
        tiles = operand.tiles * others
        for lane in range(32):
            tile = lane % tiles % operand.tiles if first else lane % tiles // others
            yield slab.offset(min(lane // tiles, groups - 1) * count) + tile * step

    return make_slab(operand, rows, count, lanes)


@functools.lru_cache(maxsize=16384)
def layout(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> tuple[int, dict[str, Constant], int]:
    """Lay out shared memory: rows of a chunk, the kernel's constants, bytes; the problem is a `shape_of`."""
    a, b = operands_of(problem, config.tm, config.tn)
    parts = max(a.parts, b.parts)
    tiles = tiles_of(problem, config)
    groups = max(1, config.lanes // tiles)
    rows = config.steps * groups * config.count
    how = (rows, config.count, groups)
    slab_a, vector_a = _slab(a, *how, b.tiles, True, config.interleaved)
    slab_b, vector_b = _slab(b, *how, a.tiles, False, config.interleaved)
    if problem.same:
        slab_b, vector_a = slab_a, min(vector_a, vector_b)
        vector_b = vector_a
    b_offset = 0 if problem.same else round_up(slab_a.size, 128)
    stage_bytes = round_up(b_offset + slab_b.size, 128)
    ring = config.teams * config.stages * stage_bytes
    # The last row's loads of columns past the width stay within the block's memory.
    widest_row = max(operand.tiles * operand.tile * operand.size for operand in (a, b))
    slack = widest_row + 16

    values = config.tm * config.tn * parts
    pitch = 8 * tiles * (groups * config.teams | 1)  # of one value of all threads
    is_kept = config.sums == "shared"
    passed = max(1, min(values, (SCRATCH_BYTES if is_kept else max(ring, SCRATCH_BYTES)) // pitch))
    passed = ceil_div(values, ceil_div(values, passed))  # passes of equal length
    product_offset = round_up(ring + slack, 128) if is_kept else 0
    scratch_offset = round_up(product_offset + problem.M * problem.N * parts * 8, 128)
    chain = _CHAIN_ROWS.get(config.sums, 0)
    constants: dict[str, Constant] = {
        "TRIANGLE": _is_triangle(problem, config),
        "CHAIN": chain and max(1, chain // (config.steps * config.count)),
        "B_OFFSET": b_offset,
        "STAGE_BYTES": stage_bytes,
        "PRODUCT_OFFSET": product_offset,
        "SCRATCH_OFFSET": scratch_offset,
        "PASS": passed,
    }
    constants |= operand_constants("A", a, slab_a, vector_a)
    constants |= operand_constants("B", b, slab_b, vector_b)
    scratch_end = scratch_offset + max(passed * pitch, config.threads * 8)
    return rows, constants, max(ring + slack, scratch_end)


def registers(problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo | None = None) -> int:
    """Estimate the registers per thread; without a device, of one of an architecture before sm_100."""
    a, b = operands_of(problem, config.tm, config.tn)
    is_one = problem.same and a.tiles * b.tiles == 1
    values = config.tm * (config.tm + 1) // 2 if is_one else config.tm * config.tn
    words = 1 if is_single(problem) else 2
    # From sm_100 on the compiler adds pairs of numbers in single precision at once, and keeps some twice.
    twice = device is not None and architecture_of(device) >= 100 and config.sums in ("shared", "registers")
    sums = values * max(a.parts, b.parts) * (words + twice + (2 if config.sums == "registers" else 0))
    stored = config.tm * a.size // 4 + (0 if is_one else config.tn * b.size // 4)
    converts = 4 * words > min(a.real_bytes, b.real_bytes)
    converted = converts * (config.tm * a.parts + config.tn * b.parts) * words
    chunk = 8 if config.sums == "shared" else 0  # registers of the loop over chains
    return sums + stored * config.count + converted + 36 + chunk


_MAX_WARPS = 8  # of a team

SIDES = (2, 3, 4, 5, 6, 8, 12, 16)
"""Most columns of A, and of B, per thread: both are cut into as few equal tiles as that takes."""


@frozen
class Recipe:
    """A configuration but for the widths; equal names mean the same."""

    # Place of its tiles in the order of the cycles per row without the limit of memory.
    place: int
    interleaved: bool  # as in the configuration
    stage_kb: int = 4  # kilobytes of a stage per warp, about
    stages: int = 8  # at most


# In order of preference; of results in single precision smaller tiles come first, up to 2^16 rows. The best
# would gain 2 per cent of the time that a model predicts, in the geometric mean of drawn products.
RECIPES: Sequence[Recipe] = tuple(
    Recipe(place, interleaved) for interleaved in (True, False) for place in range(3)
)
SPARE: Sequence[Recipe] = tuple(
    Recipe(place, *how)
    for place in range(64)
    for how in ((False, 2), (True, 2), (False, 1), (False, 1, 2), (True, 1, 2))
)


@functools.lru_cache(maxsize=1024)
def _tilings(problem: TsmttsmProblem) -> list[tuple[float, TsmttsmFmaConfig]]:
    """List configurations with the different tiles, and the cycles per row, which they are sorted by."""
    sides = [{ceil_div(width, ceil_div(width, most)) for most in SIDES} for width in (problem.M, problem.N)]
    found = []
    for tm, tn in sorted(itertools.product(*sides)):
        a, b = operands_of(problem, tm, tn)
        tiles = a.tiles * (a.tiles + 1) // 2 if problem.same else a.tiles * b.tiles
        warps = 1 << max(0, ceil_div(tiles, 32) - 1).bit_length()
        if warps > _MAX_WARPS or (problem.same and tm != tn):
            continue
        # Consecutive rows that make up whole vectors where a thread takes whole rows.
        rows = [16 // widest(x.row_bytes) for x in (a, b) if x.tiles == 1 and x.is_linear]
        # Sums in double precision are in registers if the tile is small, else in shared memory.
        kept: Sums = "registers" if tm * tn * parts_of(problem.dtype) <= 48 else "shared"
        for count in {1, max(rows, default=1)}:
            sums = kept if is_single(problem) else "plain"
            config = TsmttsmFmaConfig(tm, tn, count=count, warps=warps, sums=sums)
            if registers(problem, config) <= MAX_REGISTERS:
                found.append((_row_cycles(problem, config, a, b, tiles), config))
    return sorted(found, key=lambda entry: entry[0])


@functools.lru_cache(maxsize=16384)
def _staged(
    problem: TsmttsmProblem, config: TsmttsmFmaConfig, recipe: Recipe, device: DeviceInfo
) -> TsmttsmFmaConfig | None:
    """Choose the steps of a stage of the wanted size, and as many stages as fit."""
    size_a, size_b = (operand.row_bytes for operand in operands_of(problem, config.tm, config.tn))
    row_bytes = size_a + (0 if problem.same else size_b)
    step_rows = max(1, config.lanes // tiles_of(problem, config)) * config.count
    product_bytes = problem.M * problem.N * parts_of(problem.dtype) * 8
    kept = product_bytes + SCRATCH_BYTES if config.sums == "shared" else 0
    steps = max(1, round((recipe.stage_kb << 10) * config.warps / (step_rows * row_bytes)))
    while steps * step_rows * size_a % 16 or steps * step_rows * size_b % 16:
        steps += 1  # whole 16-byte pieces
    room = device.shared_bytes_per_multiprocessor - kept - 4096
    stages = min(recipe.stages, room // (config.teams * (steps * step_rows * row_bytes * 9 // 8 + 256)))
    # Of small tiles, loads of one step overlap with products of another.
    work = config.tm * config.tn * config.count * parts_of(problem.dtype_a) * parts_of(problem.dtype_b)
    unroll = next((n for n in (4, 2) if steps % n == 0 and work * n <= 64), 1)
    return replace(config, steps=steps, stages=stages, unroll=unroll) if stages >= 2 else None


_CONVERSION_CYCLES = 9  # of a quadrant: float32 -> float64 of a warp, 14 a clock and multiprocessor
# Products of numbers per element that memory moves, up to which multiply-adds in single precision, real or
# complex, are as fast as tensor cores, which convert what they load. These also pad widths to eight columns:
# of many rows of complex numbers, multiply-adds are faster where few of so many padded products are wanted.
_FEW_PRODUCTS = 5.5, 3.9
_LEAST_PADDED, _WANTED = 9, 0.6  # padded products per element that memory moves; share of them


def _row_cycles(
    problem: TsmttsmProblem, config: TsmttsmFmaConfig, a: Operand, b: Operand, tiles: int
) -> float:
    """Estimate the cycles per row of products, loads and conversions, one after the other."""
    sides, is_double = ((config.tm, a), (config.tn, b)), not is_single(problem)
    products = math.prod(tile * x.parts for tile, x in sides) * (2 if is_double else 1)
    # 128 bytes per cycle into registers, for four quadrants: one cycle of a quadrant per byte and thread.
    loads = sum(tile * x.size for tile, x in sides)
    converted = sum(tile * x.parts for tile, x in sides if x.real_bytes == 4) if is_double else 0
    return (products + loads + _CONVERSION_CYCLES * converted) * config.warps / (config.lanes // tiles)


class TsmttsmFma(DenseFamily[TsmttsmProblem, TsmttsmFmaConfig]):
    """The multiply-add family of TSMTTSM."""

    name = "tsmttsm_fma"
    problem_type = TsmttsmProblem
    unit = "fma"

    static_bytes = 256  # the variables of the kernel itself
    recipes, spare = RECIPES, SPARE

    refuse_problem = staticmethod(refuse_widths)

    def rows(self, problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> int:
        return layout(shape_of(problem), config)[0]

    def body(self, problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo) -> Body:
        types = {"RealA": c_type(problem.dtype_a), "RealB": c_type(problem.dtype_b)}
        real = c_type(problem.dtype)
        constants: dict[str, Constant] = {
            "PA": parts_of(problem.dtype_a),
            "PB": parts_of(problem.dtype_b),
            "WIDE": config.sums == "registers",
        }
        constants |= constants_of(config, omit=("sums",)) | layout(shape_of(problem), config)[1]
        return "dense/tsmttsm_fma", constants, types | {"Real": real, "Out": real}

    def resources(
        self, problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo
    ) -> tuple[int, int]:
        return registers(problem, config, device), layout(shape_of(problem), config)[2]

    def configure(
        self, problem: TsmttsmProblem, recipe: Recipe, device: DeviceInfo
    ) -> TsmttsmFmaConfig | None:
        problem = replace(shape_of(problem), alpha="one", beta="zero")
        tilings = _tilings(problem)
        if recipe.place >= len(tilings):
            return None
        config = tilings[recipe.place][1]
        a, b = operands_of(problem, config.tm, config.tn)
        is_dealt = a.tiles * b.tiles > 1 and not (problem.same and config.tm == config.tn)
        teams = max(1, 8 // config.warps)
        if recipe.interleaved and not is_dealt:
            return None
        resident = replace(config, teams=teams, interleaved=recipe.interleaved)
        return _staged(problem, resident, recipe, device)

    def preferred(self, problem: TsmttsmProblem, device: DeviceInfo) -> Iterable[Recipe]:
        small = is_single(problem) and problem.K <= SOME_ROWS
        return (Recipe(2, True), Recipe(2, False)) if small else ()

    def is_faster(self, problem: TsmttsmProblem) -> bool:
        widths = problem.M, problem.N
        if not is_single(problem) or (problem.lda, problem.ldb) != widths:
            return False  # views take half of the time with tensor cores (one H200)
        is_complex_sum, groups = is_complex(problem.dtype), [ceil_div(width, 8) for width in widths]
        products, padded, moved = math.prod(widths), 64 * math.prod(groups), sum(widths)
        if problem.same:
            products, padded = (n * (n + 1) // 2 * unit for n, unit in ((problem.M, 1), (groups[0], 64)))
            moved = problem.M
        is_padded = padded >= _LEAST_PADDED * moved and products <= _WANTED * padded
        few = products <= _FEW_PRODUCTS[is_complex_sum] * moved
        return few or (is_complex_sum and is_padded and problem.K > SOME_ROWS)
