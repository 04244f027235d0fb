"""Problems and configurations of the figures of Ernst et al. (2021); needs no GPU.

D. Ernst, G. Hager, J. Thies, G. Wellein, "Performance engineering for real and complex tall & skinny matrix
multiplication kernels on GPUs", IJHPCA 35(1), 2021. If a figure compares options of the paper's kernels,
the points are those kernels: operands are loaded from memory to registers and results stored from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blockvec.errors import OptionError
from blockvec.kernels.dense.tsmm_fma import Coefficients, TsmmFmaConfig
from blockvec.kernels.dense.tsmttsm_fma import TsmttsmFmaConfig
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES, families_of
from blockvec.kernels.limits import ceil_div
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem, is_complex, itemsize

OPERAND_BYTES = 1 << 30
WIDTHS = (*range(1, 17), *range(18, 33, 2), 31, 33, *range(36, 65, 4), 57)
SAMPLED_WIDTHS = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64)
TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16)
BEST = 3  # kernels per width beside ours, in the order of the model
COMBINED_WIDTHS = (2, 7, 8, 12, 16, 24, 32, 48, 64)
MAP_WIDTH = 32
TILINGS = 4  # per permutation and width, in the order of the model
RESIDENT_WARPS = (64, 48, 32, 24, 16, 12, 8, 4)  # per multiprocessor; the largest number that fits is used
REDUCTIONS = ("partials", "blocks", "threads", "none")
REDUCED_WIDTHS = (4, 32)
REDUCED_ROWS = tuple(round(10 ** (step / 2)) for step in range(6, 16))  # 1e3 to 3e7


@dataclass(frozen=True)
class Point:
    """One kernel to time: its problem, family and configuration, and the options that the figure compares."""

    figure: str
    problem: TsmttsmProblem | TsmmProblem
    kernel: str
    config: Any
    setting: dict[str, Any] = field(default_factory=dict)


def _tsmttsm(width: int, dtype: str = "float64", rows: int | None = None) -> TsmttsmProblem:
    K = rows or OPERAND_BYTES // (width * itemsize(dtype))
    return TsmttsmProblem(K, width, width, dtype, dtype, width, width, conj=is_complex(dtype))


def _tsmm(width: int, dtype: str = "float64") -> TsmmProblem:
    return TsmmProblem(OPERAND_BYTES // (width * itemsize(dtype)), width, width, dtype, dtype, width, width)


def _roofline(device: DeviceInfo) -> Iterator[Point]:
    """Yield each family with the configuration of its model, over all widths."""
    for make in (_tsmttsm, _tsmm):
        for dtype in ("float64", "complex128"):
            for width in WIDTHS:
                problem = make(width, dtype)
                for family in families_of(problem):
                    if family.supports(problem, device) is None:
                        config = family.choose(problem, device)
                        yield Point("roofline", problem, family.name, config)


def _direct_tsmttsm(
    problem: TsmttsmProblem, tm: int, tn: int, device: DeviceInfo, **options: Any
) -> TsmttsmFmaConfig | None:
    """Create the paper's kernel with as many warps as fit; None if none fits."""
    tiles = ceil_div(problem.M, tm) * ceil_div(problem.N, tn)
    warps = 1 << max(0, ceil_div(tiles, 32) - 1).bit_length()
    teams = max(1, 8 // warps)
    for resident in RESIDENT_WARPS:
        blocks = resident // (teams * warps)
        config = TsmttsmFmaConfig(tm, tn, warps=warps, teams=teams, blocks=blocks, **options)
        if blocks and FAMILIES["tsmttsm_fma"].refuse(problem, config, device) is None:
            return config
    return None


def _permutations(device: DeviceInfo) -> Iterator[Point]:
    """Yield leap frog and interleaved ("transposed") variants over the width, with several tiles each."""
    for width in SAMPLED_WIDTHS:
        problem = _tsmttsm(width)
        for leapfrog in (False, True):
            for interleaved in (False, True):
                options = {"leapfrog": leapfrog, "interleaved": interleaved}
                sizes = [t for t in TILES if 2 <= t <= min(width, 8)]
                found = (_direct_tsmttsm(problem, tm, tn, device, **options) for tm in sizes for tn in sizes)
                configs = [config for config in dict.fromkeys(found) if config]
                configs.sort(key=lambda config: FAMILIES["tsmttsm_fma"].predict(problem, config, device))
                for config in configs[:TILINGS]:
                    yield Point("permutations", problem, "tsmttsm_fma", config, options)


def _widths(device: DeviceInfo) -> Iterator[Point]:
    """Yield the paper's kernels at every width, with the best tiles and options by the model."""
    for dtype, widths in (("float64", range(1, 65)), ("complex128", WIDTHS)):
        for width in widths:
            sides = [t for t in TILES if t <= min(width, 8 if dtype == "float64" else 6)]
            tall, found = _tsmttsm(width, dtype), []
            for tm, tn, leapfrog in itertools.product(sides, sides, (False, True)):
                found.append(_direct_tsmttsm(tall, tm, tn, device, leapfrog=leapfrog, interleaved=leapfrog))
            yield from _by_model(tall, found, device)
            wide = _tsmm(width, dtype)
            places: tuple[Coefficients, ...] = ("cache", "shared")
            yield from _by_model(
                wide,
                [
                    _direct_tsmm(wide, device, spread=spread, coefficients=place, unroll=2)
                    for spread, place in itertools.product((1, 2, 4, 8), places)
                ],
                device,
            )


def _by_model(
    problem: TsmttsmProblem | TsmmProblem, configs: Sequence[Any], device: DeviceInfo
) -> Iterator[Point]:
    """Yield the few configurations that the model predicts to be the fastest."""
    family = FAMILIES["tsmttsm_fma" if isinstance(problem, TsmttsmProblem) else "tsmm_fma"]
    known = [config for config in dict.fromkeys(configs) if config]
    for config in sorted(known, key=lambda config: family.predict(problem, config, device))[:BEST]:
        yield Point("widths", problem, family.name, config)


def _tiles(device: DeviceInfo) -> Iterator[Point]:
    """Yield tiles of TM x TN at one width, with leap frog and interleaved."""
    problem = _tsmttsm(MAP_WIDTH)
    for tm, tn in itertools.product(TILES, repeat=2):
        config = _direct_tsmttsm(problem, tm, tn, device, leapfrog=True, interleaved=True)
        if config:
            yield Point("tiles", problem, "tsmttsm_fma", config, {"tm": tm, "tn": tn})


def _reductions(device: DeviceInfo) -> Iterator[Point]:
    """Yield the kinds of reduction over the number of rows."""
    for width in REDUCED_WIDTHS:
        for rows in (*REDUCED_ROWS, _tsmttsm(width).K):
            config = FAMILIES["tsmttsm_fma"].choose(_tsmttsm(width, rows=rows), device)
            for reduction in REDUCTIONS:
                setting: dict[str, Any] = {"reduction": reduction}
                changed = replace(config, **setting)
                yield Point("reductions", _tsmttsm(width, rows=rows), "tsmttsm_fma", changed, setting)


def _combinations(device: DeviceInfo) -> Iterator[Point]:
    """Yield threads per row, memory of C and rows per thread, over the width."""
    for width in COMBINED_WIDTHS:
        problem = _tsmm(width)
        for values in itertools.product((1, 2, 4, 8, 16), ("registers", "shared", "cache"), (1, 2, 3, 4)):
            setting: dict[str, Any] = dict(zip(("spread", "coefficients", "unroll"), values, strict=True))
            config = _direct_tsmm(problem, device, **setting)
            if config:
                yield Point("combinations", problem, "tsmm_fma", config, setting)


def _direct_tsmm(
    problem: TsmmProblem, device: DeviceInfo, *, spread: int, coefficients: Coefficients, unroll: int
) -> TsmmFmaConfig | None:
    kt = min(problem.M, 2)
    tiles = ceil_div(problem.M, kt)
    for resident in RESIDENT_WARPS:
        teams = min(resident, 8)
        config = TsmmFmaConfig(
            spread,
            ceil_div(problem.N, spread),
            unroll,
            kt=kt,
            coefficients=coefficients,
            interleaved=spread > 1,
            unroll_k=tiles if coefficients == "registers" else min(tiles, 4),
            teams=teams,
            blocks=resident // teams,
        )
        if FAMILIES["tsmm_fma"].refuse(problem, config, device) is None:
            return config
    return None


FIGURES: dict[str, Callable[[DeviceInfo], Iterator[Point]]] = {
    "roofline": _roofline,
    "widths": _widths,
    "permutations": _permutations,
    "tiles": _tiles,
    "reductions": _reductions,
    "combinations": _combinations,
}


def points(figures: Sequence[str], device: DeviceInfo) -> list[Point]:
    """List the kernels of figures that fit the device; an unknown figure raises an `OptionError`."""
    for figure in figures:
        if figure not in FIGURES:
            raise OptionError(f"figure {figure!r} is not known; give some of {', '.join(FIGURES)}.")
    return [point for figure in figures for point in FIGURES[figure](device)]
