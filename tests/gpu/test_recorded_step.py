"""Lanczos steps that are launched as graphs give what steps of single calls give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import Recorder, models
from blockvec.backends.cuda import krylov_steps
from solvers import eigsh
from solvers.iterations import filtered_lanczos, krylov, spectrum, verification
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


@pytest.mark.parametrize("model", ["laplace2d:n=40", "hofstadter:nx=36,ny=36,p=1,q=3"])
def test_filters_around_a_number_are_repeated(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A = models.model(model)
    recorded: list[Any] = []
    record = Recorder.record
    monkeypatch.setattr(Recorder, "record", lambda self, call: recorded.append(call) or record(self, call))

    def solve() -> np.ndarray[Any, Any]:
        options = {"sigma": 0.3, "method": "filter", "tol": 1e-10, "convergence": "norm", "rng": 0}
        w, X = eigsh(A, 6, device="gpu", **options)
        assert np.linalg.norm(A @ X.get() - X.get() * w.get(), axis=0).max() < 1e-8
        return w.get()

    w = solve()
    assert recorded
    values = np.linalg.eigvalsh(A.toarray())
    nearest = np.sort(values[np.argsort(np.abs(values - 0.3))[:6]])
    np.testing.assert_allclose(w, nearest, atol=1e-9)
    for module in (filtered_lanczos, spectrum, verification):
        monkeypatch.setattr(module, "recorder_for", lambda *_: None)
    recorded.clear()
    np.testing.assert_allclose(solve(), w, atol=1e-9)
    assert not recorded
