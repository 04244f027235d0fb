"""Solves on a pretended GPU: NumPy computes what the kernels of the CUDA backend would."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec.backends as backends
import blockvec.backends.cuda.backend as cuda
from blockvec import precompile
from blockvec.backends import Candidate, base
from blockvec.backends.cuda import device_csr, elementwise
from blockvec.backends.cuda.device import Gpu
from blockvec.backends.host.backend import HOST
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.kernels.problem import SpmmvProblem, StreamProblem, SweepProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.sparse.chain_plan import Chain
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.operations import dispatch
from tests.devices import H200
from tests.host_rows import HostPlan, laid_out
from tests.pretended_cupy import LIBRARIES, Array, CuPy, bare, compiled

__all__ = ["Run", "Solve", "accepts", "pretended_gpu"]


@dataclasses.dataclass(frozen=True, eq=False)
class PretendedGpu(Gpu):
    """A GPU that launches nothing; `watch` notes the kernels that it loads."""

    watch: Run | None = None

    def load(self, kernel: Any) -> Any:
        """Return what does nothing; products are noted as problems."""
        if self.watch is not None and not kernel.body.startswith("sparse/spmmv"):
            self.watch.note(kernel)
        return _nothing


@dataclasses.dataclass
class Solve:
    """One run of a method: what `precompiled` was told, the sizes with ``n``, and what was asked for."""

    method: str
    dtype: str
    sizes: dict[str, int]
    matrices: precompile.Matrices
    requests: list[Any]


class Run:
    """Solves in the order in which they ended."""

    def __init__(self) -> None:
        self.solves: list[Solve] = []
        self.asked: dict[Any, None] = {}
        self.compiled = compiled

    def note(self, request: Any) -> None:
        """Note what the current solve asks for."""
        self.asked[request] = None

    @contextlib.contextmanager
    def precompiled(self, method: str, operator: Any, dtype: Any = None, **sizes: int) -> Iterator[None]:
        """Take the place of `blockvec.precompiled`."""
        around, self.asked = self.asked, {}
        try:
            yield
        finally:
            requests, self.asked = self.asked, around
        operators = operator if isinstance(operator, tuple) else (operator,)
        operator = operators[0]
        matrices = [each for part in operators for each in precompile.sparse_products(part)]
        name = np.dtype(operator.dtype if dtype is None else dtype).name
        asked = [request for request in requests if not isinstance(request, StreamProblem)]
        known = {key: int(size) for key, size in sizes.items()} | {"n": int(operator.shape[0])}
        self.solves.append(Solve(method, name, known, matrices, asked))


def _compute(problem: Any, *operands: Any) -> None:
    """Compute what a kernel of blockvec does."""
    operands = tuple(map(bare, operands))
    if isinstance(problem, SweepProblem):
        W, V, C, S = operands
        V -= W @ C
        S[...] = V.conj().T @ V
        return
    if not isinstance(problem, SpmmvProblem):
        _chosen(problem).run(problem, *operands)
        return
    S, X, Y, *rest = operands
    plain = dataclasses.replace(problem, chain="none", dots=(), gram=())
    _chosen(plain).run(plain, S.host, X, Y, *rest[:3])
    if problem.fused:
        fused = rest[3]
        rows = slice(*fused.rows)
        if "x" in "".join((*fused.dots, *fused.gram)):
            X = X[rows]
        Y = Y[rows]
        blocks = {"x": X, "y": Y}
        if fused.Z is not None:
            Z = bare(fused.Z)[rows]
            Z[...] = fused.eta * Y + (fused.delta * Z if fused.delta else 0)
        for name, out in fused.dots.items():
            dots = np.vecdot(blocks[name[0]].T, blocks[name[1]].T)
            bare(out)[...] = dots if name == "xy" else dots.real
        for name, out in fused.gram.items():
            bare(out)[...] = blocks[name[0]].conj().T @ Y


def _chosen(problem: Any) -> Candidate:
    return next(c for c in HOST.candidates(problem) if not c.refusal)


class PretendedBackend(cuda.CudaBackend):
    """The CUDA backend: it plans and launches as on a GPU, and the host computes the results."""

    watch: Run

    def candidates(self, problem: Any) -> list[Candidate]:
        """Return those of the CUDA backend."""
        return [c if c.refusal else self._pretended(c) for c in super().candidates(problem)]

    def _pretended(self, chosen: Candidate) -> Candidate:
        is_sum = chosen.name in ("stream", "scale")

        def run(problem: Any, *operands: Any) -> None:
            if is_sum or chosen.name == "column_dot" or chosen.name in SPARSE_FAMILIES:
                chosen.run(problem, *operands)
            is_done = is_sum and getattr(problem, "operation", "") != "column_dot"
            self.watch.note(problem)
            if not is_done:
                _compute(problem, *operands)

        return dataclasses.replace(chosen, run=run, prepare=_nothing)

    def prepare_sparse(self, matrix: Any) -> Any:
        """Keep the matrix for the host, too."""
        prepared: Any = super().prepare_sparse(matrix)
        if not isinstance(matrix, Chain):
            arrays = tuple(bare(array) for array in (matrix.data, matrix.indices, matrix.indptr))
            matrix = sp.csr_array(arrays, shape=matrix.shape)
        prepared.host = HOST.prepare_sparse(matrix)
        return prepared

    def transposed_csr(self, matrix: Any) -> None:
        """Leave it to the host."""

    def fill_random(self, out: Any, key: int, offset: int) -> None:
        """Fill with the numbers of the host, which are the same."""
        super().fill_random(out, key, offset)
        HOST.fill_random(bare(out), key, offset)

    def inverse_factor(self, G: Any, limit: float) -> Any:
        """Compute the factor of the host."""
        super().inverse_factor(G, limit)
        return tuple(map(Array, HOST.inverse_factor(bare(G), limit)))

    def krylov_steps(self, *_: Any) -> None:
        """Return None: the host takes one step after the other."""

    recurrence = lanczos_recurrence = krylov_steps

    def stopwatch(self) -> Any:
        """Return that of the host."""
        return HOST.stopwatch()

    def graphs(self) -> Any:
        """Return graphs that are the operations themselves."""
        return _Graphs()


def _nothing(*_arguments: Any) -> None:
    """Do nothing."""


def _on_host(true: Callable[..., None]) -> Callable[..., None]:
    """Let the host look at the rows of a matrix."""
    return lambda self, *arrays, structure=None, load=None: true(self, *arrays, structure)


def _weighted_sum(true: Callable[..., None], gpu: Gpu, X: Any, Y: Any, out: Any, *factors: Any) -> None:
    """Compute a weighted sum after the work of the CUDA backend."""
    true(gpu, X, Y, out, *factors)
    a, *b = map(bare, factors)
    bare(out)[...] = a * bare(X) if Y is None else a * bare(X) + b[0] * bare(Y)


def _fill(true: Callable[..., None], gpu: Gpu, out: Any, value: complex) -> None:
    true(gpu, out, value)
    bare(out)[...] = value


def _evaluate(true: Callable[..., None], gpu: Gpu, function: Any, rows: Any, out: Any) -> None:
    true(gpu, function, rows, out)
    for row, values in zip(out, function(np, *map(bare, rows)), strict=True):
        bare(row)[...] = values


@contextlib.contextmanager
def pretended_gpu(
    modules: Sequence[str] = (
        "blockvec.precompile",
        "solvers.call",
        "solvers.locally_optimal",
        "solvers.iterations.base",
        "solvers.transform.scaling",
    ),
) -> Iterator[Run]:
    """Pretend a GPU inside the ``with`` block; what `Run.compiled` holds at its end, CuPy would compile."""
    watch = Run()
    compiled.clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in {"cupy": CuPy(), **LIBRARIES}.items():
            patch.setitem(sys.modules, name, module)
        backend = PretendedBackend(PretendedGpu(0, H200, watch))
        backend.watch = watch
        patch.setattr(cuda, "cuda_backend", lambda number: backend)
        patch.setattr(cuda, "find_device", lambda name: 0)
        patch.setattr(device_csr, "encode", _nothing)
        patch.setattr(Plan, "__init__", _on_host(Plan.__init__))
        patch.setattr(Plan, "_divide", HostPlan._divide)
        patch.setattr("blockvec.kernels.sparse.sell.layout", laid_out)
        weighted_sum = functools.partial(_weighted_sum, elementwise.weighted_sum)
        for module in (elementwise, device_csr):
            patch.setattr(module, "weighted_sum", weighted_sum)
        for name, pretended in (("fill", _fill), ("evaluate", _evaluate)):
            patch.setattr(elementwise, name, functools.partial(pretended, getattr(elementwise, name)))
        for path in modules:
            patch.setattr(f"{path}.precompiled", watch.precompiled)
        _forget()
        try:
            yield watch
        finally:
            _forget()


def _forget() -> None:
    """Forget which backend arrays belong to, and what was chosen for them."""
    backends._on_gpu.cache_clear()
    base._of_cupy.clear()
    dispatch.forget()


class _Graphs:
    """Graphs that are the operations themselves."""

    def enter(self) -> None:
        """Do nothing."""

    leave = enter

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Return the operations."""
        return operations


@functools.lru_cache(maxsize=100_000)
def accepts(request: Any) -> bool:
    """Whether the CUDA backend runs a request by a kernel of blockvec."""
    if not isinstance(request, TsmttsmProblem | TsmmProblem | SweepProblem | SpmmvProblem):
        return True
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", CuPy())
        candidates = cuda.CudaBackend(PretendedGpu(0, H200)).candidates(request)
        return any(not candidate.refusal for candidate in candidates)
