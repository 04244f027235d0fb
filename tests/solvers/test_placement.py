"""Where a matrix of a GPU is factorised, from its structure; no GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import scipy.sparse as sp

from blockvec import Factorization
from blockvec.errors import DeviceError
from blockvec.models import model
from solvers.placement import LONGEST_S, Placement, place_of

CHAIN, PLANE, SMALL = "laplace1d:n=60000", "laplace2d:nx=250,ny=250", "laplace2d:nx=100,ny=100"
CUBE, GRAPH = "laplace3d:n=40", "graph"


def matrix(spec: str) -> Any:
    """Make a model matrix, or a random graph."""
    if spec != GRAPH:
        return model(spec).tocsr()
    R = sp.random_array((60000, 60000), density=1e-4, rng=0, format="csr")
    return sp.csr_array(R + R.T)


@pytest.fixture(params=[False, True], ids=["without cuDSS", "with cuDSS"])
def has_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(Factorization, "is_available", staticmethod(lambda _: request.param))
    return bool(request.param)


def placed(A: Any, M: Any = None, sigma: float | None = 0.5, **others: Any) -> Placement:
    call: Any = {"pairs": 6, "mode": "normal", "OPinv": None, "interval": None}
    call |= {"A": A, "M": M, "sigma": sigma, "options": {"Minv": None}, **others}
    return Placement.of(SimpleNamespace(**call), "gpu", "auto")  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [CHAIN, PLANE, SMALL, CUBE, GRAPH])
def test_the_host_factorises_what_takes_seconds_there(spec: str, has_library: bool) -> None:
    A = matrix(spec)
    is_quick = spec in (CHAIN, PLANE, SMALL)
    expected = "gpu" if has_library and spec != SMALL else "cpu" if is_quick else None
    assert place_of(A, "gpu") == expected
    assert place_of(A, "cpu") == "cpu"
    assert place_of(lambda X: X, "gpu") is None
    on_host, by_iterations = placed(A).is_on_host, placed(A).unfactored
    assert (on_host, by_iterations) == (expected == "cpu", expected is None)


def test_a_pair_without_iterations_may_take_longer_on_the_host(has_library: bool) -> None:
    cube, graph = matrix(CUBE), matrix(GRAPH)
    mass = sp.eye_array(cube.shape[0], format="csr") * 2.0
    assert place_of(cube, "gpu", LONGEST_S) == ("gpu" if has_library else "cpu")
    assert placed(cube, mass).home == (None if has_library else "gpu")
    if not has_library:
        with pytest.raises(DeviceError, match="needs cuDSS"):
            placed(graph, sp.eye_array(graph.shape[0], format="csr"))
