"""Lanczos steps that are launched as graphs give what steps of single calls give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import models
from blockvec.backends.cuda import krylov_steps
from solvers import eigsh
from solvers.iterations import krylov
from solvers.iterations.recorded_step import RecordedStep

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_recorded_steps_compute_what_others_do(
    dtype: str, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = models.model("laplace2d:n=40").astype(dtype)
    monkeypatch.setattr(krylov_steps, "MOST_BYTES", -1)  # no launches of several steps
    repeated: list[Any] = []
    queue = RecordedStep.queue
    monkeypatch.setattr(RecordedStep, "queue", lambda step: repeated.append(step) or queue(step))

    def solve() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        tol = 1e-8 if dtype != "float32" else 1e-5
        options = {"which": "LA", "method": "lanczos", "block_size": block_size, "ncv": 24, "rng": 0}
        w, X = eigsh(A, 4, tol=tol, device="gpu", **options)
        return w.get(), X.get()

    (w, X), (again, X_again) = solve(), solve()
    assert repeated
    assert np.array_equal(w, again)
    assert np.array_equal(X, X_again)
    eps = float(np.finfo(dtype).eps)
    assert np.abs(X.conj().T @ X - np.eye(4)).max() < 100 * eps
    monkeypatch.setattr(krylov, "recorder_for", lambda *_: None)
    assert np.abs(solve()[0] - w).max() < 1e4 * eps
