"""Solves on a pretended GPU: NumPy computes, and the CUDA backend says which kernels it would run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blockvec.backends.cuda.backend as cuda
from blockvec import dispatch, precompile
from blockvec.backends import Candidate
from blockvec.backends.cuda import graphs
from blockvec.backends.cuda.device import Gpu
from blockvec.backends.host.backend import HOST, HostBackend
from blockvec.backends.host.sweeps import sweep
from blockvec.kernels.device import H200
from blockvec.kernels.elementwise import PhiloxKernel, real_type
from blockvec.kernels.inverse_factor import InverseFactorKernel
from blockvec.kernels.problem import SpmmvProblem, StreamProblem, SweepProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.requests import logged, note

__all__ = ["Run", "Solve", "accepts", "pretended_gpu"]

FREE_BYTES = 100 << 30
NUMPY = SimpleNamespace(
    empty=np.empty,
    get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 0),
    cuda=SimpleNamespace(
        Device=lambda _number: contextlib.nullcontext(),
        runtime=SimpleNamespace(getDevice=lambda: 0, memGetInfo=lambda: (FREE_BYTES, FREE_BYTES)),
    ),
)


PLACES = {  # of the tall operands among those of a candidate, by letter
    TsmttsmProblem: {"a": 0, "b": 1},
    TsmmProblem: {"a": 0, "b": 2},
    SweepProblem: {"w": 0, "v": 1},
    SpmmvProblem: {"x": 1, "y": 2},
}


class Pretended(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with the address of its data where CuPy has it."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        """Where the data are."""
        return SimpleNamespace(ptr=self.ctypes.data)


Pretended.__module__ = "cupy"


@dataclasses.dataclass(frozen=True, eq=False)
class PretendedGpu(Gpu):
    """A GPU that launches nothing."""

    def load(self, kernel: Any) -> Any:
        """Return what does nothing."""
        return lambda *_arguments: None


@dataclasses.dataclass
class Solve:
    """One run of a method: what `precompiled` was told, and what was asked for.

    Attributes
    ----------
    method : str
    dtype : str
    sizes : dict of str to int
        Those that are passed to `precompiled`, and ``n``.
    product : SpmmvProblem or None
        A product with the sparse matrix.
    requests : dict of request to dict of str to int
        With the column offset of each tall operand by its letter; the first one counts.
    """

    method: str
    dtype: str
    sizes: dict[str, int]
    product: SpmmvProblem | None
    requests: dict[Any, dict[str, int]]


class Run:
    """Solves in the order in which they ended, and the offsets that problems had."""

    def __init__(self) -> None:
        self.solves: list[Solve] = []
        self.offsets: dict[Any, dict[str, int]] = {}

    def run(self, problem: Any, true: Callable[..., None], *operands: Any) -> None:
        """Note where the operands of a problem begin, and run it."""
        places = PLACES.get(type(problem), {})
        if problem not in self.offsets:
            self.offsets[problem] = {letter: _offset(operands[place]) for letter, place in places.items()}
        true(problem, *operands)

    @contextlib.contextmanager
    def precompiled(self, method: str, operator: Any, dtype: Any = None, **sizes: int) -> Iterator[None]:
        """Take the place of `blockvec.precompiled`."""
        with logged() as log:
            yield
        product = precompile._sparse_product(operator)[0]
        name = np.dtype(operator.dtype if dtype is None else dtype).name
        asked = {request: self.offsets.get(request, {}) for request in log.values()}
        asked = {request: at for request, at in asked.items() if not isinstance(request, StreamProblem)}
        known = {key: int(size) for key, size in sizes.items()} | {"n": int(operator.shape[0])}
        self.solves.append(Solve(method, name, known, product, asked))


def _offset(array: Any) -> int:
    """Count the columns before an array in the block that it is a view of."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return int(array.ctypes.data - base.ctypes.data) // array.itemsize


def _candidate(chosen: Candidate, host: HostBackend, watch: Run) -> Candidate:
    """Return a candidate that computes on the host and plans the launches of the CUDA backend."""

    def run(problem: Any, *operands: Any) -> None:
        if chosen.name in ("stream", "column_dot", "scale"):
            pretended = [o.view(Pretended) if isinstance(o, np.ndarray) else o for o in operands]
            if len({id(operand) for operand in operands[:2]}) == 1:
                pretended[1] = pretended[0]
            chosen.run(problem, *pretended)
        watch.run(problem, functools.partial(_compute, host), *operands)

    return dataclasses.replace(chosen, run=run, prepare=lambda *_: None)


_host_candidates = HostBackend.candidates


def _compute(host: HostBackend, problem: Any, *operands: Any) -> None:
    """Run a problem on the host, whatever the host would rather do."""
    if isinstance(problem, SweepProblem):
        sweep(problem, *operands)
        return
    if isinstance(problem, SpmmvProblem) and problem.gram:
        *rest, fused = operands
        alone = dataclasses.replace(problem, gram=())
        _compute(host, alone, *rest, dataclasses.replace(fused, gram={}))
        X, Y = rest[1], rest[2]
        for name, out in fused.gram.items():
            out[...] = (X if name == "xy" else Y).conj().T @ Y
        return
    next(c for c in _host_candidates(host, problem) if not c.refusal).run(problem, *operands)


@contextlib.contextmanager
def pretended_gpu(
    modules: Sequence[str] = ("solvers.iterations.base", "solvers.transform.scaling"),
) -> Iterator[Run]:
    """Let arrays of NumPy be those of a GPU inside the ``with`` block."""
    watch = Run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", NUMPY)  # type: ignore[arg-type]
        device = cuda.CudaBackend(PretendedGpu(0, H200))
        true_fill, true_factor = HostBackend.fill_random, HostBackend.inverse_factor

        def candidates(host: HostBackend, problem: Any) -> list[Candidate]:
            return [_candidate(c, host, watch) if not c.refusal else c for c in device.candidates(problem)]

        def fill_random(host: HostBackend, out: Any, key: int, offset: int) -> None:
            note(philox(real_type(out.dtype.name)))
            true_fill(host, out, key, offset)

        def inverse_factor(host: HostBackend, G: Any, limit: float) -> Any:
            note(factor(G.dtype.name))
            return true_factor(G, limit)

        philox, factor = functools.cache(PhiloxKernel), functools.cache(InverseFactorKernel)
        patch.setattr(HostBackend, "name", "cuda:0")
        patch.setattr(HostBackend, "device", H200)
        patch.setattr(HostBackend, "candidates", candidates)
        patch.setattr(HostBackend, "fill_random", fill_random)
        patch.setattr(HostBackend, "inverse_factor", inverse_factor)
        patch.setattr(cuda, "cuda_backend", lambda number: HOST)
        patch.setattr(cuda, "find_device", lambda name: 0)
        patch.setattr(HostBackend, "device_id", 0, raising=False)
        patch.setattr(graphs, "Graphs", _Graphs)
        patch.setattr("solvers.storage.require_memory", lambda *_: None)
        for module in modules:
            patch.setattr(f"{module}.precompiled", watch.precompiled)
        dispatch.forget()
        try:
            yield watch
        finally:
            dispatch.forget()


class _Graphs:
    """Graphs that are the operations themselves."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id

    def enter(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Return the operations."""
        return operations


@functools.lru_cache(maxsize=100_000)
def accepts(request: Any) -> bool:
    """Whether the CUDA backend runs a request by a kernel of blockvec."""
    if not isinstance(request, TsmttsmProblem | TsmmProblem | SweepProblem | SpmmvProblem):
        return True
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", NUMPY)  # type: ignore[arg-type]
        candidates = cuda.CudaBackend(PretendedGpu(0, H200)).candidates(request)
        return any(not candidate.refusal for candidate in candidates)
