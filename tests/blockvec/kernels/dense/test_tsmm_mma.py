"""TSMM on tensor cores, without a GPU: choices, compilation, and the kernel itself run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockvec.errors import LayoutError, OptionError
from blockvec.kernels import build as compiler
from blockvec.kernels.dense.layout import prefetches_ends
from blockvec.kernels.dense.tsmm_mma import TsmmMmaConfig as Config
from blockvec.kernels.dense.tsmm_mma import is_complex_kernel, shape_of
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.limits import register_limit
from blockvec.kernels.problem import TsmmProblem, is_complex
from blockvec.kernels.roofline import Ceilings
from tests.blocks import address, aligned, bind, draw, parts, sectors_in_part
from tests.blocks import tsmm_problem as problem
from tests.emulator.host import HostKernel, every_second, needs_host_compiler

family = FAMILIES["tsmm_mma"]

CEILINGS = Ceilings(4650, 4400, 4240, {"float64": 66e3})


BOTH = pytest.mark.parametrize("dtype", ["float64", "complex128"])
ALL = pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])


# ---- choices


def test_choices_follow_the_number_of_rows_roughly() -> None:
    p = problem(8)
    assert family.choose(replace(p, K=p.K - 1), H200) == family.choose(p, H200)
    few = replace(p, K=2000)
    assert family.choose(few, H200).rows < family.choose(p, H200).rows or family.choose(few, H200).groups > 1


def test_what_the_family_cannot_run_is_refused_with_a_reason() -> None:
    assert "A and C of one type" in str(family.supports(problem(8, dtype_c="complex128"), H200))
    assert "widths from 1 to 64" in str(family.supports(problem(65), H200))
    assert "8-byte alignment" in str(family.supports(problem(8, align_b=4), H200))
    assert "in place" in str(family.supports(problem(8, 9, inplace=True), H200))
    assert "no FP64 tensor cores" in str(family.supports(problem(8), replace(H200, architecture="sm_75")))
    with pytest.raises(OptionError, match="use another kernel"):
        family.choose(problem(65), H200)


VALID = Config(warps=8, split=1, rows=64, unroll=2, stages=2, slabs=2, shared_coefficients=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"warps": 6}, "multiple of 4"),
        ({"split": 3}, "cannot share"),
        ({"split": 4}, "cannot share the 1 column tiles"),
        ({"rows": 48}, "no multiple"),
        ({"stages": 0}, "at least one"),
        ({"slabs": 0}, "no slabs: for complex A"),
        ({"rows": 1024}, "bytes of shared memory"),
        ({"warps": 4, "unroll": 16, "rows": 256, "stages": 1, "slabs": 1}, "registers"),
    ],
)
def test_the_validity_rule_says_what_is_wrong(changes: dict[str, int], reason: str) -> None:
    assert family.refuse(problem(8), VALID, H200) is None
    assert reason in str(family.refuse(problem(8), replace(VALID, **changes), H200))


@pytest.mark.parametrize(
    ("changes", "config", "reason"),
    [
        ({"beta": "one"}, {}, "beta zero"),
        ({"lda": 35}, {}, "contiguous"),
        ({"align_b": 8}, {}, "elements of 16 bytes"),
        ({"N": 12, "ldb": 12}, {"split": 2}, "less than 8 of 12 columns"),
        ({}, {"stages": 1}, "the next tile"),
        ({}, {"shared_coefficients": False}, "coefficients in shared memory"),
    ],
)
def test_results_go_straight_to_memory_where_the_rule_allows(
    changes: dict[str, object], config: dict[str, object], reason: str
) -> None:
    valid = Config(warps=8, split=1, rows=16, unroll=2, stages=2, slabs=0, shared_coefficients=True)
    assert family.refuse(problem(33, dtype="complex128"), valid, H200) is None
    p = problem(33, dtype="complex128", **changes)
    assert reason in str(family.refuse(p, replace(valid, **config), H200))  # type: ignore[arg-type]


def test_contiguous_aligned_operands_move_in_slabs_and_others_in_pieces() -> None:
    def pieces(p: TsmmProblem) -> tuple[int, int]:
        shape = shape_of(p, H200)
        return shape.piece_a, shape.piece_b

    assert pieces(problem(13)) == (0, 0)
    assert pieces(problem(13, align_a=8)) == (8, 0)
    assert pieces(problem(13, 8, lda=61, align_a=8, ldb=64)) == (8, 16)
    assert pieces(problem(13, 8, "complex128", lda=61, ldb=64, align_b=8)) == (16, 8)
    assert pieces(problem(13, 8, "float32", lda=61, align_a=4, ldb=64)) == (4, 16)
    assert pieces(problem(13, 8, "complex64", align_a=4, ldb=9, align_b=8)) == (4, 8)
    assert pieces(problem(7, lda=8)) == (8, 0)  # whole 16-byte pieces would read beside the columns


class Recorder:
    """A kernel that only remembers how it was started."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def __call__(self, grid: object, block: object, arguments: tuple[object, ...], shared_mem: int) -> None:
        self.calls.append((grid, block, arguments, shared_mem))


def test_a_launch_fills_the_device_and_passes_pitches_in_bytes() -> None:
    p = problem(8, 4, "complex128", ldb=6, alpha="general", beta="general")
    config, kernel = family.choose(p, H200), Recorder()
    bind(family, kernel, p, config, H200)(1 << 20, 2 << 20, 3 << 20, 2j, 3, 4 << 20)
    arguments = (1 << 20, 2 << 20, 3 << 20, p.K, 8 * 16, 6 * 16, 0.0, 2.0, 3.0, 0.0, 4 << 20)
    shared = family.shared_bytes(p, config, H200)
    assert kernel.calls == [((132,), (32 * config.warps,), arguments, shared)]
    bind(family, kernel, replace(p, K=1), config, H200)(1 << 20, 2 << 20, 3 << 20, 2j, 3, 4 << 20)
    assert kernel.calls[1][0] == (1,)
    bind(family, kernel, replace(p, K=0), config, H200)(0, 0, 0, 2j, 3)
    assert len(kernel.calls) == 2
    with pytest.raises(LayoutError, match="A lies at address 0x8"):
        bind(family, kernel, p, config, H200)(8, 0, 0, 2j, 3)


@BOTH
def test_a_chain_is_the_columns_of_A_and_the_output(dtype: str) -> None:
    p = problem(24, dtype=dtype)
    parts = 2 if dtype == "complex128" else 1
    config = family.choose(p, H200)
    assert family.chain_length(p, config, H200) == 24 * parts
    assert family.chain_length(replace(p, beta="one"), config, H200) == 24 * parts + 1
    single = problem(24, dtype="complex64" if parts == 2 else "float32")
    assert family.chain_length(single, family.choose(single, H200), H200) == 2  # summed in double precision


# ---- compilation


def assert_compiles_clean(p: TsmmProblem, config: Config) -> None:
    """No spills, no stack, and as much shared memory as the launch asks for."""
    group = "GROUP_BYTES + sizeof(" + (
        "Ring<STAGES>)" if is_complex_kernel(p, config, shape_of(p, H200)) else "Stages)"
    )
    total = family.shared_bytes(p, config, H200)
    agree = f'static_assert(FRAGMENT_BYTES + GROUPS * ({group}) == {total}, "shared memory");\n'
    cubin = compiler.compile_source(family.source(p, config, H200) + agree, H200.architecture)
    assert cubin.resources.spill_bytes == cubin.resources.stack_bytes == 0, (p, config, cubin.resources)
    assert cubin.resources.registers <= register_limit(config.threads, H200)


# ---- the kernel, thread by thread


def emulate(
    kernel: HostKernel,
    p: TsmmProblem,
    config: Config,
    operands: tuple[np.ndarray, np.ndarray, np.ndarray],
    factors: tuple[complex, complex],
) -> None:
    A, C, B = operands
    queue = np.zeros(2, "u4")
    pitches = p.lda * A.itemsize, p.ldb * B.itemsize
    arguments = address(A), address(C), address(B), p.K, *pitches, *parts(factors), address(queue)
    kernel((2,), (32 * config.warps,), arguments, family.shared_bytes(p, config, H200))
    assert not queue.any()  # as the next launch needs it


HOST_CASES = [
    # warps, split, rows, unroll, stages, slabs, shared_coefficients
    (problem(8, K=333), Config(4, 1, 32, 2, 2, 2, False)),
    (problem(1, K=1001), Config(4, 1, 64, 4, 3, 1, False)),
    (problem(13, 9, K=511, alpha="general"), Config(4, 2, 16, 1, 2, 1, False)),
    (problem(7, 30, K=300, beta="one"), Config(8, 4, 32, 1, 2, 2, False)),
    (problem(21, 17, K=203, beta="general"), Config(8, 2, 32, 2, 1, 1, True)),
    (problem(9, 5, K=407, lda=11, ldb=8, align_a=8), Config(4, 1, 32, 1, 2, 2, False)),
    (problem(16, 12, K=130, lda=20, ldb=12, beta="general"), Config(4, 2, 16, 1, 3, 2, False)),
    (problem(11, K=267, inplace=True), Config(4, 1, 32, 1, 2, 2, False)),
    (problem(12, 7, K=267, ldb=12, inplace=True, beta="one"), Config(4, 1, 32, 2, 2, 2, False)),
    (problem(3, 6, K=4), Config(4, 1, 32, 2, 2, 2, False)),
    (problem(5, dtype="complex128", K=333), Config(4, 1, 16, 2, 2, 2, False)),
    (problem(9, 13, "complex128", K=151, alpha="general"), Config(8, 4, 16, 1, 2, 1, False)),
    (problem(6, 11, "complex128", K=97, beta="general"), Config(4, 2, 8, 1, 2, 1, True)),
    (problem(4, 7, "complex128", K=140, lda=5, ldb=9, align_b=8), Config(4, 1, 16, 1, 2, 2, False)),
    (problem(10, 6, "complex128", K=90, ldb=10, inplace=True), Config(4, 2, 16, 2, 2, 1, False)),
    (problem(13, 9, "float32", K=511, alpha="general"), Config(4, 2, 32, 1, 2, 1, False)),
    (problem(7, 30, "float32", K=299, beta="one"), Config(8, 4, 32, 1, 2, 2, True)),
    (problem(9, 5, "float32", K=407, lda=11, ldb=7, align_a=4, align_b=4), Config(4, 1, 32, 1, 2, 2, False)),
    (problem(1, dtype="float32", K=1003), Config(4, 1, 64, 2, 3, 1, False)),
    (problem(5, dtype="complex64", K=331), Config(4, 1, 16, 2, 2, 2, False)),
    (problem(6, 11, "complex64", K=97, beta="general", align_b=8), Config(4, 2, 8, 1, 2, 1, True)),
    # what is left of the columns taken in turns
    (problem(7, 50, K=300, beta="general"), Config(4, 4, 64, 1, 2, 1, False)),
    (problem(9, 27, "complex128", K=151, alpha="general"), Config(8, 4, 32, 1, 2, 2, False)),
    # straight from registers: whole and half groups of columns, uneven shares, passes, views, in place
    (problem(9, 13, "complex128", K=151), Config(8, 2, 8, 1, 2, 0, True)),
    (problem(16, 36, "complex128", K=140, ldb=37), Config(8, 4, 32, 2, 3, 0, True)),
    (problem(11, 10, "complex128", K=77, inplace=True, ldb=11), Config(4, 1, 16, 2, 2, 0, True)),
    (problem(16, dtype="complex64", K=203), Config(8, 2, 16, 2, 2, 0, True)),
    # ... and through slabs of single warps
    (problem(23, 29, "complex64", K=203, alpha="general"), Config(4, 1, 32, 2, 2, 1, True)),
    (problem(45, 47, "complex128", K=77), Config(4, 1, 8, 1, 2, 2, True)),
    (problem(7, 9, "complex64", K=203, align_b=8, alpha="general"), Config(4, 1, 16, 1, 3, 0, True)),
    # long rows of B end within sectors, of tiles in order and in turn, by one warp and by two
    (problem(6, 17, K=1207, ldb=23, align_b=8), Config(4, 1, 32, 1, 2, 2, False)),
    (problem(6, 33, "float32", K=203, lda=7, align_a=4, ldb=41, align_b=4), Config(8, 2, 16, 1, 2, 1, False)),
    (
        problem(10, 6, "complex64", K=91, ldb=10, align_a=4, align_b=4, inplace=True),
        Config(4, 2, 16, 2, 2, 1, False),
    ),
]


@needs_host_compiler
@pytest.mark.parametrize(("p", "config"), every_second(HOST_CASES), ids=lambda v: str(v)[:60])
def test_the_kernel_run_on_the_host_is_exact_and_writes_nothing_else(
    p: TsmmProblem, config: Config, tmp_path: Path
) -> None:
    assert family.refuse(p, config, H200) is None
    rng = np.random.default_rng(p.K)
    alpha = {"one": 1, "general": 1 - 2j if is_complex(p.dtype) else -2}[p.alpha]
    beta = {"zero": 0, "one": 1, "general": 2j if is_complex(p.dtype) else 3}[p.beta]
    values, C = draw(rng, (p.K, p.M), p.dtype), draw(rng, (p.M, p.N), p.dtype)
    outputs = values[:, : p.N] if p.inplace else draw(rng, (p.K, p.N), p.dtype)
    expected = alpha * (values @ C) + beta * outputs
    source = family.source(p, config, H200)
    for seed in (1, 2):
        A, memory_a = aligned(values, p.lda, p.align_a)
        if p.inplace:
            B, memory_b = A[:, : p.N], memory_a
        else:
            B, memory_b = aligned(outputs if beta else np.full_like(outputs, np.nan), p.ldb, p.align_b)
        before = memory_a.copy(), memory_b.copy()
        kernel = HostKernel(source, tmp_path, readable=[A, B, C], writable=[B], seed=seed)
        emulate(kernel, p, config, (A, C, B), (alpha, beta))
        is_staged = not is_complex_kernel(p, config, shape_of(p, H200))
        assert kernel.prefetched == (len(sectors_in_part(B)) if is_staged and prefetches_ends(p) else 0)
        np.testing.assert_array_equal(B, expected)
        B[...] = outputs if beta or p.inplace else np.nan
        for memory, copy in zip((memory_a, memory_b), before, strict=True):
            np.testing.assert_array_equal(memory, copy)
