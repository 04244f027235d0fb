"""Which kernels the figures of Ernst et al. (2021) compare; needs no GPU.

D. Ernst, G. Hager, J. Thies, G. Wellein, "Performance engineering for real and complex tall & skinny matrix
multiplication kernels on GPUs", IJHPCA 35(1), 2021. The paper searched exhaustively; here a simple cost picks
a few tiles per width.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from blockvec.errors import OptionError
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.limits import ceil_div, round_up
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem, is_complex, itemsize
from tests.benchmarks.paper.kernels import Config, Reduction, Tsmm, Tsmttsm, refusal

OPERAND_BYTES = 1 << 30  # of the tall operands of most figures
DTYPES = ("float64", "complex128")
SAMPLED_WIDTHS = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16)  # of tiles
CANDIDATES = 4  # per width and setting, in the order of their cost
MAP_WIDTH = 32
COMBINED_WIDTHS = (2, 4, 7, 8, 12, 16, 24, 32, 48, 64)
SPREADS = (1, 2, 4, 8, 16)
REDUCED_WIDTHS = (4, 32)
REDUCED_ROWS = tuple(round(10 ** (step / 4)) for step in range(12, 31))  # 1e3 to 3e7
OCCUPANCY_WIDTH = 64
OCCUPANCY_TILES = ((4, 8), (8, 8))
LAUNCHED_WARPS = (2, 4, 6, 8, 10, 12, 16, 20, 24, 32)  # per multiprocessor
FEW_ROWS = 1 << 20  # divisor of the row in the experiment on occupancy
HIDDEN = 6.0  # warps per multiprocessor: that hide half of the latency, in the cost

AnyConfig = TypeVar("AnyConfig", Tsmttsm, Tsmm)


@dataclass(frozen=True)
class Point:
    """One kernel to time: its configuration and rows, and the options that the figure compares.

    `resident` are the blocks launched per multiprocessor, if not those of the configuration.
    """

    figure: str
    config: Config
    K: int
    setting: dict[str, Any] = field(default_factory=dict)
    resident: int = 0

    @property
    def problem(self) -> TsmttsmProblem | TsmmProblem:
        """The product, as blockvec describes it."""
        M, N, dtype = self.config.M, self.config.N, self.config.dtype
        if isinstance(self.config, Tsmttsm):
            return TsmttsmProblem(self.K, M, N, dtype, dtype, M, N, conj=is_complex(dtype))
        return TsmmProblem(self.K, M, N, dtype, dtype, M, N)


def _rows(width: int, dtype: str) -> int:
    return OPERAND_BYTES // (width * itemsize(dtype))


def _fullest(make: Callable[..., AnyConfig], threads: int, device: DeviceInfo) -> AnyConfig | None:
    """Make the configuration with the most resident blocks; None if none is valid."""
    for blocks in range(device.threads_per_multiprocessor // threads, 0, -1):
        if refusal(config := make(blocks=blocks), device) is None:
            return config
    return None


def tiled(
    width: int, dtype: str, sides: tuple[int, int], device: DeviceInfo, **options: Any
) -> Tsmttsm | None:
    """Make the kernel of A^H B with tiles, with the number of threads that leaves the fewest idle."""
    tiles = ceil_div(width, sides[0]) * ceil_div(width, sides[1])
    counts = range(max(128, round_up(tiles, 32)), max(256, round_up(tiles, 32)) + 1, 32)
    threads = max(counts, key=lambda count: (count // tiles * tiles / count, count))
    options |= {"M": width, "N": width, "dtype": dtype, "threads": threads, "tm": sides[0], "tn": sides[1]}
    return _fullest(functools.partial(Tsmttsm, **options), threads, device)


def spread(width: int, dtype: str, device: DeviceInfo, **options: Any) -> Tsmm | None:
    """Make the kernel of A C."""
    options |= {"M": width, "N": width, "dtype": dtype}
    options["unroll"] = width if options["coefficients"] == "registers" else 4
    return _fullest(functools.partial(Tsmm, **options), Tsmm.threads, device)


def cost(config: Config) -> float:
    """Estimate the relative time per element of the product, to leave out what is far from the best.

    Multiply-adds, idle threads included, and loads, the more of it exposed the fewer warps are resident.
    """
    work = 4 if is_complex(config.dtype) else 1  # multiply-adds of real numbers
    if isinstance(config, Tsmttsm):
        sides = config.tm, config.tn
        padded = config.threads * config.tm * config.tn / (config.block_rows * config.M * config.N)
    else:
        sides = config.rows, config.columns
        padded = config.columns * config.spread / config.N
        if config.spread < min(4, config.N):
            padded *= 1.3  # sectors of memory that are written in parts
    loads = config.parts * sum(sides) / (work * sides[0] * sides[1])
    return padded * (1 + loads) * (1 + HIDDEN / config.warps)


def _cheapest(found: Iterable[AnyConfig | None]) -> list[AnyConfig]:
    return sorted((config for config in dict.fromkeys(found) if config), key=cost)[:CANDIDATES]


def _tilings(width: int, dtype: str, device: DeviceInfo, **options: Any) -> list[Tsmttsm]:
    sides = [side for side in reversed(SIDES) if side <= min(width, 11)]
    pairs = itertools.combinations_with_replacement(sides, 2)  # the mirrored ones are as fast
    return _cheapest(tiled(width, dtype, pair, device, **options) for pair in pairs)


def _roofline(device: DeviceInfo) -> Iterator[Point]:
    """Yield both kernels at every width, with several tiles and options each."""
    for dtype, width in itertools.product(DTYPES, range(1, 65)):
        for ahead in (False, True):
            for config in _tilings(width, dtype, device, leapfrog=ahead, interleaved=ahead):
                yield Point("roofline", config, _rows(width, dtype))
    for dtype, width in itertools.product(DTYPES, range(1, 65)):
        for place in ("cache", "shared"):
            options = ({"spread": s, "rows": r} for s in SPREADS for r in (1, 2, 4))
            for combined in _cheapest(spread(width, dtype, device, coefficients=place, **o) for o in options):
                yield Point("roofline", combined, _rows(width, dtype))


def _permutations(device: DeviceInfo) -> Iterator[Point]:
    """Yield leap frog and interleaved ("transposed") tiles over the width."""
    for dtype, width in itertools.product(DTYPES, SAMPLED_WIDTHS):
        for ahead, dealt in itertools.product((False, True), repeat=2):
            setting = {"leapfrog": ahead, "interleaved": dealt}
            for config in _tilings(width, dtype, device, **setting):
                yield Point("permutations", config, _rows(width, dtype), setting)


def _tiles(device: DeviceInfo) -> Iterator[Point]:
    """Yield tiles of TM x TN at one width, with leap frog and interleaved."""
    for dtype in DTYPES:
        for tm, tn in itertools.product(SIDES, repeat=2):
            config = tiled(MAP_WIDTH, dtype, (tm, tn), device, leapfrog=True, interleaved=True)
            if config:
                yield Point("tiles", config, _rows(MAP_WIDTH, dtype), {"tm": tm, "tn": tn})


def _reductions(device: DeviceInfo) -> Iterator[Point]:
    """Yield the kinds of reduction over the number of rows."""
    kinds: tuple[Reduction, ...] = ("partials", "blocks", "threads", "none")
    for width in REDUCED_WIDTHS:
        most = _rows(width, "float64")
        for rows, kind in itertools.product((*(K for K in REDUCED_ROWS if most > K), most), kinds):
            sides = (min(width, 8),) * 2
            config = tiled(width, "float64", sides, device, interleaved=width > sides[0], reduction=kind)
            assert config is not None
            yield Point("reductions", config, rows, {"reduction": kind})


def _combinations(device: DeviceInfo) -> Iterator[Point]:
    """Yield threads per row, memory of C and rows per thread (the paper's unrolling), over the width."""
    for width in COMBINED_WIDTHS:
        for values in itertools.product(SPREADS, ("registers", "shared", "cache"), (1, 2, 3, 4)):
            threads, place, rows = values
            config = spread(width, "float64", device, spread=threads, coefficients=place, rows=rows)
            if config:
                setting = {"spread": threads, "coefficients": place, "unroll": rows}
                yield Point("combinations", config, _rows(width, "float64"), setting)


def _occupancy(device: DeviceInfo) -> Iterator[Point]:
    """Yield the kernel, one with two sums for all products, and that one with few rows, over the warps.

    The first computes the product; the others have the registers and the latencies of larger machines.
    """
    width = OCCUPANCY_WIDTH
    variants = {"real": (0, 1), "two sums": (2, 1), "two sums, few rows": (2, FEW_ROWS)}
    for (tm, tn), (variant, (sums, divisor)) in itertools.product(OCCUPANCY_TILES, variants.items()):
        threads = width // tm * width // tn
        sizes: dict[str, Any] = {"M": width, "N": width, "dtype": "float64", "threads": threads}
        sizes |= {"tm": tm, "tn": tn, "accumulators": sums, "divisor": divisor}
        make = functools.partial(Tsmttsm, **sizes, reduction="none", interleaved=True)
        config = _fullest(make, threads, device)
        assert config is not None
        for warps in LAUNCHED_WARPS:
            if warps % (threads // 32) == 0:
                setting = {"tile": f"{tm} x {tn}", "variant": variant, "warps": warps}
                resident = warps * 32 // threads
                yield Point("occupancy", config, _rows(width, "float64"), setting, resident)


FIGURES: dict[str, Callable[[DeviceInfo], Iterator[Point]]] = {
    "roofline": _roofline,
    "permutations": _permutations,
    "tiles": _tiles,
    "reductions": _reductions,
    "combinations": _combinations,
    "occupancy": _occupancy,
}


def points(figures: Sequence[str], device: DeviceInfo) -> list[Point]:
    """List the kernels of figures that fit the device; an unknown figure raises an `OptionError`."""
    for figure in figures:
        if figure not in FIGURES:
            raise OptionError(f"figure {figure!r}: give some of {', '.join(FIGURES)}.")
    return [point for figure in figures for point in FIGURES[figure](device)]
