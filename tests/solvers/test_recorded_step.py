"""Steps that are repeated from a recording: the same results as steps whose operations are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, Recorder, as_operator, models
from solvers import drivers, eigsh
from solvers.iterations import krylov
from solvers.iterations.krylov import BlockKrylov, Counts
from solvers.iterations.recorded_step import RecordedStep

DTYPES = ("float64", "complex128", "float32")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[RecordedStep]:
    """Record steps on the host, too, where a recorder calls operations again."""
    steps: list[RecordedStep] = []
    queue = RecordedStep.queue

    def noted(step: RecordedStep) -> Any:
        steps.append(step)
        return queue(step)

    monkeypatch.setattr(RecordedStep, "queue", noted)
    monkeypatch.setattr(krylov, "recorder_for", lambda *_: Recorder("cpu"))
    monkeypatch.setattr(drivers, "SHORT_ROWS", 0)  # row-major blocks, as on a GPU
    return steps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("b", [1, 3])
def test_the_decomposition_holds_after_recorded_steps(
    dtype: str, b: int, recorded: list[RecordedStep]
) -> None:
    A = as_operator(models.model("laplace1d:n=300").astype(dtype))
    capacity, eps = 24, float(np.finfo(dtype).eps)
    basis = BlockKrylov(A, BlockVector.zeros(300, capacity, dtype), 0, b, np.random.default_rng(1), Counts())
    basis.append_random(b)
    for _ in range(4):
        while basis.can_expand():
            basis.expand()
        V, used = basis.columns(0, basis.m), basis.columns(0, basis.m + basis.w)
        H = basis.snapshot()["H"]
        assert np.abs((A @ V).array - used.array @ H).max() < 100 * eps * 4
        assert np.abs(used.gram() - np.eye(basis.m + basis.w)).max() < 100 * eps
        basis.restart(basis.ritz(), np.arange(2 * b))
    assert len(recorded) >= capacity // b


def test_steps_that_lose_rank_go_on_from_a_recording(recorded: list[RecordedStep]) -> None:
    """The space is exhausted while steps are repeated, and random directions replace lost ones."""
    A = as_operator(models.model("laplace1d:n=40").astype(float))
    values = np.linalg.eigvalsh(models.model("laplace1d:n=40").toarray())
    eigenvalues, X = eigsh(A, 3, which="LA", method="lanczos", block_size=2, ncv=10, rng=0, tol=1e-10)
    assert recorded
    assert np.allclose(eigenvalues, values[-3:], atol=1e-8)
    assert np.allclose(X.T @ X, np.eye(3), atol=1e-10)


def test_seeded_solves_with_recorded_steps_repeat_bit_for_bit(recorded: list[RecordedStep]) -> None:
    A = models.model("laplace2d:n=20")
    first, second = (eigsh(A, 4, which="SA", method="lanczos", ncv=24, rng=0) for _ in range(2))
    assert recorded
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_profile_calls_all_operations(recorded: list[RecordedStep]) -> None:
    import blockvec

    with blockvec.profile():
        eigsh(models.model("laplace2d:n=20"), 4, which="SA", method="lanczos", ncv=24, rng=0)
    assert not recorded
