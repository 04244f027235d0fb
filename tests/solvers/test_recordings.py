"""Recorded steps of MINRES take the same steps as those called one by one, on the host and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockvec
from blockvec import BlockVector, as_operator, models
from solvers import Linear, block_minres, eigsh
from solvers.linear.minres import Recordings, Steps
from solvers.orthogonalization import orthogonalize
from tests.pretended_gpu import pretended_gpu

DTYPES = ("float64", "complex128", "float32", "complex64")


def directly(*arguments: Any, **options: Any) -> Linear:
    """Solve without recordings on every device: inside a profile nothing is recorded."""
    with blockvec.profile():
        return block_minres(*arguments, **options)


def assert_same(one: Linear, other: Linear) -> None:
    """One, with recordings, took the same steps as the other and came to the same solutions."""
    assert one.reasons == other.reasons
    assert one.iterations.tolist() == other.iterations.tolist()
    assert one.reductions == other.reductions
    # The step that was under way at the end counts too, at each width.
    assert 0 < one.operator_columns - other.operator_columns < 2 * one.X.shape[1]
    eps = np.finfo(one.X.dtype).eps
    np.testing.assert_allclose(one.residuals, other.residuals, rtol=3000 * eps, atol=30 * eps)
    X, Y = (np.asarray(solved.X.to_host().array) for solved in (one, other))
    np.testing.assert_allclose(X, Y, rtol=0, atol=1e5 * eps * max(1, np.abs(Y).max()))


@given(
    dtype=st.sampled_from(DTYPES),
    b=st.integers(1, 9),
    q=st.integers(0, 5),
    steps=st.integers(1, 40),
    with_first=st.booleans(),
    seed=st.integers(0, 99),
)
def test_steps_are_those_of_the_plain_iteration(
    device: str, dtype: str, b: int, q: int, steps: int, with_first: bool, seed: int
) -> None:
    A = as_operator(models.model("laplace2d:n=12").astype(dtype), device=device)
    rng = np.random.default_rng(seed)
    B = BlockVector.random(144, b, dtype, device=device, rng=rng)
    Q = BlockVector.random(144, q, dtype, device=device, rng=rng) if q else None
    if Q is not None:
        orthogonalize(Q)
    options = {
        "shift": rng.uniform(-0.5, 0.5, b),
        "tol": 10.0 ** -rng.integers(1, 5, b),
        "maxiter": steps,
        "Q": Q,
        "with_first": with_first,
    }
    recordings = Recordings(A)
    for _ in range(2):  # the second time with what is known
        assert_same(block_minres(A, B, recordings=recordings, **options), directly(A, B, **options))


@pytest.mark.parametrize("options", [{"which": "SA"}, {"sigma": 3.1}], ids=["an end", "inside"])
def test_corrections_on_a_pretended_gpu_are_recorded_steps(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    A = models.model("laplace2d:nx=16,ny=13")
    repeated: list[int] = []
    true_repeat = Steps._repeat

    def counted(steps: Steps, phase: int, recorder: Any) -> None:
        repeated.append(phase)
        true_repeat(steps, phase, recorder)

    monkeypatch.setattr(Steps, "_repeat", counted)
    with pretended_gpu():
        w = eigsh(A, 6, method="jd", device="gpu", rng=0, block_size=4, **options)[0].get()
    exact = np.linalg.eigvalsh(A.toarray())
    exact = exact[np.argsort(np.abs(exact - options.get("sigma", 0.0)))[:6]]
    np.testing.assert_allclose(np.sort(w), np.sort(exact), atol=1e-12)
    assert set(repeated) == set(range(6))
