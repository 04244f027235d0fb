"""TSMM on FP64 tensor cores: B = alpha A C + beta B, A and C of one type, any of the four.

Single precision is converted on its way to the tensor cores, whose peak is that of its own multiply-adds, and
rounded once on its way back.

The kernel is ``cuda/tsmm_mma.cu``: groups of warps, each with a pipeline of its own, stage tiles of rows in
shared memory, multiply them by the coefficient matrix on the tensor cores and send finished tiles back.
Contiguous operands move by bulk copies of whole slabs, whatever the width; views, and everything before
sm_90, by pieces of 4 to 16 bytes.
Here are its search space, the rule that says which configurations are valid, the cost model that orders
them, and the launch. Nothing here needs a GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import OptionError
from .device import DeviceInfo
from .launch import bind_product
from .problem import MAX_ALIGNMENT, TsmmProblem, is_complex, itemsize, real_bytes
from .roofline import Ceilings, memory_time, traffic
from .source import C_TYPES, SHORT_NAMES, render
from .tsmttsm_mma_config import architecture_of

__all__ = [
    "Config",
    "bind",
    "chain_length",
    "choose",
    "kernel_name",
    "predict",
    "refuse",
    "shared_bytes",
    "source",
    "space",
    "supports",
    "workspace_bytes",
]

MAX_WIDTH = 64
COUNTER_BYTES = 8

_QUADRANTS = 4  # of an SM, each with a tensor pipe; warp w runs in quadrant w % 4
_MMA_CYCLES = 16  # of a quadrant's tensor pipe on Hopper, for one m16n8k4 (1024 flops)
_SHARED_BYTES_PER_CYCLE = 128
_COPY_BYTES_PER_CYCLE = 16.7  # of an SM of an H200, both directions together
# Tiles in order gain 2 to 7 per cent where memory decides, and cost up to 4 where tensor pipes do.
_IN_ORDER_SHARE = 0.8
_NAMED_BARRIERS = 15
_REGISTER_FILE = 65536  # 32-bit registers of an SM; allocated to warps in units of 8 a lane
_MAX_TILES = 2**31  # tile numbers are 32-bit


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel; one thread block an SM.

    Attributes
    ----------
    warps : int
        Warps of a thread block, a multiple of four so that no quadrant of the SM idles.
    split : int
        Warps that share the columns of a tile: 1, 2 or 4. They form a group with its own pipeline.
    rows : int
        Rows of a tile.
    unroll : int
        Blocks of rows that a warp multiplies at once (16 rows of real numbers, 8 of complex ones).
    stages : int
        Tiles of A a group has in flight or in work.
    slabs : int
        Tiles of B a group has in work or on their way to memory.
    shared_coefficients : bool
        Whether fragments of C are loaded from shared memory each time, instead of staying in registers.
    """

    warps: int
    split: int
    rows: int
    unroll: int
    stages: int
    slabs: int
    shared_coefficients: bool

    @property
    def groups(self) -> int:
        """Groups of warps in a thread block."""
        return self.warps // self.split


class _Shape(NamedTuple):
    """What the kernel derives from a problem; the names are those of the .cu file."""

    parts: int
    size: int
    subs: int
    block: int
    kt: int
    nt: int
    piece_a: int
    piece_b: int


@functools.lru_cache(maxsize=1024)
def _shape(problem: TsmmProblem, device: DeviceInfo) -> _Shape:
    parts = 2 if is_complex(problem.dtype_a) else 1
    size = itemsize(problem.dtype_a)
    bulk = architecture_of(device) >= 90
    return _Shape(
        parts=parts,
        size=size,
        subs=32 // size,
        block=16 // parts,
        kt=-(-problem.M // 4),
        nt=-(-problem.N * parts // 8),
        piece_a=_piece(problem.M * size, problem.lda * size, problem.align_a, bulk),
        piece_b=_piece(problem.N * size, problem.ldb * size, problem.align_b, bulk),
    )


def _piece(row_bytes: int, pitch_bytes: int, align: int, bulk: bool) -> int:
    """Return the bytes a lane moves at a time; 0 where rows are one aligned slab for bulk copies."""
    if bulk and align == MAX_ALIGNMENT and row_bytes == pitch_bytes:
        return 0
    bits = align | row_bytes | pitch_bytes
    return bits & -bits


def supports(problem: TsmmProblem, device: DeviceInfo) -> str | None:
    """Return None if the family can run a problem on a device, else the reason why not."""
    if device.kind != "cuda" or architecture_of(device) < 80:
        return f"{device.name} has no FP64 tensor cores"
    if problem.dtype_a != problem.dtype_c:
        return f"tsmm_mma takes A and C of one type, not {problem.dtype_a} and {problem.dtype_c}"
    if not (1 <= problem.M <= MAX_WIDTH and 1 <= problem.N <= MAX_WIDTH):
        return f"tsmm_mma takes widths from 1 to {MAX_WIDTH}, not M={problem.M}, N={problem.N}"
    real = real_bytes(problem.dtype)
    if min(problem.align_a, problem.align_b) < real:
        aligned = f"align_a={problem.align_a}, align_b={problem.align_b}"
        return f"tsmm_mma needs {real}-byte alignment, not {aligned}"
    if problem.inplace and (problem.N > problem.M or problem.lda != problem.ldb):
        return f"tsmm_mma in place needs N <= M and one pitch, not M={problem.M}, N={problem.N}"
    if problem.K > 8 * _MAX_TILES:
        return f"tsmm_mma numbers tiles in 32 bits, too few for K={problem.K}"
    return None


def refuse(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Return None if a configuration is valid for a problem on a device, else the reason why not."""
    return supports(problem, device) or _invalid(problem, config, device)


def _invalid(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str | None:
    shape = _shape(problem, device)
    if config.warps % _QUADRANTS or not _QUADRANTS <= config.warps <= 32:
        return f"{config.warps} warps; tensor pipes want a multiple of {_QUADRANTS}, at most 32"
    if config.split not in (1, 2, 4) or config.split > shape.nt:
        return f"{config.split} warps cannot share the {shape.nt} column tiles of N={problem.N}"
    if config.split > 1 and config.groups > _NAMED_BARRIERS:
        return f"{config.groups} groups need a named barrier each, and there are {_NAMED_BARRIERS}"
    if config.unroll < 1 or config.rows < 1 or config.rows % (config.unroll * shape.block):
        return f"rows={config.rows} is no multiple of unroll={config.unroll} blocks of {shape.block} rows"
    for piece, width in ((shape.piece_a, problem.M), (shape.piece_b, problem.N)):
        if not piece and config.rows // shape.subs * width * shape.size % 16:
            return f"rows={config.rows} make no whole 16 bytes of a sub-chunk of {width} columns"
    if config.stages < 1 or config.slabs < 1:
        return f"stages={config.stages}, slabs={config.slabs}; a pipeline has at least one of each"
    needed, limit = shared_bytes(problem, config, device), device.shared_bytes_per_block
    if needed > limit:
        return f"{needed} bytes of shared memory; a thread block gets {limit}"
    registers, limit = _registers(problem, config, device), _register_limit(config.warps)
    if registers > limit:
        return f"{registers} registers a thread estimated; {config.warps} warps leave {limit}"
    return None


def _tile_bytes(width: int, rows: int, shape: _Shape) -> int:
    """Return the bytes of a staged tile: sub-chunks of 128-byte units, each skewed by 128 / subs bytes."""
    sub = -(-rows // shape.subs * width * shape.size // 128) * 128 + 128 // shape.subs
    return -(-shape.subs * sub // 128) * 128


def _pipe_share(shape: _Shape, problem: TsmmProblem) -> float:
    """Return the time of the tensor products over that of the memory, both by themselves."""
    pipes = shape.kt * shape.nt * _MMA_CYCLES / _QUADRANTS / shape.block  # cycles a row of an SM
    return pipes / ((problem.M + problem.N) * shape.size / _COPY_BYTES_PER_CYCLE)


def shared_bytes(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the dynamic shared memory of a thread block in bytes."""
    shape = _shape(problem, device)
    tile_a, tile_b = (_tile_bytes(width, config.rows, shape) for width in (problem.M, problem.N))
    stage = tile_a + (tile_b if problem.beta != "zero" else 0)
    state = -(-12 * config.stages // 8) * 8
    group = config.stages * stage + config.slabs * tile_b + state
    return config.groups * group + (shape.kt * shape.nt * 256 if config.shared_coefficients else 0)


def _register_limit(warps: int) -> int:
    return min(255, _REGISTER_FILE // (32 * warps) // 8 * 8)


def _registers(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return how many registers a thread needs for the compiler to spill none.

    The reserve beside what must live at once was found by compiling some 5,000 configurations: ptxas renames
    accumulators and loads fragments far ahead, and where that nearly fits it spills.
    """
    shape = _shape(problem, device)
    tiles = -(-shape.nt // config.split)
    fragments = tiles * (1 if config.shared_coefficients else shape.kt)
    live = 2 * (fragments + 4 * config.unroll * tiles + 4 * config.unroll)
    reserve = 48 if config.shared_coefficients else 64 if config.warps >= 16 else 80
    extras = (problem.beta != "zero") + (shape.piece_a > 0) + (shape.piece_b > 0)
    extras += problem.alpha == "general" and problem.M % 4 > 0
    return live + reserve + 8 * extras


def space(problem: TsmmProblem, device: DeviceInfo) -> tuple[Config, ...]:
    """Return every valid configuration worth trying, a few hundred, in no order of merit."""
    if supports(problem, device) is not None:
        return ()
    return tuple(
        config for config in _candidates(problem, device) if _invalid(problem, config, device) is None
    )


def _candidates(problem: TsmmProblem, device: DeviceInfo) -> Iterator[Config]:
    shape = _shape(problem, device)
    row_bytes = max(problem.M, problem.N) * shape.size
    for shared in (False, True):
        if shared and shape.kt * shape.nt < 24:
            continue  # such fragments fit any register budget
        for split in (1, 2, 4):
            if split > shape.nt:
                continue
            tiles = -(-shape.nt // split)
            for unroll in (1, 2, 4):
                if unroll > 1 and unroll * tiles > 16:
                    continue
                for rows in _row_counts(unroll * shape.block, row_bytes, split):
                    for warps in (8, 12, 16):
                        for stages, slabs in ((2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (6, 2)):
                            yield Config(warps, split, rows, unroll, stages, slabs, shared)


def _row_counts(least: int, row_bytes: int, split: int) -> list[int]:
    """Return tile heights: multiples of `least` whose wider tile has 2 to 8 KB a warp."""
    counts = [least * 2**i for i in range(8) if 2048 <= least * 2**i * row_bytes // split <= 8192]
    return counts or [least]


def predict(
    problem: TsmmProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the expected time in seconds.

    The limits, each a time: memory; the tensor pipes, with padding and uneven quadrants; shared memory, which
    every byte passes two to six times; conversions of single precision; and the groups' own pipelines, whose
    tiles wait for their chain of products and for memory (Little's law). A smooth maximum joins them: limits
    that are close get in each other's way.
    """
    shape = _shape(problem, device)
    sms = device.multiprocessors
    ceilings = ceilings or _CEILINGS
    peak = ceilings.gflop_s.get("float64") or _CEILINGS.gflop_s["float64"]
    cycles_per_mma = _MMA_CYCLES if architecture_of(device) >= 90 else 2 * _MMA_CYCLES
    clock = peak * 1e9 / (sms * _QUADRANTS * 1024 / cycles_per_mma)
    tiles = -(-problem.K // config.rows) if problem.K else 0
    rounds = -(-tiles // (sms * config.groups))
    beta = problem.beta != "zero"

    passes = config.rows // (shape.block * config.unroll)
    share = -(-shape.nt // config.split)
    products = config.rows // shape.block * shape.kt * shape.nt  # m16n8k4 a tile
    tensor = rounds * config.groups * products * cycles_per_mma / _QUADRANTS / _PIPE_RATE
    # A group waits for its warp with the most columns, though quadrants get equal shares.
    tensor *= _imbalance(shape.nt, config) * (share * config.split / shape.nt) ** 0.6

    staged = config.rows * shape.size * (problem.M + (4 if beta else 2) * problem.N)
    fragments = config.rows * shape.size * 4 * shape.kt * config.split
    if config.shared_coefficients:
        fragments += passes * shape.kt * shape.nt * 256
    shared = rounds * config.groups * (staged + fragments) / (_SHARED_BYTES_PER_CYCLE * _SHARED_RATE)

    latency = _MMA_LATENCY + (_LOAD_LATENCY if config.shared_coefficients else 0)
    chain = shape.kt * max(config.unroll * share * cycles_per_mma, latency)
    work: float = _TILE_CYCLES + (_BARRIER_CYCLES if config.split > 1 else 0)
    work += passes * (_PASS_CYCLES + chain + _STORE_CYCLES * config.unroll * share)
    work += _piece_cycles(problem.M, shape.piece_a, config, shape)
    work += (2 if beta else 1) * _piece_cycles(problem.N, shape.piece_b, config, shape)
    loading = (_MEMORY_CYCLES + work) / config.stages
    storing = (_MEMORY_CYCLES / 2 + work) / config.slabs

    tile_bytes = config.rows * shape.size * max(problem.M, problem.N)
    in_order = _pipe_share(shape, problem) < _IN_ORDER_SHARE and not (shape.piece_a or shape.piece_b)
    memory = memory_time(traffic(problem), ceilings) / (_IN_ORDER_RATE if in_order else _MEMORY_RATE)
    memory *= 1 + _TILE_COST * abs(math.log2(tile_bytes / _BEST_TILE_BYTES))
    converted = 0.0
    if real_bytes(problem.dtype) == 4:
        numbers = config.rows * shape.parts * (4 * shape.kt * config.split + problem.N)
        converted = rounds * config.groups * numbers / _CONVERSIONS

    cycles = (tensor, shared, converted, rounds * work, rounds * loading, rounds * storing)
    limits = (memory, *(limit / clock for limit in cycles))
    longest = max(limits)
    joint = longest * sum((limit / longest) ** _SHARPNESS for limit in limits) ** (1 / _SHARPNESS)
    return float(joint + _MEMORY_CYCLES / clock + _LAUNCH_S)


# Fitted to 800 timed configurations of 40 problems on an H200 (3 per cent root mean square): the first choice
# is within 2 per cent (geometric mean) of the best that was seen, the best of the first ten within 0.3.
_PIPE_RATE = 0.76  # of the rate of tensor products by themselves
_SHARED_RATE = 0.81  # of shared memory's peak
_MMA_LATENCY, _LOAD_LATENCY = (
    24,
    9,
)  # cycles of a product, and more of its coefficients' way from shared memory
_CONVERSIONS = 14  # between float32 and float64, a cycle and SM
_PASS_CYCLES = 18  # going on to the next rows
_STORE_CYCLES = 7  # of a block of the result, from accumulators to the slab
_TILE_CYCLES = 360  # waiting, issuing copies ...
_BARRIER_CYCLES = 1000  # ... and where warps of a group wait for each other
_MEMORY_CYCLES = 300  # of a copy beyond what the others in flight hide
_MEMORY_RATE = 0.953  # of the copy rate, at the tile size that suits memory best ...
_IN_ORDER_RATE = 0.98  # ... and where tiles are taken in order
_BEST_TILE_BYTES, _TILE_COST = 4096, 0.012  # and what is lost a factor of two from it
_SHARPNESS = 10
_LAUNCH_S = 3e-6
_CEILINGS = Ceilings(4650, 4400, 4240, {"float64": 66e3})


def _imbalance(nt: int, config: Config) -> float:
    """Return the work of the busiest quadrant over the mean; shares of columns can differ by a tile."""
    loads = [0] * _QUADRANTS
    for warp in range(config.warps):
        share = (warp % config.split + warp // 4 * (config.split // 2)) % config.split
        loads[warp % _QUADRANTS] += -(-(nt - share) // config.split)
    return max(loads) * _QUADRANTS / sum(loads)


def _piece_cycles(width: int, piece: int, config: Config, shape: _Shape) -> float:
    """Return the cycles in which a warp moves its part of a tile by pieces, some 16 instructions each."""
    return 16 * config.rows * width * shape.size / (piece * 32 * config.split) if piece else 0.0


def choose(problem: TsmmProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the best configuration by the model.

    Raises
    ------
    OptionError
        If the family does not support the problem on this device.
    """
    ceilings = ceilings or _CEILINGS
    rates = tuple(sorted(ceilings.gflop_s.items()))
    bandwidths = (ceilings.read_gb_s, ceilings.write_gb_s, ceilings.copy_gb_s)
    return _choose(replace(problem, K=_rounded(problem.K)), device, bandwidths, rates)


def _rounded(K: int) -> int:
    """Round K up to its two leading bits, so that a solver's many row counts share choices."""
    step = 1 << max(K.bit_length() - 2, 0)
    return -(-K // step) * step


@functools.lru_cache(maxsize=4096)
def _choose(
    problem: TsmmProblem,
    device: DeviceInfo,
    bandwidths: tuple[float, float, float],
    rates: tuple[tuple[str, float], ...],
) -> Config:
    ceilings = Ceilings(*bandwidths, gflop_s=dict(rates))
    configs = space(problem, device)
    if not configs:
        reason = supports(problem, device) or "no configuration fits its shared memory"
        raise OptionError(
            f"tsmm_mma cannot run on {device.name}: {reason}; let dispatch take another family."
        )
    return min(configs, key=lambda config: predict(problem, config, device, ceilings))


def chain_length(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions, in the result's precision, that makes an element of B."""
    if real_bytes(problem.dtype) == 4:
        return 2  # sums are in double precision
    return _shape(problem, device).parts * problem.M + (problem.beta != "zero")


def kernel_name(problem: TsmmProblem) -> str:
    """Return the kernel's name, as profilers show it."""
    return f"tsmm_mma_{SHORT_NAMES[problem.dtype]}_m{problem.M}_n{problem.N}"


def source(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str:
    """Return the CUDA source of a configuration; it depends neither on K nor on the length of a pitch."""
    shape = _shape(problem, device)
    constants: dict[str, bool | int | float] = {
        "M": problem.M,
        "N": problem.N,
        "COMPLEX": shape.parts == 2,
        "ALPHA": problem.alpha == "general",
        "BETA": ("zero", "one", "general").index(problem.beta),
        "PIECE_A": shape.piece_a,
        "PIECE_B": shape.piece_b,
        "WARPS": config.warps,
        "SPLIT": config.split,
        "ROWS": config.rows,
        "UNROLL": config.unroll,
        "STAGES": config.stages,
        "SLABS": config.slabs,
        "SHARED_C": config.shared_coefficients,
        "IN_ORDER": _pipe_share(shape, problem) < _IN_ORDER_SHARE,
    }
    types = {"Real": C_TYPES[real_bytes(problem.dtype)]}
    return render(kernel_name(problem), "tsmm_mma.cu", constants, types)


def workspace_bytes(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch takes: counters, zero before the first launch and after each."""
    return COUNTER_BYTES


def bind(function: Any, problem: TsmmProblem, config: Config, device: DeviceInfo) -> Callable[..., None]:
    """Return what starts the kernel, made of `source` with `shared_bytes`; see `launch.bind_product`."""
    size = itemsize(problem.dtype)
    pitches = problem.lda * size, problem.ldb * size
    blocks, shared = (
        min(device.multiprocessors, -(-problem.K // config.rows)),
        shared_bytes(problem, config, device),
    )
    return bind_product(function, problem, blocks, 32 * config.warps, shared, pitches)
