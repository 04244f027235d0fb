"""Both ends of real matrices, and pairs, on a GPU: as right as on the host, in seconds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from blockvec import Factorization
from tests.solvers.answers import solve

pytestmark = pytest.mark.gpu

MATRICES = (
    *("1138_bus", "bcsstk03", "bcsstk06", "bcsstk08", "bcsstk09", "bcsstk10", "bcsstk16", "bcsstm06"),
    *("bcsstm08", "bcsstm09", "bcsstm10", "bcsstm13", "elast_A", "elast_B", "gr_30_30", "graphene128x64"),
    *("lund_a", "lund_b", "mhd1280b"),
)
PAIRS = (
    *("bcsstk06+bcsstm06", "bcsstk08+bcsstm08", "bcsstk09+bcsstm09", "lund_a+lund_b", "elast_A+elast_B"),
)
MOST_S = 5  # of a second call


@pytest.mark.parametrize("has_library", [True, False], ids=["as installed", "without cuDSS"])
@pytest.mark.parametrize("k", [1, 6, 20])
@pytest.mark.parametrize(
    ("name", "which"), [*itertools.product(MATRICES, ("SA", "LA")), *((p, "") for p in PAIRS)]
)
def test_ends_and_pairs_are_those_of_the_host(
    name: str, which: str, k: int, has_library: bool, real_matrix: Any, reference: Any, monkeypatch: Any
) -> None:
    if not has_library:
        monkeypatch.setattr(Factorization, "is_available", staticmethod(lambda device="gpu": device == "cpu"))
    expected = reference(name, k, which or "SA")
    A, M = map(real_matrix, name.split("+")) if not which else (real_matrix(name), None)
    options = {"which": which} if which else {"sigma": float(expected[0] - 0.1 * abs(expected[0])) - 1e-3}
    for _ in range(2):  # the second call compiles nothing
        result = solve(A, k, M, device="gpu", **options)
    atol = (1e-11 if which else 1e-14) * result.info["norm"]  # the lowest value of some pairs is zero
    assert np.allclose(result.eigenvalues.get(), expected, rtol=0 if which else 1e-6, atol=atol)
    assert result.converged.all()
    assert result.info["time_s"] < MOST_S
