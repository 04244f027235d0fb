"""Bytes, flops and time limits of problems, against counts made element by element."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.problem import SpmmvProblem, StreamProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.roofline import (
    Ceilings,
    Traffic,
    flops,
    fraction,
    gather_time,
    memory_time,
    partial_sectors,
    sector_traffic,
    time_limit,
    traffic,
)

DTYPES = ("float32", "float64", "complex64", "complex128")
dtypes = st.sampled_from(DTYPES)
small = st.integers(0, 5)
betas = st.sampled_from(["zero", "one", "general"])
MACHINE = Ceilings(40.0, 20.0, 50.0, {"float32": 400.0, "float64": 200.0})


def size(dtype: str) -> int:
    return np.dtype(dtype).itemsize


class Memory:
    """Counts each element once, however often it is touched, as a cache that never forgets does."""

    def __init__(self) -> None:
        self.read: dict[object, int] = {}
        self.written: dict[object, int] = {}
        self.flops = 0

    def load(self, name: str, i: int, j: int, dtype: str) -> None:
        self.read[name, i, j] = size(dtype)

    def store(self, name: str, i: int, j: int, dtype: str) -> None:
        self.written[name, i, j] = size(dtype)

    def multiply_add(self, left: str, right: str) -> None:
        # Real parts multiply pairwise, each product is added to one sum.
        parts = (2 if left.startswith("complex") else 1) * (2 if right.startswith("complex") else 1)
        self.flops += 2 * parts

    @property
    def traffic(self) -> Traffic:
        return Traffic(sum(self.read.values()), sum(self.written.values()))


@given(small, small, small, dtypes, dtypes, betas)
def test_traffic_and_flops_of_inner_products_are_those_of_the_triple_loop(
    K: int, M: int, N: int, a: str, b: str, beta: str
) -> None:
    problem = TsmttsmProblem(K, M, N, a, b, lda=M, ldb=N, beta=beta)  # type: ignore[arg-type]
    memory = Memory()
    for i, j in itertools.product(range(M), range(N)):
        if beta != "zero":
            memory.load("C", i, j, problem.dtype)
        memory.store("C", i, j, problem.dtype)
    for k, i in itertools.product(range(K), range(M)):
        memory.load("A", k, i, a)
    for k, j in itertools.product(range(K), range(N)):
        memory.load("B", k, j, b)
    for _ in range(K * M * N):
        memory.multiply_add(a, b)
    assert traffic(problem) == memory.traffic
    assert flops(problem) == memory.flops


@given(small, small, dtypes)
def test_a_gram_matrix_reads_its_block_once(K: int, M: int, dtype: str) -> None:
    problem = TsmttsmProblem(K, M, M, dtype, dtype, lda=M, ldb=M, conj=dtype.startswith("complex"), same=True)
    assert traffic(problem).read_bytes == K * M * size(dtype)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), small, dtypes, dtypes, betas)
def test_traffic_and_flops_of_a_sparse_product_are_those_of_the_loop_over_rows(
    seed: int, n: int, width: int, matrix: str, x: str, beta: str
) -> None:
    pattern = np.random.default_rng(seed).random((n, n)) < 0.4
    np.fill_diagonal(pattern, True)  # so that every row of X is wanted
    nnz = int(pattern.sum())
    problem = SpmmvProblem(n, n, nnz, width, matrix, x, width, width, index_bytes=4, beta=beta)  # type: ignore[arg-type]
    memory = Memory()
    matrix_bytes = 4 * (n + 1)
    for i, j in zip(*np.nonzero(pattern), strict=True):
        matrix_bytes += size(matrix) + 4
        for column in range(width):
            memory.load("X", int(j), column, x)
            memory.multiply_add(matrix, x)
            if beta != "zero":
                memory.load("Y", int(i), column, problem.dtype)
            memory.store("Y", int(i), column, problem.dtype)
    counted = memory.traffic
    assert traffic(problem) == Traffic(counted.read_bytes + matrix_bytes, counted.write_bytes)
    assert flops(problem) == memory.flops


def test_a_stream_counts_its_blocks() -> None:
    problem = StreamProblem("axpby", K=100, M=3, dtype="complex64", reads=2, writes=1)
    assert traffic(problem) == Traffic(2 * 100 * 3 * 8, 100 * 3 * 8)


def test_reads_alone_writes_alone_and_copies_run_at_their_own_rates() -> None:
    giga = 10**9
    assert memory_time(Traffic(40 * giga, 0), MACHINE) == pytest.approx(1.0)
    assert memory_time(Traffic(0, 20 * giga), MACHINE) == pytest.approx(1.0)
    assert memory_time(Traffic(25 * giga, 25 * giga), MACHINE) == pytest.approx(1.0)
    assert memory_time(Traffic(65 * giga, 25 * giga), MACHINE) == pytest.approx(2.0)
    assert memory_time(Traffic(25 * giga, 45 * giga), MACHINE) == pytest.approx(2.0)


def test_a_mix_takes_the_time_of_the_measured_mixes_next_to_it() -> None:
    machine = dataclasses.replace(MACHINE, mixed_gb_s=((0.2, 25.0), (0.8, 10.0)))
    giga = 10**9
    assert memory_time(Traffic(20 * giga, 5 * giga), machine) == pytest.approx(1.0)
    assert memory_time(Traffic(2 * giga, 8 * giga), machine) == pytest.approx(1.0)
    # Half way between the mixes, and between a mix and a stream by itself: half of each one's time.
    assert memory_time(Traffic(65 * giga, 35 * giga), machine) == pytest.approx(50 / 25 + 50 / 50)
    assert memory_time(Traffic(10 * giga, 90 * giga), machine) == pytest.approx(50 / 10 + 50 / 20)
    for traffic_ in (Traffic(40 * giga, 0), Traffic(0, 20 * giga), Traffic(25 * giga, 25 * giga)):
        assert memory_time(traffic_, machine) == pytest.approx(memory_time(traffic_, MACHINE))
    assert memory_time(Traffic(0, 0), machine) == 0.0


def test_the_limit_is_memory_or_arithmetic_whichever_takes_longer() -> None:
    narrow = TsmttsmProblem(10**6, 1, 1, "float64", "float64", 1, 1)
    wide = TsmttsmProblem(10**6, 64, 64, "float64", "float64", 64, 64)
    assert time_limit(narrow, MACHINE) == pytest.approx(16e6 / 40e9, rel=1e-3)
    assert time_limit(wide, MACHINE) == pytest.approx(2 * 64 * 64 * 1e6 / 200e9)


def test_single_precision_has_its_own_peak_and_an_unknown_peak_does_not_limit() -> None:
    wide = TsmttsmProblem(10**6, 64, 64, "complex64", "complex64", 64, 64)
    assert time_limit(wide, MACHINE) == pytest.approx(8 * 64 * 64 * 1e6 / 400e9)
    memory_only = Ceilings(40.0, 20.0, 50.0)
    assert time_limit(wide, memory_only) == pytest.approx(memory_time(traffic(wide), memory_only))


def test_a_fraction_is_the_limit_over_the_time() -> None:
    problem = TsmmProblem(10**6, 8, 8, "float64", "float64", 8, 8)
    limit = time_limit(problem, MACHINE)
    assert fraction(problem, limit, MACHINE) == 1.0
    assert fraction(problem, 4 * limit, MACHINE) == 0.25
    assert fraction(problem, 0.0, MACHINE) == 0.0


def test_rows_that_begin_or_end_within_sectors_fill_them_in_part() -> None:
    # Rows of 64 bytes begin and end at bytes 8, 16, 24 and 0 of a sector in turn.
    assert partial_sectors(8, 61, 8) == 2 * 3 / 4
    assert partial_sectors(8, 64, 8) == 2  # all at byte 8
    assert partial_sectors(9, 9, 8) == 0  # contiguous


def test_fused_sums_add_operations_and_a_chained_block_adds_its_traffic() -> None:
    n, nnz, width = 10, 30, 4
    plain = SpmmvProblem(n, n, nnz, width, "float64", "complex128", width, width)
    block = n * width * 16
    fused = dataclasses.replace(plain, dots=("xx", "yy"), gram=("xy",))
    assert traffic(fused) == traffic(plain)
    assert flops(fused) == flops(plain) + 8 * n * width * (2 + width)
    assert flops(plain) == 4 * nnz * width
    assert traffic(plain).write_bytes == block
    for chain, read in (("zero", 0), ("one", block), ("general", block)):
        chained = dataclasses.replace(plain, chain=chain, ldz=width)
        assert traffic(chained).read_bytes == traffic(plain).read_bytes + read
        assert traffic(chained).write_bytes == 2 * block


def test_the_gather_bound_is_a_row_of_x_from_the_shared_cache_for_every_entry() -> None:
    problem = SpmmvProblem(1000, 1000, 5000, 8, "complex128", "float64", 8, 8)
    shared = dataclasses.replace(MACHINE, l2_gb_s=100.0)
    assert gather_time(problem, shared) == pytest.approx(5000 * 8 * 8 / 100e9)
    assert gather_time(problem, MACHINE) is None
    assert gather_time(StreamProblem("axpby", 9, 2, "float32", 2, 1), shared) is None


def test_a_gram_matrix_needs_the_products_of_one_triangle() -> None:
    gram = TsmttsmProblem(1000, 8, 8, "float64", "float64", 8, 8, same=True)
    assert flops(gram) == 2 * 1000 * 8 * 9 / 2


def test_rows_of_odd_pitch_touch_sectors_by_their_average() -> None:
    problem = TsmttsmProblem(4000, 8, 8, "float64", "float64", 61, 61, same=True)
    # Rows begin at bytes 8, 16, 24 and 0 of a sector in turn: three, three, three, two sectors.
    assert sector_traffic(problem).read_bytes == 4000 * (3 + 3 + 3 + 2) * 32 // 4


@given(small, small, small, dtypes, dtypes, betas)
def test_traffic_and_flops_of_combinations_are_those_of_the_triple_loop(
    K: int, M: int, N: int, a: str, c: str, beta: str
) -> None:
    problem = TsmmProblem(K, M, N, a, c, lda=M, ldb=N, beta=beta)  # type: ignore[arg-type]
    memory = Memory()
    for k, j in itertools.product(range(K), range(N)):
        if beta != "zero":
            memory.load("B", k, j, problem.dtype)
        memory.store("B", k, j, problem.dtype)
    for k, i in itertools.product(range(K), range(M)):
        memory.load("A", k, i, a)
    for i, j in itertools.product(range(M), range(N)):
        memory.load("C", i, j, c)
    for _ in range(K * M * N):
        memory.multiply_add(a, c)
    assert traffic(problem) == memory.traffic
    assert flops(problem) == memory.flops
