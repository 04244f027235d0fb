"""Bytes, flops and time limits of problems, against the sizes of operands."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.problem import SpmmvProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.roofline import Ceilings, Traffic, flops, memory_time, traffic

DTYPES = ("float32", "float64", "complex64", "complex128")
dtypes = st.sampled_from(DTYPES)
small = st.integers(0, 5)
betas = st.sampled_from(["zero", "one", "general"])
MACHINE = Ceilings(40.0, 20.0, 50.0, {"float32": 400.0, "float64": 200.0})


def size(dtype: str) -> int:
    return np.dtype(dtype).itemsize


def work(left: str, right: str) -> int:
    """Real operations of a multiply-add: real parts multiply pairwise, each product is added to one sum."""
    return 2 * math.prod(2 if dtype.startswith("complex") else 1 for dtype in (left, right))


@pytest.mark.parametrize("operation", ["tsmttsm", "tsmm"])
@given(small, small, small, dtypes, dtypes, betas)
def test_products_move_every_element_of_their_operands_once(
    operation: str, K: int, M: int, N: int, a: str, b: str, beta: str
) -> None:
    kind, other, result = (
        (TsmttsmProblem, K * N, M * N) if operation == "tsmttsm" else (TsmmProblem, M * N, K * N)
    )
    problem = kind(K, M, N, a, b, lda=M, ldb=N, beta=beta)
    written = result * size(problem.dtype)
    read = K * M * size(a) + other * size(b) + (written if beta != "zero" else 0)
    assert traffic(problem) == Traffic(read, written)
    assert flops(problem) == K * M * N * work(a, b)


@given(st.integers(1, 6), st.integers(1, 36), small, dtypes, dtypes, betas)
def test_sparse_products_move_every_entry_and_every_element_of_their_blocks_once(
    n: int, nnz: int, width: int, matrix: str, x: str, beta: str
) -> None:
    problem = SpmmvProblem(n, n, nnz, width, matrix, x, width, width, index_bytes=4, beta=beta)  # type: ignore[arg-type]
    written = n * width * size(problem.dtype)
    read = nnz * (size(matrix) + 4) + 4 * (n + 1) + n * width * size(x)
    assert traffic(problem) == Traffic(read + (written if beta != "zero" else 0), written)
    assert flops(problem) == nnz * width * work(matrix, x)


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
