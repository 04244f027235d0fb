"""Kernels are compiled ahead from what a method is known to ask for; failures wait for the real run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import blockvec
from blockvec import as_operator, models, precompile
from blockvec.backends import Candidate, backend_for
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.elementwise import philox_kernel
from blockvec.kernels.problem import SpmmvProblem, TsmmProblem, TsmttsmProblem
from blockvec.precompile import Blocks, requests, sparse_products, start
from tests.devices import H200

A = as_operator(models.model("laplace2d:n=30"))
N = A.shape[0]
MATRICES = sparse_products(A)
((PRODUCT, MATRIX),) = MATRICES
SIZES = {
    "lanczos": {"b": 2, "k": 3, "capacity": 16, "keep": 8, "p": 16},
    "filter": {"b": 2, "k": 3, "capacity": 32, "keep": 16, "p": 16},
    "jd": {
        **{"b": 4, "k": 5, "p": 16, "capacity": 48, "basis": 48, "vectors": 40, "after": 16},
        **{"width": 4, "half": 2},
    },
    "check": {},
    "own": {"b": 4, "capacity": 12},
    "svds": {"k": 5},
    "cg": {"b": 40},
    "minres": {"b": 4},
    "gmres": {"b": 4, "restart": 5},
    "lobpcg": {"b": 4},
    "solve": {"b": 4},
    "function": {},
    "polynomial": {"b": 3},
    "moments": {"b": 8},
}


class Device:
    """A device that only notes what is prepared on it, and by whom."""

    name = "cuda:0"
    device: DeviceInfo = H200

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        self.prepared: list[Any] = []
        self.threads: set[str] = set()
        self.happens = happens

    def candidates(self, problem: Any) -> list[Candidate]:
        return [Candidate("only", lambda *_: None, prepare=self.prepare)]

    def load_kernel(self, kernel: Any) -> None:
        self.prepare(kernel)

    def krylov_kernel(self, dtype: str, *sizes: int) -> Any:
        return None if dtype == "float32" else ("steps", dtype, *sizes)

    def recurrence_kernel(self, matrix: Any, *kind: Any) -> Any:
        return ("recurrence", *kind)

    def prepare(self, *request: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.prepared.append(request)
        self.happens()


def listed(method: str, dtype: str = "float64") -> dict[Any, Any]:
    return requests(method, Blocks(N, dtype, MATRICES, SIZES[method], backend_for("cpu")))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("method", SIZES)
def test_what_a_method_asks_for_is_prepared_by_threads(method: str, dtype: str) -> None:
    device, wanted = Device(), listed(method, dtype)
    wait(start(wanted.items(), device))  # type: ignore[arg-type]
    assert {request for request, *_ in device.prepared} == set(wanted)
    assert all(
        operands == ([MATRIX] if isinstance(r, SpmmvProblem) else []) for r, *operands in device.prepared
    )
    assert all(name.startswith("blockvec-precompile") for name in device.threads)
    for request in wanted:
        if isinstance(request, TsmttsmProblem | TsmmProblem):
            assert 0 < request.M <= request.lda
            assert request.K == N
            assert request.dtype == dtype


def test_a_failure_waits_for_the_run() -> None:
    def fail() -> None:
        raise RuntimeError("it would not compile")

    device = Device(fail)
    wait(start(listed("check").items(), device))  # type: ignore[arg-type]
    assert len(device.prepared) == len(listed("check"))


def test_options_in_force_reach_the_threads(tmp_path: Path) -> None:
    found: list[Any] = []
    with blockvec.option_context(cache_dir=tmp_path):
        wait(
            start(
                [(philox_kernel("float64"), None)], Device(lambda: found.append(blockvec.options().cache_dir))
            )
        )  # type: ignore[arg-type]
    assert found == [tmp_path]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pretend that the operator is on a GPU; collect what is started."""
    started: list[Any] = []
    monkeypatch.setattr(precompile, "backend_for", lambda name: Device())
    monkeypatch.setattr(precompile, "start", lambda wanted, *_: started.append(wanted) or [])
    monkeypatch.setattr(type(A), "device", "cuda:0")
    return started


def test_the_first_miss_of_a_solve_starts_everything_once(on_gpu: list[Any]) -> None:
    from blockvec.kernels.build import _begin_compiling

    with blockvec.precompiled("lanczos", A, **SIZES["lanczos"]):
        assert not on_gpu
        _begin_compiling()
        _begin_compiling()
    assert len(on_gpu) == 1
    with blockvec.precompiled("lanczos", A, **SIZES["lanczos"] | {"keep": 10}):
        _begin_compiling()
    assert len(on_gpu) == 2
    with blockvec.precompiled("check", A):
        pass
    _begin_compiling()
    assert len(on_gpu) == 2
