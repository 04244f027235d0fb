"""Checks of the tuner on NumPy arrays: right products pass, wrong ones do not, nothing is spoilt."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockvec.backends.base import Candidate
from blockvec.kernels.measure import HostStopwatch
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem
from tests.benchmarks import dense_operands as cuda_tuner
from tests.benchmarks import tune
from tests.benchmarks.contest import Variant
from tests.benchmarks.dense_operands import DenseOperands, with_rows

DTYPES = ["float32", "complex128"]
SHAPES = [(1, 1), (8, 8), (17, 17), (5, 2)]
PROBLEMS = [
    *tune.problems(["dot", "gram", "combine", "inplace"], DTYPES, SHAPES),
    *tune.problems(["dot", "gram", "combine"], ["float64", "complex128"], [(8, 8)], ld=61),
    *tune.problems(["combine"], ["float64"], [(7, 7)], beta=True),
    *tune.problems(["dot", "combine"], ["float64"], [(512, 16)]),
]


class _Array(np.ndarray[Any, Any]):
    def get(self) -> np.ndarray[Any, Any]:
        return np.array(self)

    def set(self, numbers: np.ndarray[Any, Any]) -> None:
        assert (numbers.dtype, numbers.shape) == (self.dtype, self.shape)
        self[...] = numbers


def _array(numbers: Any) -> _Array:
    return np.array(numbers).view(_Array)


@pytest.fixture(autouse=True)
def numpy_for_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("cupy")
    fake.empty = lambda shape, dtype: _array(np.full(shape, np.nan, dtype))
    fake.asarray = _array
    fake.matmul = lambda A, B: _array(np.asarray(A) @ np.asarray(B))
    fake.array_equal = np.array_equal
    fake.cuda = types.SimpleNamespace(driver=types.SimpleNamespace(CUDADriverError=OSError))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(cuda_tuner, "EXACT_BYTES", 1 << 20)
    monkeypatch.setattr(cuda_tuner, "_fill_random", _fill_random)


def _fill_random(gpu: Any, flat: Any, seed: int) -> None:
    flat[...] = np.random.default_rng(seed).uniform(-1, 1, flat.shape)


def kernel(rows_lost: int, seen: list[Any]) -> Callable[..., None]:
    """A product as candidates compute it, that leaves out the last rows and keeps a copy of its operands."""

    def run(problem: Any, first: Any, second: Any, out: Any, alpha: int, beta: int) -> None:
        seen.append((np.array(first), np.array(second)))
        A, B = np.asarray(first), np.asarray(second)
        rows = len(A) - rows_lost
        if isinstance(problem, TsmttsmProblem):
            out[...] = (A.conj() if problem.conj else A)[:rows].T @ B[:rows]
            return
        product = A @ B + (np.asarray(out) if beta else 0)
        target = first[:, : problem.N] if problem.inplace else out
        target[:rows] = product[:rows]

    return run


class _Gpu:
    def launch(self, *arguments: Any) -> None:
        """Queue nothing: bursts need no stream to be kept busy."""


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_right_products_pass_wrong_ones_do_not_and_operands_stay(problem: Any) -> None:
    gpu: Any = _Gpu()
    seen: list[Any] = []
    others = {name: Candidate(name, kernel(lost, seen)) for name, lost in (("right", 0), ("wrong", 50))}
    setup = DenseOperands(gpu, with_rows(problem, 1 << 16), others, HostStopwatch)
    verdicts = [setup.check(Variant(name)) for name in ("right", "wrong", "right", "right")]
    assert verdicts == ["", "differs from the reference", "", ""]
    assert set(np.unique(seen[0][0].real)) <= {-1, 0, 1}
    for operand, kept in zip(seen[3], seen[0], strict=True):
        assert np.array_equal(operand, kept)
    if isinstance(problem, TsmmProblem) and problem.inplace:
        setup.time_in_turns([Variant("right")], 1e-6)
        assert abs(seen[4][1]).sum(axis=0).max() <= 1 + 1e-5
