"""What a recorder repeats does what it did when it was called."""

from __future__ import annotations

import numpy as np

import blockvec
from blockvec import BlockVector


def test_a_recorder_repeats_what_it_was_given(device: str) -> None:
    V = BlockVector.random(500, 4, device=device, rng=0)
    W, start = V.copy(), V.copy()

    def step() -> None:
        norms = W.norms()  # of a block that comes and goes
        W.axpby(norms, V, 0.5)
        W.combine(W.dot(V), out=W, alpha=1e-3, beta=1)

    recorder = blockvec.Recorder(device)
    with recorder:
        step()
        again = recorder.record(step)
        for _ in range(3):
            again()
    for _ in range(2):
        again()
    repeated = W.to_host().array
    W[:, :] = start
    for _ in range(6):
        step()
    np.testing.assert_array_equal(repeated, W.to_host().array)
