"""Solves on a GPU: filters that are graphs, and calls drawn by seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import Recorder, models
from solvers import eigsh
from solvers.iterations import filtering, spectrum
from tests.drawn.judge import attempt, is_accepted
from tests.drawn.problems import KINDS
from tests.matrices import nearest

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
    np.testing.assert_allclose(w, nearest(np.linalg.eigvalsh(A.toarray()), 0.3, 6), atol=1e-9)
    for module in (filtering, spectrum):
        monkeypatch.setattr(module, "recorder_for", lambda *_: None)
    recorded.clear()
    np.testing.assert_allclose(solve(), w, atol=1e-9)
    assert not recorded


SEEDS = {"doubled": 160, "generalised": 60, "sizeable": 40, "single": 60, "penalty": 20}
CHUNK = 20
MOST_ROWS = 4000


@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind in KINDS for first in range(0, SEEDS[kind], CHUNK)]
)
def test_drawn_calls_are_answered_rightly_on_a_gpu(kind: str, first: int) -> None:
    draws = [KINDS[kind](seed, MOST_ROWS) for seed in range(first, first + CHUNK)]
    verdicts = [(draw, attempt(draw, "gpu")) for draw in draws]
    wrong = [f"{v.outcome}: {draw} # {v.reason}" for draw, v in verdicts if not is_accepted(draw, v.outcome)]
    assert not wrong, "\n".join(wrong)
