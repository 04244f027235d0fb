"""Bytes, flops and time limits of problems, against counts made element by element."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.problem import SpmmvProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.roofline import (
    Ceilings,
    Traffic,
    flops,
    memory_time,
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


@pytest.mark.parametrize("operation", ["tsmttsm", "tsmm"])
@given(small, small, small, dtypes, dtypes, betas)
def test_traffic_and_flops_of_products_are_those_of_the_triple_loop(
    operation: str, K: int, M: int, N: int, a: str, b: str, beta: str
) -> None:
    kind, other, result = (
        (TsmttsmProblem, (K, N), (M, N)) if operation == "tsmttsm" else (TsmmProblem, (M, N), (K, N))
    )
    problem = kind(K, M, N, a, b, lda=M, ldb=N, beta=beta)
    memory = Memory()
    for i, j in itertools.product(*map(range, result)):
        if beta != "zero":
            memory.load("result", i, j, problem.dtype)
        memory.store("result", i, j, problem.dtype)
    for k, i in itertools.product(range(K), range(M)):
        memory.load("A", k, i, a)
    for k, j in itertools.product(*map(range, other)):
        memory.load("other", k, j, b)
    for _ in range(K * M * N):
        memory.multiply_add(a, b)
    assert traffic(problem) == memory.traffic
    assert flops(problem) == memory.flops


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
