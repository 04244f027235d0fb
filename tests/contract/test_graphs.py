"""What a recorder repeats does what it did when it was called."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector, as_operator, models


@pytest.mark.parametrize("form", ["matrix", "long row", "none"])
def test_a_recorder_repeats_what_it_was_given(device: str, form: str) -> None:
    chain = "xxz:sites=11,up=5"
    matrix = models.model(chain)
    if form == "long row":  # a GPU sums up its parts in scratch memory
        matrix = sp.kron(sp.eye_array(10), matrix, format="lil")
        matrix[7] = 0.1
    A = models.operator(chain, device=device) if form == "none" else as_operator(matrix, device=device)
    V = BlockVector.random(A.shape[0], 4, device=device, rng=0)
    W, U, start = V.copy(), V.copy(), V.copy()
    A.apply(W, out=U)  # kernels and scratch memory are made

    def step() -> None:
        norms = W.norms()  # of a block that comes and goes
        W.axpby(norms, V, 0.5)
        A.apply(W, out=U, alpha=0.1)
        W.combine(U.dot(V), out=W, alpha=1e-3, beta=1)

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
