"""Filters that are launched as graphs give what single calls give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import Recorder, models
from solvers import eigsh
from solvers.iterations import filtering, spectrum, verification

pytestmark = pytest.mark.gpu


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
    for module in (filtering, spectrum, verification):
        monkeypatch.setattr(module, "recorder_for", lambda *_: None)
    recorded.clear()
    np.testing.assert_allclose(solve(), w, atol=1e-9)
    assert not recorded
