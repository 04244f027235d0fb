"""Where a problem is solved and factorised, and estimates of memory before a run; no GPU is needed."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import Factorization, as_operator, models
from blockvec.errors import DeviceError, OptionError
from solvers import count_eigenvalues, eigsh, memory_needed
from solvers.costs import place_of, require_memory
from solvers.planning import LONGEST_S, placed
from tests.matrices import random_graph

CHAIN, PLANE, SMALL = "laplace1d:n=60000", "laplace2d:nx=250,ny=250", "laplace2d:nx=100,ny=100"
CUBE, GRAPH = "laplace3d:n=40", "graph"


def matrix(spec: str) -> Any:
    """Make a model matrix, or a random graph."""
    return random_graph(0, 60000, 12) if spec == GRAPH else models.model(spec).tocsr()


@pytest.fixture(params=[False, True], ids=["without cuDSS", "with cuDSS"])
def has_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(Factorization, "is_available", staticmethod(lambda _: request.param))
    return bool(request.param)


def place(A: Any, M: Any = None, sigma: float | None = 0.5, **others: Any) -> tuple[bool, bool, bool]:
    call: Any = {"k": 6, "mode": "normal", "OPinv": None, "interval": None}
    call |= {"A": A, "M": M, "sigma": sigma, "options": {"Minv": None}, "is_plain": M is None, **others}
    return placed(SimpleNamespace(which="LM", **call), "gpu", "auto")  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [CHAIN, PLANE, SMALL, CUBE, GRAPH])
def test_the_host_factorises_what_takes_seconds_there(spec: str, has_library: bool) -> None:
    A = matrix(spec)
    is_quick = spec in (CHAIN, PLANE, SMALL)
    expected = "gpu" if has_library and spec != SMALL else "cpu" if is_quick else None
    assert place_of(A, "gpu") == expected
    assert place_of(A, "cpu") == "cpu"
    assert place_of(lambda X: X, "gpu") is None
    moves, _, by_iterations = place(A)
    assert (moves, by_iterations) == (expected == "cpu", expected is None)


def test_a_pair_without_iterations_may_take_longer_on_the_host(has_library: bool) -> None:
    cube, graph = matrix(CUBE), matrix(GRAPH)
    mass = sp.eye_array(cube.shape[0], format="csr") * 2.0
    assert place_of(cube, "gpu", LONGEST_S) == ("gpu" if has_library else "cpu")
    assert place(cube, mass)[0] != has_library
    if not has_library:
        with pytest.raises(DeviceError, match="needs cuDSS"):
            place(graph, sp.eye_array(graph.shape[0], format="csr"))


def test_the_memory_of_a_run_is_known_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    A = models.model("laplace2d:n=40")
    matrix = 2 * A.nnz * 12
    monkeypatch.setattr("solvers.costs.SMALL_BYTES", 0)
    cases: list[dict[str, Any]] = [
        {"method": "lanczos"},
        {"method": "lanczos", "block_size": 4},
        {"method": "jd"},
        {"method": "filter", "ncv": 70},
    ]
    for options in cases:
        needed = memory_needed(A.shape[0], A.nnz, 6, **options)
        if len(options) > 1 or options["method"] == "jd":  # blocks of two in one process, of four in several
            assert abs(memory_needed(A.shape[0], A.nnz, 6, 4, **options) - needed / 4) <= 1
        for free, is_enough in ((needed - matrix, True), (needed - matrix - 1, False)):
            monkeypatch.setattr("solvers.costs.available_memory", lambda free=free: free)
            with nullcontext() if is_enough else pytest.raises(OptionError, match="lower ncv or k"):
                eigsh(A, 6, which="SA", rng=0, maxiter=1, on_unconverged="return", **options)


def stiff() -> Any:
    """Make a mesh whose stiffness varies by six orders of magnitude: its low end needs factors."""
    contrast = sp.diags_array(10.0 ** np.random.default_rng(0).uniform(-1.5, 1.5, 3600))
    return (contrast @ models.model("laplace2d:n=60") @ contrast).tocsr()


CALLS: dict[str, Any] = {
    "low end": lambda A: eigsh(A, 4, which="SA", rng=0),
    "interval": lambda A: eigsh(A, interval=(0.0, 2e-5), rng=0, tol=1e-6),
    "count": lambda A: count_eigenvalues(A, 0.0, 2e-5, rng=0),
    "small operator": lambda A: eigsh(
        as_operator(lambda X: A[:90, :90] @ X, shape=(90, 90)), 4, sigma=0.1, rng=0
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_free_memory_does_not_choose_the_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A, found = stiff(), []
    for free in (1 << 20, 1 << 45):
        monkeypatch.setattr("solvers.costs.available_memory", lambda free=free: free)
        found.append(CALLS[name](A))
    first, second = ([part.tobytes() for part in each] if isinstance(each, tuple) else each for each in found)
    assert first == second


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("low end", "method='lanczos'"), ("interval", "method='filter'"), ("count", "method='estimate'")],
)
def test_factors_for_which_memory_lacks_are_refused_with_sizes_and_remedy(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solvers.costs.require_memory", _refusing_factors)
    monkeypatch.setattr(Factorization, "is_small", staticmethod(lambda n, entries: False))
    with pytest.raises(
        OptionError, match=rf"needs .* GB on cpu for the factors .* GB are free: use {remedy}"
    ):
        CALLS[name](stiff())


def _refusing_factors(*arguments: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solvers.costs.SMALL_BYTES", 0)
        patch.setattr("solvers.costs.available_memory", lambda: 1000)
        require_memory(*arguments)
