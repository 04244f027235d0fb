"""States of Schroedinger's equation at given times: closed forms, norms, checkpoints, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from blockvec import evolve, models
from blockvec.errors import OptionError
from tests.contract.blocks import host, on
from tests.matrices import normal, orthonormal


@pytest.mark.parametrize("model", ["laplace1d:n=60", "hofstadter:nx=8,ny=8,p=1,q=4"])
@pytest.mark.parametrize(
    "times", [np.linspace(0, 3, 31), [5.0, 4.0, -3.0, 0.0, 100.0], np.arange(1, 12) * 7.3, [], [0.0]]
)
def test_states_are_those_of_the_eigenvectors(device: str, model: str, times: Any) -> None:
    H = models.model(model)
    w, V = np.linalg.eigh(H.toarray())
    n = len(w)
    for psi0 in (normal(0, n, dtype=complex), normal(1, n, 3, dtype=complex), normal(2, n)):
        found = list(evolve(H, on(device, psi0) if psi0.ndim == 2 else psi0, times, device=device))
        assert [t for t, _ in found] == list(times)
        for t, psi in found:
            assert psi.dtype == np.complex128
            expected = (V * np.exp(-1j * t * w)) @ (V.conj().T @ psi0)
            assert_allclose(host(psi), expected, atol=1e-14 * (3 + abs(t)) * np.linalg.norm(psi0))


@pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_norms_stay_without_normalisation(steps: int) -> None:
    H = models.model("graphene:nx=8,ny=8,disorder=1") + 0.7 * sp.eye_array(64)
    psi0 = orthonormal(1, 64, 1, dtype=complex)
    for t, psi in evolve(H, psi0, np.arange(1, steps + 1) * 0.3):
        last = t, psi
    assert abs(np.linalg.norm(last[1]) - 1) <= 2e-12 * max(steps / 10_000, 0.1)
    ((_, back),) = evolve(H, last[1], [-last[0]])
    assert_allclose(back, psi0, atol=1e-12)


def test_a_run_that_was_left_goes_on_bit_for_bit(tmp_path: Path) -> None:
    H, path = models.model("xxz:sites=8,up=4"), tmp_path / "state"
    psi0, times = normal(2, 70, 2, dtype=complex), np.r_[np.arange(1, 30) * 0.1, 40.0, 41.0]
    whole = list(evolve(H, psi0, times))
    run = evolve(H, psi0, times, checkpoint=path)
    parts = [next(run) for _ in range(13)]
    run.close()
    assert path.exists()
    with pytest.raises(OptionError, match="times"):
        evolve(H, psi0, times[:-1], checkpoint=path)
    with pytest.raises(OptionError, match="another matrix"):
        evolve(H, 2 * psi0, times, checkpoint=path)
    parts += evolve(H, psi0, times, checkpoint=path, progress=True)
    assert not path.exists()
    for (t, psi), (s, phi) in zip(whole, parts, strict=True):
        assert t == s
        assert np.array_equal(psi, phi)
