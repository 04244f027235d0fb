"""The paper's kernels and figures: exact on the host, without spills, complete; without a GPU."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec.backends import backend_for
from blockvec.errors import OptionError
from blockvec.kernels.build import compile_source
from tests.benchmarks.paper.figures import missing
from tests.benchmarks.paper.kernels import Config, Tsmm, Tsmttsm, grid_of, name_of, refusal, source
from tests.benchmarks.paper.points import FIGURES, OPERAND_BYTES, Point, points
from tests.benchmarks.pictures.draw import draw
from tests.benchmarks.plot import of_tables
from tests.devices import H200, needs_compiler, resources_of
from tests.emulator.host import HostKernel, needs_host_compiler

GUARD = 64  # numbers around a result
D, Z = "float64", "complex128"

some_points = functools.cache(lambda figure: points([figure], H200))


def dot(M: int, N: int, dtype: str, tm: int, tn: int, **options: Any) -> Tsmttsm:
    return Tsmttsm(M=M, N=N, dtype=dtype, tm=tm, tn=tn, threads=64, **options)


def combine(M: int, N: int, dtype: str, spread: int, **options: Any) -> Tsmm:
    return Tsmm(M=M, N=N, dtype=dtype, spread=spread, threads=64, **options)


CASES: list[Config] = [
    # tiles with guards on both sides, all reductions, leap frog, columns in turn; threads without a row
    dot(10, 7, D, 4, 3, leapfrog=True, interleaved=True, reduction="partials"),
    dot(5, 5, D, 5, 5, reduction="threads"),
    dot(9, 6, Z, 4, 2, interleaved=True, reduction="blocks"),
    dot(1, 1, D, 1, 1, leapfrog=True, reduction="blocks"),
    dot(16, 12, Z, 4, 3, leapfrog=True, reduction="partials"),
    dot(13, 11, D, 4, 5, interleaved=True, reduction="threads"),
    combine(9, 7, D, 4, coefficients="shared", rows=3),
    combine(5, 6, D, 2, coefficients="registers", rows=2, unroll=5),
    combine(6, 5, Z, 4, coefficients="cache", rows=2),
    combine(3, 1, D, 1, coefficients="cache"),
]
QUICK = CASES[0], CASES[6]  # compiling one for the host takes seconds


@needs_host_compiler
@pytest.mark.parametrize(
    "config", [pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_every_element_of_a_product_is_exact_and_nothing_else_is_written(config: Config) -> None:
    kernel = HostKernel(f'#include "ptx.hpp"\n#define KERNEL {name_of(config)}\n{source(config)}')
    draws = np.random.default_rng(config.M)
    for rows in (1, 7 * config.block_rows + 3):

        def tall(height: int, width: int) -> np.ndarray:
            parts = draws.integers(-4, 5, (height, width * config.parts)).astype(D)
            return parts.view(config.dtype)

        A, second = tall(rows, config.M), tall(rows if isinstance(config, Tsmttsm) else config.M, config.N)
        out = tall(config.M if isinstance(config, Tsmttsm) else rows, config.N)
        expected = out + 2 * (A.conj().T @ second) if isinstance(config, Tsmttsm) else A @ second
        memory = np.full(out.size * config.parts + 2 * GUARD, np.nan)
        memory[GUARD:-GUARD] = out.view(D).reshape(-1)
        grid = grid_of(config, rows, 3)
        arguments = [A.ctypes.data, second.ctypes.data, memory.ctypes.data + 8 * GUARD, rows]
        partials, finished = np.empty(grid * expected.size * config.parts), np.zeros(1, np.uint32)
        if isinstance(config, Tsmttsm):
            arguments[3:3] = [partials.ctypes.data, finished.ctypes.data]
        for _ in range(2):
            kernel((grid,), (config.threads,), tuple(arguments), shared_mem=config.shared_bytes)
        np.testing.assert_array_equal(memory[GUARD:-GUARD], expected.view(D).reshape(-1))
        assert np.isnan(memory[:GUARD]).all()
        assert np.isnan(memory[-GUARD:]).all()


@needs_compiler
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))]
)
def test_kernels_that_are_compared_compile_without_spills(seed: int) -> None:
    draws = random.Random(seed)
    for figure in FIGURES:
        point = draws.choice(some_points(figure))
        resources = resources_of(compile_source(source(point.config), "sm_90").log)
        assert resources.spill_bytes == resources.stack_bytes == 0, point


@pytest.mark.parametrize("figure", FIGURES)
def test_every_kernel_that_is_compared_is_valid_and_has_its_setting(figure: str) -> None:
    for point in some_points(figure):
        assert refusal(point.config, H200) is None
        assert 8 * point.config.parts * point.K * point.config.M <= OPERAND_BYTES
        config, launched = point.config, point.resident * point.config.threads // 32
        has = vars(config) | {"unroll": getattr(config, "rows", None), "warps": launched}
        assert {name: has.get(name, value) for name, value in point.setting.items()} == point.setting


def test_a_kernel_that_does_not_fit_is_refused_with_the_reason() -> None:
    assert "tiles of 1 x 1" in str(refusal(dot(9, 9, D, 1, 1), H200))
    assert "registers" in str(refusal(dot(32, 32, D, 12, 12), H200))
    assert "too few sums" in str(refusal(dot(8, 8, D, 8, 8, accumulators=2), H200))
    with pytest.raises(OptionError, match="give some of roofline"):
        points(["speedups"], H200)
    with pytest.raises(OptionError, match="give --device gpu"):
        missing(["tiles"], backend_for("cpu"), [])


def record(point: Point) -> dict[str, Any]:
    p = point.problem
    sizes = {"operation": p.operation, "dtype": p.dtype, "M": p.M, "N": p.N, "K": p.K}
    timed = {"time_s": 1e-9 * p.K * (1 + p.M % 5), "fraction": 0.5, "peers": {"cublas": 1e-9 * p.K}}
    return {"figure": point.figure, **sizes, **timed, **point.setting}


def test_every_figure_has_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = {
        "environment": {"device": "NVIDIA H200", "cores": 0, "date": "2026-11-21"},
        "ceilings": {"read_gb_s": 4600.0, "copy_gb_s": 4200.0},
        "records": [record(point) for figure in FIGURES for point in some_points(figure)],
    }
    draw(document, tmp_path / "paper.svg", of_tables)
    picture = (tmp_path / "paper.svg").read_text(encoding="utf-8")
    for title in ("prefetch", "tile size", "occupancy", "sums over the threads", "where C is read"):
        assert title in picture
