"""Solves on a GPU: with a mass matrix and a given inverse, filters that are graphs, calls drawn by seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import Recorder, models
from solvers import eigsh
from solvers.iterations import filtering, spectrum, verification
from tests.drawn.judge import attempt, is_accepted
from tests.drawn.problems import KINDS
from tests.matrices import nearest

pytestmark = pytest.mark.gpu


def chain(n: int) -> tuple[Any, Any]:
    """Return stiffness and mass of linear elements on a ring, with a spring at each point."""
    turn = sp.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)))
    return 2.01 * sp.eye_array(n) - turn - turn.T, (4 * sp.eye_array(n) + turn + turn.T) / 6


@pytest.mark.parametrize("masses", [5, 40, 900])
def test_rows_without_masses_leave_no_infinite_values(masses: int) -> None:
    n, k = 1200, 4
    A, M = chain(n)
    keep = sp.diags_array((np.arange(n) < masses).astype(float))
    A, M = sp.csr_array(A), sp.csr_array(keep @ M @ keep)
    expected = np.sort(1 / sl.eigh(M.toarray(), A.toarray(), eigvals_only=True)[-k:])
    w, X = values_around_zero(A, M, k)
    assert np.allclose(w, expected, rtol=1e-9)
    assert np.abs(X.T @ (M @ X) - np.eye(k)).max() < 1e-10


@pytest.mark.parametrize("block_size", [1, 2])
def test_copies_on_rows_of_tiny_masses_are_found(block_size: int) -> None:
    """Two rings that are not connected, with the same values: the second one is light."""
    A, M = (sp.csr_array(sp.block_diag([B, 2.0**-40 * B])) for B in chain(600))
    one = sl.eigh(A.toarray()[:600, :600], M.toarray()[:600, :600], eigvals_only=True)
    w, _ = values_around_zero(A, M, 6, block_size=block_size, tol=1e-6)
    assert np.abs(w - np.sort(np.r_[one, one])[:6]).max() < 1e-6


def values_around_zero(A: Any, M: Any, k: int, **options: Any) -> tuple[Any, Any]:
    """Solve on the GPU, with A^-1 as a function."""
    import cupy

    inverse = cupy.asarray(np.linalg.inv(A.toarray()))
    w, X = eigsh(A, k, M=M, sigma=0.0, OPinv=lambda Y: inverse @ Y, device="gpu", rng=0, **options)
    return cupy.asnumpy(w), cupy.asnumpy(X)


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
    for module in (filtering, spectrum, verification):
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
