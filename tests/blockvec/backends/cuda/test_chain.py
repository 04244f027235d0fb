"""Chains that are not stored, through the CUDA backend; the emulator runs its kernels."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockvec import models
from blockvec.backends.base import Fused
from blockvec.backends.cuda import sparse
from blockvec.backends.cuda.backend import CudaBackend
from blockvec.kernels.device import H200
from blockvec.kernels.launch import GRID_HEADER_BYTES
from blockvec.kernels.problem import DOTS, SpmmvProblem
from tests.contract.blocks import exact_values
from tests.emulator.host import HostKernel, needs_host_compiler
from tests.pretended_gpu import PretendedGpu


class Pretended(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with the address of its data where CuPy has it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        """Where the data are."""
        return SimpleNamespace(ptr=self.ctypes.data)


Pretended.__module__ = "cupy"


def pretend(array: Any, dtype: Any = None) -> Any:
    return np.ascontiguousarray(array, dtype).view(Pretended)


@needs_host_compiler
@pytest.mark.parametrize(
    ("spec", "width", "changes"),
    [
        ("hubbard:sites=5,up=2,down=3,u=2", 2, {"dots": DOTS, "shift": "scalar"}),
        ("xxz:sites=9,up=4,delta=2", 4, {"shift": "column", "beta": "one", "alpha": "general"}),
    ],
)
def test_the_backend_passes_what_the_kernels_take(
    spec: str, width: int, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(synchronize=lambda: None, is_capturing=lambda: False)
    runtime = SimpleNamespace(getDevice=lambda: 0)
    cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream)
    cupy: Any = SimpleNamespace(asarray=pretend, ascontiguousarray=pretend, empty=np.empty, cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    rng, generator = np.random.default_rng(1), models.generator(spec)
    assert generator.chain is not None
    chain, A = generator.chain(), generator.matrix()
    x, y = (exact_values(rng, (A.shape[0], width), "float64") for _ in range(2))
    X, Y, shifts, memory = pretend(x), pretend(y.copy()), pretend(np.arange(width) * 1.0), np.zeros(1 << 14)
    dots = {kind: pretend(np.full(width, np.nan)) for kind in changes.get("dots", ())}
    backend: Any = CudaBackend(PretendedGpu(0, replace(H200, multiprocessors=3)))
    S = backend.prepare_sparse(chain)

    def function(source: str, *_: Any) -> Any:
        def launch(*arguments: Any) -> None:
            tables = [array for made in S.plan._tables.values() for array in made[:3]]
            HostKernel(source, [*tables, X, Y, shifts, memory], [Y, memory, *dots.values()])(*arguments)

        return launch

    at_head = SimpleNamespace(data=SimpleNamespace(ptr=memory.ctypes.data - GRID_HEADER_BYTES))
    monkeypatch.setattr(sparse, "build", function)
    monkeypatch.setattr(sparse, "workspace", lambda *_: at_head)
    sparse._kernels.cache_clear()
    fields = (*A.shape, A.nnz, width, "float64", "float64", width, width, 8)
    p = replace(SpmmvProblem(*fields, pattern=S.pattern, longest=S.longest), **changes)
    candidate, vendor = backend.candidates(p)
    assert (candidate.name, candidate.refusal) == ("spmmv_chain", "")
    assert vendor.refusal == "takes stored matrices"
    alpha, beta = (2, 1) if p.alpha == "general" else (1, 0)
    shift: Any = shifts if p.shift == "column" else 3
    candidate.prepare(p, S)
    candidate.run(p, S, X, Y, alpha, beta, shift, *([Fused(None, 0, 0, dots, {})] if dots else []))
    expected = alpha * (A @ x - np.asarray(shift) * x) + beta * y
    np.testing.assert_array_equal(np.asarray(Y), expected)
    blocks = {"x": x, "y": expected}
    for kind, found in dots.items():
        np.testing.assert_array_equal(np.asarray(found), (blocks[kind[0]] * blocks[kind[1]]).sum(axis=0))
    assert "no matrix is stored" in candidate.configuration()
    sparse._kernels.cache_clear()
