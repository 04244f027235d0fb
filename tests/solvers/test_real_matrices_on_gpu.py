"""Both ends of real matrices, and pairs, on a GPU: as right as on the host, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockvec import Factorization
from solvers import eigsh

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


def solved(A: Any, **options: Any) -> Any:
    """Return the second of two results, which compiles nothing."""
    for _ in range(2):
        result = eigsh(A, device="gpu", rng=0, return_info=True, **options)
    return result


@pytest.fixture(params=["as installed", "without cuDSS"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "as installed":
        monkeypatch.setattr(Factorization, "is_available", staticmethod(lambda device="gpu": device == "cpu"))


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("k", [1, 6, 20])
@pytest.mark.parametrize("which", ["SA", "LA"])
@pytest.mark.parametrize("name", MATRICES)
def test_both_ends_are_those_of_the_host(
    name: str,
    which: str,
    k: int,
    real_matrix: Callable[[str], Any],
    reference: Callable[[str, int, str], np.ndarray],
) -> None:
    result = solved(real_matrix(name), k=k, which=which)
    assert np.allclose(
        result.eigenvalues.get(), reference(name, k, which), rtol=0, atol=1e-11 * result.info["norm"]
    )
    assert result.converged.all()
    assert result.info["time_s"] < MOST_S


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("k", [1, 6, 20])
@pytest.mark.parametrize("name", PAIRS)
def test_lowest_values_of_pairs_are_those_of_the_host(
    name: str,
    k: int,
    real_matrix: Callable[[str], Any],
    reference: Callable[[str, int, str], np.ndarray],
) -> None:
    A, M = map(real_matrix, name.split("+"))
    expected = reference(name, k, "SA")
    result = solved(A, k=k, M=M, sigma=float(expected[0] - 0.1 * abs(expected[0])) - 1e-3)
    rounding = 1e-14 * result.info["norm"]  # the lowest value of some pairs is zero
    assert np.allclose(result.eigenvalues.get(), expected, rtol=1e-6, atol=rounding)
    assert result.converged.all()
    assert result.info["time_s"] < MOST_S
