"""Checks of the tuner on NumPy arrays: right products pass, wrong ones do not, nothing is spoilt."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockvec.backends.cuda.tuning import dense as cuda_tuner
from blockvec.backends.cuda.tuning.dense import DenseOperands, with_rows
from blockvec.bench import tuning
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem
from blockvec.kernels.tuning.selection import Variant

DTYPES = ["float32", "complex128"]
SHAPES = [(1, 1), (8, 8), (17, 17), (5, 2)]
PROBLEMS = [
    *tuning.problems(["dot", "gram", "combine", "inplace"], DTYPES, SHAPES),
    *tuning.problems(["dot", "gram", "combine"], ["float64", "complex128"], [(8, 8)], ld=61),
    *tuning.problems(["combine"], ["float64"], [(7, 7)], beta=True),
    *tuning.problems(["dot", "combine"], ["float64"], [(512, 16)]),
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
    cuda_tuner._exact_numbers.cache_clear()


def _fill_random(gpu: Any, flat: Any, seed: int) -> None:
    flat[...] = np.random.default_rng(seed).uniform(-1, 1, flat.shape)


def kernel(problem: TsmttsmProblem | TsmmProblem, rows_lost: int) -> Callable[..., None]:
    """A product as kernels take it, that leaves out the last rows."""

    def run(first: Any, second: Any, out: Any, alpha: int, beta: int) -> None:
        A, B = np.asarray(first), np.asarray(second)
        rows = len(A) - rows_lost
        if isinstance(problem, TsmttsmProblem):
            out[...] = (A.conj() if problem.conj else A)[:rows].T @ B[:rows]
            return
        product = A @ B + (np.asarray(out) if beta else 0)
        target = first[:, : problem.N] if problem.inplace else out
        target[:rows] = product[:rows]

    return run


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_right_products_pass_wrong_ones_do_not_and_operands_stay(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu: Any = "gpu"
    setup = DenseOperands(gpu, with_rows(problem, 1 << 16), {}, lambda: None)  # type: ignore[arg-type, return-value]
    before = [np.array(operand) for operand in setup._exact]
    assert set(np.unique(before[0].real)) <= {-1, 0, 1}
    for rows_lost, verdict in ((0, ""), (50, "differs from the reference"), (0, "")):
        monkeypatch.setattr(setup, "_runner", lambda _, small, lost=rows_lost: kernel(small, lost))
        assert setup.check(Variant("x")) == verdict
    for operand, kept in zip(setup._exact[:2], before, strict=False):
        assert np.array_equal(operand, kept)
    if isinstance(problem, TsmmProblem) and problem.inplace:
        assert abs(next(setup._sets)[1]).sum(axis=0).max() <= 1 + 1e-5
