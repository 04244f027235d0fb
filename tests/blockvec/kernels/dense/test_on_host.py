"""The kernels of all dense families, run on the host thread by thread: exact, with the same bits."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockvec.kernels.dense import tsmttsm_mma
from blockvec.kernels.dense.layout import prefetches_ends
from blockvec.kernels.dense.sweep_mma import SweepMmaConfig as Sweep
from blockvec.kernels.dense.tsmm_fma import TsmmFmaConfig as CombineFma
from blockvec.kernels.dense.tsmm_mma import ROWS_3M, is_complex_kernel, shape_of
from blockvec.kernels.dense.tsmm_mma import TsmmMmaConfig as Mma
from blockvec.kernels.dense.tsmttsm_fma import TsmttsmFmaConfig as DotFma
from blockvec.kernels.dense.tsmttsm_mma_ring import TsmttsmMmaConfig as Dots
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import SweepProblem, TsmmProblem, TsmttsmProblem, is_complex
from tests.blocks import address, aligned, counters_are_ready, draw, sectors_in_part
from tests.blocks import tsmm_problem as combine
from tests.blocks import tsmttsm_problem as dot
from tests.devices import H200
from tests.emulator.host import HostKernel, emulated_map, needs_host_compiler, sampled

NAMES = {DotFma: "tsmttsm_fma", Dots: "tsmttsm_mma", CombineFma: "tsmm_fma"}
NAMES |= {Mma: "tsmm_mma", Sweep: "sweep_mma"}
Dot3m = functools.partial(Dots, three_m=True)
TILES = {"split": 1, "rows": ROWS_3M, "stages": 1, "slabs": 0, "shared_coefficients": True}
Combine3m = functools.partial(Mma, three_m=True, **TILES)  # type: ignore[arg-type]
BLOCKS = 3  # of threads, unless a case tells another number


def sweep(M: int, N: int, dtype: str = "float64", *, K: int, **changes: Any) -> SweepProblem:
    return replace(SweepProblem(K, M, N, dtype, dtype, dtype, M, N), **changes)


def second(problem: Any, dtype: str) -> Any:
    """Change the type of the second operand."""
    return replace(problem, **{"dtype_b" if isinstance(problem, TsmttsmProblem) else "dtype_c": dtype})


CASES: list[tuple[Any, ...]] = [
    # every thread all of C; pairs of odd rows as vectors
    (dot(1, K=1, beta="general"), DotFma(1, 1, count=2, stages=2, steps=2, teams=2), 1),
    (dot(7, 5, K=533, alpha="general", beta="general"), DotFma(7, 5, count=2, teams=2)),
    (dot(5, dtype="complex128", K=333, same=True), DotFma(5, 5, stages=2, steps=2, teams=2)),
    # tiles with guards: blocked, interleaved, unrolled, more than a warp
    (dot(20, 13, K=333), DotFma(10, 4, stages=2, steps=4, unroll=2, interleaved=True)),
    (dot(9, 8, "complex128", K=333, alpha="general"), DotFma(4, 3, interleaved=True, teams=2)),
    (dot(33, 17, K=233), DotFma(4, 3, steps=2, warps=2, teams=2, stages=2)),
    (dot(20, K=333, same=True), DotFma(7, 7, stages=2, steps=2, teams=2)),
    # single precision: chains into double precision registers and shared memory
    (dot(13, 8, "float32", K=733), DotFma(4, 4, steps=2, teams=2, sums="registers")),
    (dot(31, dtype="float32", K=333), DotFma(8, 8, steps=4, stages=2, teams=2, sums="shared")),
    (dot(6, 5, "complex64", K=2733), DotFma(6, 5, steps=8, stages=2, teams=2, sums="shared")),
    # a real and a complex operand, two precisions
    (second(dot(9, 8, "complex128", K=333), "float64"), DotFma(4, 3, teams=2)),
    (second(dot(3, 4, "float32", K=333), "complex128"), DotFma(3, 4, steps=2, stages=2, teams=2)),
    # views at odd places
    (dot(13, 8, K=233, lda=61, ldb=64, align_a=8), DotFma(4, 4, steps=2, stages=2, teams=2)),
    (
        dot(5, 4, "complex64", K=233, lda=9, ldb=7, align_a=8, align_b=8),
        DotFma(5, 2, teams=2, sums="registers"),
    ),
    # tensor cores
    # real: odd and even numbers of groups and shares, more rows a product, folding, tiles, gaps, conflicts
    (dot(8, K=333), Dots(32, 3, 1, 1, 4), 3),
    (dot(7, 5, K=211), Dots(48, 2, 1, 1, 2), 3),
    (dot(16, 8, K=333), Dots(36, 3, 1, 1, 4), 3),
    (dot(4, K=333), Dots(36, 3, 1, 1, 4, producers=1), 3),
    (dot(1, K=1001), Dots(64, 2, 1, 1, 4, fold=8), 3),
    (dot(3, 2, K=301, alpha="general", beta="general"), Dots(56, 2, 1, 1, 3, fold=2), 2),
    (dot(33, 17, K=61), Dots(16, 2, 1, 1, 2, producers=1), 2),
    (dot(24, 40, K=61), Dots(16, 2, 1, 2, 2), 3),
    (dot(55, 23, "float32", K=61), Dots(16, 2, 2, 2, 2), 2),
    (dot(24, K=61, same=True), Dots(16, 2, 1, 1, 2), 2),
    (dot(29, K=61, same=True), Dots(16, 2, 2, 2, 2), 2),
    (dot(8, K=5), Dots(32, 3, 1, 1, 4), 1),
    (dot(40, 16, K=300), Dots(16, 3, 1, 1, 4), 11),
    # complex: both roles of the operands, uneven shares, the triangle
    (dot(9, 20, "complex128", K=61), Dots(16, 2, 1, 2, 2), 2),
    (dot(20, 9, "complex128", K=61, conj=False), Dots(16, 2, 2, 1, 2), 2),
    (dot(33, 5, "complex128", K=61), Dots(16, 2, 4, 1, 2), 2),
    (dot(12, 9, "complex128", K=61), Dots(16, 2, 1, 1, 2), 2),
    (dot(2, dtype="complex128", K=333, beta="general"), Dots(32, 2, 1, 1, 4, fold=4), 3),
    (dot(20, dtype="complex128", K=61, same=True), Dots(16, 2, 1, 1, 2), 2),
    (dot(20, dtype="complex128", K=61, same=True, conj=False), Dots(16, 2, 1, 1, 2), 2),
    # the pinwheel of an odd number of groups squared
    (dot(20, dtype="complex128", K=61), Dots(16, 2, 2, 2, 2), 2),
    (dot(33, 40, "complex128", K=61, conj=False), Dots(16, 2, 2, 2, 1), 2),
    (dot(39, dtype="complex128", K=61, same=True), Dots(16, 2, 2, 2, 2), 2),
    (dot(24, dtype="complex64", K=61, conj=False), Dots(16, 2, 2, 2, 2, ahead=False), 2),
    # a triangle of groups of columns in four parts
    (dot(60, dtype="complex128", K=33, same=True), Dots(16, 2, 2, 2, 1), 2),
    (dot(32, dtype="complex128", K=61, same=True, conj=False), Dots(16, 2, 2, 2, 2), 2),
    (dot(50, dtype="complex128", K=97, same=True), Dots(16, 3, 2, 2, 2, unroll=1, ahead=True), 2),
    (dot(15, dtype="complex64", K=61, same=True), Dots(16, 2, 2, 2, 2), 2),
    (dot(55, dtype="complex128", K=61, same=True), Dot3m(16, 3, 2, 2, 2, unroll=1, ahead=True), 2),
    # warps that take stages in turn, some more of them than others
    (dot(39, dtype="complex128", K=203), Dots(16, 3, 2, 2, 2, unroll=1, ahead=True), 3),
    (dot(16, dtype="complex128", K=203), Dots(20, 5, 1, 1, 4, unroll=1, producers=1, ahead=True), 2),
    (dot(16, dtype="complex128", K=33), Dots(20, 5, 1, 1, 4, unroll=1, ahead=True), 2),
    # three real products: uneven shares, triangles, rows that begin in one bank, and views
    (dot(9, 20, "complex128", K=61), Dot3m(16, 2, 1, 2, 2), 2),
    (dot(20, 9, "complex128", K=61, conj=False), Dot3m(16, 2, 2, 1, 2), 2),
    (dot(12, 9, "complex128", K=61, alpha="general", beta="general"), Dot3m(16, 2, 1, 1, 2), 2),
    (dot(2, dtype="complex128", K=333), Dot3m(32, 2, 1, 1, 4, fold=4), 3),
    (dot(20, dtype="complex128", K=61, same=True), Dot3m(16, 2, 1, 1, 2), 2),
    (dot(39, dtype="complex128", K=61, same=True, conj=False), Dot3m(16, 2, 2, 2, 2), 2),
    (dot(24, 40, "complex128", K=203), Dot3m(20, 3, 1, 2, 2, unroll=1, ahead=True), 2),
    (dot(32, dtype="complex128", K=203, conj=False), Dot3m(20, 3, 2, 2, 2, producers=1), 3),
    (dot(32, 24, "complex64", K=203), Dot3m(20, 3, 2, 2, 2), 3),
    (dot(16, 8, "complex128", K=151, lda=61, ldb=64), Dot3m(32, 3, 1, 1, 4, producers=4), 2),
    # views, odd offsets, one operand in pieces
    (dot(13, 8, K=151, lda=61, ldb=64, align_a=8), Dots(32, 3, 1, 1, 4, producers=4), 2),
    (dot(13, 8, K=151, lda=61, align_a=8), Dots(32, 3, 1, 1, 4, producers=4), 2),
    (dot(5, 6, "complex128", K=151, lda=9), Dots(32, 3, 1, 1, 4, producers=4), 2),
    (dot(37, 8, K=151, lda=61, ldb=64, align_a=8), Dots(32, 3, 1, 1, 4, producers=8), 2),
    (dot(5, K=151, lda=9, align_a=8, same=True), Dots(32, 3, 1, 1, 4, producers=4), 2),
    # boxes: every offset modulo 16 bytes, more rows a product, stages in turn, few rows, triangles
    (dot(37, 25, "float32", K=151, lda=61, ldb=25, align_a=4), Dots(32, 3, 1, 1, 4), 2),
    (dot(11, 21, "complex64", K=151, lda=13, ldb=22, align_a=8, align_b=8), Dots(48, 2, 1, 1, 2), 2),
    (dot(41, 42, "complex128", K=51, lda=43, ldb=42), Dot3m(16, 3, 2, 2, 2, unroll=1, ahead=True), 2),
    (dot(49, K=3, lda=50, align_a=8, same=True), Dots(16, 2, 1, 2, 2), 1),
    (dot(50, dtype="complex64", K=150, lda=51, align_a=8, same=True), Dot3m(32, 3, 2, 2, 2), 2),
    # single precision: bulk copies that leave up to three numbers, folding, pieces of 4 and 8 bytes
    (dot(7, 5, "float32", K=211), Dots(48, 2, 1, 1, 2), 3),
    (dot(1, dtype="float32", K=1003), Dots(64, 2, 1, 1, 4, fold=8), 3),
    (dot(20, 9, "complex64", K=61, alpha="general", beta="general"), Dots(16, 2, 2, 1, 2), 2),
    (dot(13, 3, "float32", K=151, lda=61, ldb=5, align_a=4, align_b=4), Dots(32, 3, 1, 1, 4, producers=4), 2),
    (dot(5, 6, "complex64", K=151, lda=9, align_a=4), Dots(32, 3, 1, 1, 4, producers=4), 2),
    # a thread per row; pairs of odd rows as vectors; C in registers
    (combine(4, K=333), CombineFma(1, 4, 2, 2, 4, 2, "registers", teams=2)),
    (combine(7, 5, K=333, alpha="general", beta="general"), CombineFma(1, 5, 2, 2, 7, 2, teams=2)),
    # chunks beyond those that each warp begins with
    (combine(7, 5, K=3333, alpha="general", beta="general"), CombineFma(1, 5, 2, 2, 7, 2, teams=2)),
    (combine(3, 9, "complex64", K=2003), CombineFma(2, 5, 2, kt=3, stages=3, teams=3)),
    (combine(40, 3, "float32", K=803), CombineFma(4, 1, 1, kt=4, stages=2, teams=2)),
    (combine(40, 5, "float32", K=1403), CombineFma(4, 2, 1, kt=4, stages=6, teams=2)),
    # several threads per row
    (combine(20, 13, K=333), CombineFma(4, 4, 2, kt=2, teams=2)),
    (combine(20, K=333, alpha="general"), CombineFma(4, 5, 4, kt=2, stages=2, teams=2)),
    (combine(33, 63, "float32", K=233), CombineFma(16, 4, 4, kt=4, stages=2, teams=2)),
    (
        combine(9, 10, "complex64", K=333, alpha="general", beta="general"),
        CombineFma(2, 5, 2, kt=2, unroll_k=2, stages=2, teams=2),
    ),
    # a real and a complex operand, two precisions
    (second(combine(5, 3, "complex128", K=333), "float64"), CombineFma(2, 2, 2, kt=3, stages=2, teams=2)),
    (
        second(combine(5, 6, "float32", K=333, beta="general"), "complex128"),
        CombineFma(2, 3, 2, kt=2, stages=2, teams=2),
    ),
    # in place
    (combine(16, K=333, inplace=True, beta="general"), CombineFma(8, 2, 2, kt=2, stages=2, teams=2)),
    (combine(16, 9, K=333, inplace=True, ldb=16), CombineFma(4, 3, 2, kt=2, teams=2)),
    # views at odd places
    (
        combine(13, 7, K=233, lda=61, ldb=9, align_a=8, align_b=8, beta="general"),
        CombineFma(4, 2, 2, kt=2, stages=2, teams=2),
    ),
    (
        combine(5, 3, "complex64", K=233, lda=9, ldb=7, align_a=8, align_b=8),
        CombineFma(1, 3, 2, 2, 5, teams=2),
    ),
    # tensor cores: warps, split, rows, stages, slabs, shared_coefficients
    (combine(8, K=333), Mma(4, 1, 32, 2, 2, False)),
    (combine(1, K=1001), Mma(4, 1, 64, 3, 1, False)),
    (combine(13, 9, K=511, alpha="general"), Mma(4, 2, 16, 2, 1, False)),
    (combine(7, 30, K=300, beta="one"), Mma(8, 4, 32, 2, 2, False)),
    (combine(21, 17, K=203, beta="general"), Mma(8, 2, 32, 1, 1, True)),
    (combine(9, 5, K=407, lda=11, ldb=8, align_a=8), Mma(4, 1, 32, 2, 2, False)),
    (combine(16, 12, K=130, lda=20, ldb=12, beta="general"), Mma(4, 2, 16, 3, 2, False)),
    (combine(11, K=267, inplace=True), Mma(4, 1, 32, 2, 2, False)),
    (combine(12, 7, K=267, ldb=12, inplace=True, beta="one"), Mma(4, 1, 32, 2, 2, False)),
    (combine(3, 6, K=4), Mma(4, 1, 32, 2, 2, False)),
    (combine(5, dtype="complex128", K=333), Mma(4, 1, 16, 2, 2, False)),
    (combine(9, 13, "complex128", K=151, alpha="general"), Mma(8, 4, 16, 2, 1, False)),
    (combine(6, 11, "complex128", K=97, beta="general"), Mma(4, 2, 8, 2, 1, True)),
    (combine(4, 7, "complex128", K=140, lda=5, ldb=9, align_b=8), Mma(4, 1, 16, 2, 2, False)),
    (combine(10, 6, "complex128", K=90, ldb=10, inplace=True), Mma(4, 2, 16, 2, 1, False)),
    (combine(13, 9, "float32", K=511, alpha="general"), Mma(4, 2, 32, 2, 1, False)),
    (combine(7, 30, "float32", K=299, beta="one"), Mma(8, 4, 32, 2, 2, True)),
    (combine(9, 5, "float32", K=407, lda=11, ldb=7, align_a=4, align_b=4), Mma(4, 1, 32, 2, 2, False)),
    (combine(1, dtype="float32", K=1003), Mma(4, 1, 64, 3, 1, False)),
    (combine(5, dtype="complex64", K=331), Mma(4, 1, 16, 2, 2, False)),
    (combine(6, 11, "complex64", K=97, beta="general", align_b=8), Mma(4, 2, 8, 2, 1, True)),
    # what is left of the columns taken in turns
    (combine(7, 50, K=300, beta="general"), Mma(4, 4, 64, 2, 1, False)),
    (combine(9, 27, "complex128", K=151, alpha="general"), Mma(8, 4, 32, 2, 2, False)),
    # through slabs of single warps: whole and half groups of columns
    (combine(16, dtype="complex64", K=203), Mma(4, 1, 16, 2, 1, True)),
    (combine(23, 29, "complex64", K=203, alpha="general"), Mma(4, 1, 32, 2, 1, True)),
    (combine(45, 47, "complex128", K=77), Mma(4, 1, 8, 2, 2, True)),
    # long rows of B end within sectors, of tiles in order and in turn, by one warp and by two
    (combine(6, 17, K=1207, ldb=23, align_b=8), Mma(4, 1, 32, 2, 2, False)),
    (combine(6, 33, "float32", K=203, lda=7, align_a=4, ldb=41, align_b=4), Mma(8, 2, 16, 2, 1, False)),
    (
        combine(10, 6, "complex64", K=91, ldb=10, align_a=4, align_b=4, inplace=True),
        Mma(4, 2, 16, 2, 1, False),
    ),
    # three real products
    (combine(45, 47, dtype="complex128", K=333), Combine3m(4)),
    (combine(9, 33, dtype="complex128", K=151, alpha="general"), Combine3m(8)),
    (combine(16, dtype="complex128", K=1023, ldb=19), Combine3m(4)),
    (combine(11, 10, dtype="complex128", K=77, inplace=True, ldb=11), Combine3m(4)),
    (combine(20, 30, "complex64", K=330), Combine3m(4)),
    (combine(7, 9, "complex64", K=203, align_b=8, alpha="general"), Combine3m(4)),
    (combine(36, 20, "complex64", K=203, ldb=22), Combine3m(4)),
    (combine(5, dtype="complex128", K=3), Combine3m(4)),
    # a basis of many columns
    (combine(33, 5, K=101), Sweep(32, 3, 4, 2), 3),
    (combine(32, 16, K=101, beta="one"), Sweep(64, 2, 4, 1), 2),
    (combine(21, 7, "complex128", K=61, alpha="general", beta="general"), Sweep(16, 2, 4, 2), 3),
    (combine(53, 3, K=61, lda=55, ldb=9, align_a=8, align_b=8, alpha="general"), Sweep(16, 2, 4, 4), 1),
    (combine(24, 16, K=61, ldb=24, inplace=True), Sweep(32, 2, 4, 2), 2),
    (sweep(33, 5, K=101), Sweep(32, 3, 4, 2), 3),
    (sweep(64, 16, K=133), Sweep(16, 3, 4, 4), 2),
    (sweep(20, 9, "complex128", K=61), Sweep(16, 3, 4, 2), 2),
    (sweep(30, 4, "complex128", K=61, lda=31, ldb=31), Sweep(8, 2, 4, 4), 2),
    (sweep(5, 8, K=61, lda=13, ldb=13, align_a=8, align_b=8), Sweep(64, 2, 4, 1), 1),
]


# ---- the kernels


def drawn(p: Any, rng: np.random.Generator) -> tuple[list[np.ndarray], list[Any]]:
    """Draw the operands in the order of the kernels, and the memory of the tall ones."""
    lds, aligns = ((p.lda, p.ldb), (p.align_a, p.align_b))
    types = [p.dtype_a, getattr(p, "dtype_b", p.dtype)]

    def tall(i: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        return aligned(draw(rng, (p.K, width), types[i]), lds[i], aligns[i])

    (A, memory_a), own = tall(0, p.M), getattr(p, "same", False) or getattr(p, "inplace", False)
    B, memory_b = (A[:, : p.N], memory_a) if own else tall(1, p.N)
    tall_memory = [memory_a] if own else [memory_a, memory_b]
    if isinstance(p, TsmttsmProblem):
        return [A, A if p.same else B, draw(rng, (p.M, p.N), p.dtype)], tall_memory
    if isinstance(p, TsmmProblem):
        return [A, draw(rng, (p.M, p.N), p.dtype_c), B], tall_memory
    return [A, B, draw(rng, (p.M, p.N), p.dtype), draw(rng, (p.N, p.N), p.dtype)], tall_memory


def results(p: Any, operands: list[np.ndarray], alpha: complex, beta: complex) -> dict[int, np.ndarray]:
    """Compute what operands, by their places, must become."""
    if isinstance(p, TsmttsmProblem):
        A, B, C = (x.astype(np.complex128) if is_complex(p.dtype) else x.astype(float) for x in operands)
        return {2: alpha * ((A.conj() if p.conj else A).T @ B) + beta * C}
    if isinstance(p, TsmmProblem):
        A, C, B = operands
        return {2: alpha * (A.astype(p.dtype) @ C.astype(p.dtype)) + beta * B}
    W, V, C, _ = operands
    new = V - W @ C
    return {1: new, 3: new.conj().T @ new}


def run(
    p: Any,
    config: Any,
    blocks: int,
    operands: list[np.ndarray],
    *factors: complex,
    seed: int = 1,
) -> HostKernel:
    """Launch the kernel of a configuration on so many blocks of threads."""
    name = NAMES[type(config)]
    name = name.replace("mma", "3m") if getattr(config, "three_m", False) else name
    family, device = FAMILIES[name], replace(H200, multiprocessors=blocks)
    n_bytes = family.workspace_bytes(p, config, device)
    workspace = np.full(n_bytes // 8, np.nan)
    workspace[:16] = 0
    arguments = family.pack(p, config, device)(*map(address, operands), *factors, address(workspace))
    given = tuple(np.void(bytes(a)) if isinstance(a, bytes) else a for a in arguments)
    described = family.kernel(p, config, H200)
    kernel = HostKernel(described.source(), operands, operands, seed)
    kernel((family.grid(p, config, device),), (described.threads,), given, described.shared_bytes)
    assert counters_are_ready(workspace) if n_bytes > 8 else not workspace.any()
    return kernel


@pytest.fixture(autouse=True)
def emulated_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = functools.partial(tsmttsm_mma.tensor_maps, encode=emulated_map)
    monkeypatch.setattr(tsmttsm_mma, "tensor_maps", maps)


@needs_host_compiler
@pytest.mark.parametrize("case", sampled([(case,) for case in CASES], 4), ids=lambda case: str(case)[:70])
def test_a_kernel_is_exact_repeats_bit_for_bit_and_writes_nothing_else(case: Any) -> None:
    p, config, blocks = (*case, BLOCKS)[:3]
    if getattr(p, "same", False):
        p = replace(p, ldb=p.lda, align_b=p.align_a)
    operands, memories = drawn(p, np.random.default_rng(p.K))
    alpha: complex = -2 if getattr(p, "alpha", "one") == "general" else 1
    general = 3 if (isinstance(p, TsmttsmProblem) and p.same) or not is_complex(p.dtype) else 1 - 2j
    beta = {"zero": 0, "one": 1, "general": general}[getattr(p, "beta", "zero")]
    factors = () if isinstance(p, SweepProblem) else (alpha, beta)
    expected = results(p, operands, alpha, beta)
    if not isinstance(p, SweepProblem) and beta == 0 and not getattr(p, "inplace", False):
        operands[2][...] = np.nan  # never read
    if isinstance(p, SweepProblem):
        operands[3][...] = np.nan
    start = {place: operands[place].copy() for place in expected}
    before = [memory.copy() for memory in memories]
    for seed in (1, 2):
        kernel = run(p, config, blocks, operands, *factors, seed=seed)
        for place, values in expected.items():
            np.testing.assert_array_equal(operands[place], values)
            operands[place][...] = start[place]
        for memory, copy in zip(memories, before, strict=True):
            np.testing.assert_array_equal(memory, copy)
        if isinstance(config, Mma):
            is_staged = not is_complex_kernel(p, config, shape_of(p, H200)) and prefetches_ends(p)
            assert kernel.prefetched == (len(sectors_in_part(operands[2])) if is_staged else 0)
