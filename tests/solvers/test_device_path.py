"""The path that solvers take on a GPU, run on NumPy arrays: how often a step waits for small matrices."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
import solvers.iterations.krylov
import solvers.iterations.lanczos
import solvers.iterations.rayleigh_ritz
import solvers.iterations.verification
import solvers.orthogonalization.decomposition
from solvers import placement
from solvers.iterations.counts import Counts
from solvers.iterations.filtered_lanczos import FilteredRestart
from solvers.iterations.krylov import BlockKrylov
from solvers.iterations.lanczos import ThickRestart
from solvers.iterations.rayleigh_ritz import Tolerance
from solvers.iterations.spectrum import sketch_spectrum
from solvers.orthogonalization import orthogonalize
from solvers.problem import IterationOptions, Problem

WAITS_A_STEP = 1  # for a Gram matrix, and nobody else needs the device meanwhile ...
WAITS_OF_A_LOSS = 2  # ... and for those of a second look at the rank and of a pass over random directions


class DeviceNamespace:
    """NumPy under another name: solvers take it for a device, and waits for it are counted.

    It is no wait where the device has later work to do: where another copy was started since.
    """

    def __init__(self) -> None:
        self.waits = self.started = self.waited = 0

    def start_copy(self, array: Any) -> Any:
        """Start a copy, which holds what is there now."""
        self.started += 1
        number, copy = self.started, np.array(array)

        def wait() -> Any:
            self.waits += number == self.started != self.waited
            self.waited = max(self.waited, number)
            return copy

        return wait

    def start_copies(self, *arrays: Any) -> Any:
        """Start copies that are waited for at once."""
        copies = [self.start_copy(array) for array in arrays]
        return lambda: [copy() for copy in copies]

    def inverse_factor(self, G: Any, limit: float, *, start: bool = True) -> Any:
        """Return a factor whose report is waited for."""
        factor = blockvec.inverse_factor(G, limit)
        wait, found = self.start_copy(G), factor.wait()
        result = SimpleNamespace(T=factor.T, report=factor.report, wait=lambda: (wait(), found)[1])
        result.start = lambda: result
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def asnumpy(self, array: Any) -> Any:
        return self.start_copy(array)()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> DeviceNamespace:
    """Pass NumPy arrays off as arrays of a device in the modules that ask for the namespace."""
    namespace = DeviceNamespace()
    for name in ("blocks", "iterations.spectrum"):
        monkeypatch.setattr(sys.modules[f"solvers.{name}"], "array_namespace", lambda array: namespace)
    for name in ("start_copy", "inverse_factor"):
        monkeypatch.setattr(solvers.orthogonalization.decomposition, name, getattr(namespace, name))
    monkeypatch.setattr(solvers.iterations.spectrum, "start_copies", namespace.start_copies)
    for name in ("start_copies", "inverse_factor"):
        monkeypatch.setattr(solvers.orthogonalization.queued_step, name, getattr(namespace, name))
    return namespace


def start(plain: Any, matrix: Any, b: int, capacity: int) -> BlockKrylov:
    n = matrix.shape[0]
    rng = np.random.default_rng(0)
    buffer = plain.PlainBlock(np.zeros((n, capacity), matrix.dtype))
    krylov = BlockKrylov(plain.PlainOperator(matrix), buffer, 0, b, rng, Counts())
    krylov.append(plain.PlainBlock.random(n, b, matrix.dtype, rng=rng), keep_random=True)
    return krylov


MATRICES = {
    "a band": sp.diags_array(
        [np.ones(199), np.linspace(0, 5, 200), np.ones(199)], offsets=[-1, 0, 1]
    ).tocsr(),
    "identity": sp.eye_array(200, format="csr"),
    "rank two": sp.csr_array(np.outer(np.arange(200), np.ones(200)) + np.outer(np.ones(200), np.arange(200))),
    "small": sp.diags_array(np.arange(30.0)).tocsr(),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("b", [1, 4])
def test_steps_keep_the_decomposition_and_wait_for_a_few_small_matrices(
    name: str, b: int, device: DeviceNamespace, plain: Any
) -> None:
    matrix = MATRICES[name]
    krylov = start(plain, matrix, b, capacity=20)
    while krylov.can_expand():
        device.waits = 0
        krylov.expand()
        assert device.waits <= WAITS_A_STEP + (WAITS_OF_A_LOSS if name != "a band" else 0)
    m, w = krylov.m, krylov.w
    VQ = krylov.basis.array
    H = krylov.H[: m + w, :m]
    norm = np.linalg.norm(matrix.toarray(), 2)
    assert np.linalg.norm(VQ.T @ VQ - np.eye(m + w)) < 1e-13
    assert np.linalg.norm(matrix @ VQ[:, :m] - VQ @ H) < 1e-13 * norm


@pytest.mark.parametrize("b", [1, 4])
def test_queued_steps_are_waited_for_once_a_cycle(
    b: int, device: DeviceNamespace, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers.iterations.krylov, "is_queued", lambda *_: True)
    krylov = start(plain, MATRICES["a band"], b, capacity=32)
    device.waits = 0
    while krylov.can_expand():
        krylov.expand()
    assert device.waits == 0
    krylov.settle()
    assert device.waits == 1


def test_within_a_block_the_device_goes_on_before_anybody_waits(
    device: DeviceNamespace, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    combine, inverse_factor = plain.PlainBlock.combine, device.inverse_factor

    def queued(block: Any, *arguments: Any, **options: Any) -> Any:
        order.append("divide")
        return combine(block, *arguments, **options)

    def watched(G: Any, limit: float) -> Any:
        factor = inverse_factor(G, limit)
        return SimpleNamespace(T=factor.T, wait=lambda: (order.append("wait"), factor.wait())[1])

    monkeypatch.setattr(plain.PlainBlock, "combine", queued)
    monkeypatch.setattr(solvers.orthogonalization.decomposition, "inverse_factor", watched)
    block = plain.PlainBlock.random(200, 4, rng=1)
    result = orthogonalize(block)
    assert order == ["divide", "wait"] * result.reductions
    assert device.waits == result.reductions
    assert np.linalg.norm(block.array.T @ block.array - np.eye(4)) < 1e-14


@pytest.mark.parametrize(("inside", "waits"), [(0.1, 1), (3.0, 2)])
def test_against_a_basis_the_host_waits_once_for_each_half(
    inside: float, waits: int, device: DeviceNamespace, plain: Any
) -> None:
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((200, 8)))[0]
    W = rng.standard_normal((200, 2)) / 200**0.5 + V @ rng.standard_normal((8, 2)) * inside
    orthogonalize(plain.PlainBlock(W), plain.PlainBlock(V))
    assert device.waits == waits


def test_a_sketch_waits_once(device: DeviceNamespace, plain: Any) -> None:
    block = plain.PlainBlock.random(200, 1, rng=1)
    sketch_spectrum(plain.PlainOperator(MATRICES["a band"]), block.random_like(4, 0), 20)
    assert device.waits == 1


@pytest.mark.parametrize("variant", [ThickRestart, FilteredRestart])
@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_a_whole_run_finds_every_copy_with_small_matrices_on_the_host(
    which: Any, variant: Any, device: DeviceNamespace, plain: Any
) -> None:
    matrix = sp.kron(sp.eye_array(3), MATRICES["a band"]).tocsr()  # every value three times
    problem = Problem(
        operator=plain.PlainOperator(matrix),
        k=8,
        which=which,
        tolerance=Tolerance(1e-9, "norm", 2.0**-53),
        rng=np.random.default_rng(2),
    )
    options = IterationOptions(block_size=2, ncv=40, maxiter=200, degree=8)
    block = plain.PlainBlock.random(600, 2, rng=1)
    result = variant(problem, options, block, lambda: False).run()
    assert result.reason == "converged"
    values = np.linalg.eigvalsh(matrix.toarray())
    wanted = values[solvers.iterations.rayleigh_ritz.select(values, which)[:8]]
    assert np.allclose(np.sort(np.abs(result.theta)), np.sort(np.abs(wanted)), atol=1e-9)


@pytest.mark.parametrize(("dtype", "most"), [("float64", 40), ("complex128", 20)])
def test_small_matrices_are_solved_on_the_host_by_their_work(
    dtype: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "HOST_WORK", 40_000)
    rows = most * 1000 // (1 + placement.STEP_VECTORS)
    for n, is_short in ((rows, True), (rows + 1, False)):
        assert placement.is_short(sp.eye_array(n, dtype=dtype, format="csr"), 3) == is_short
    assert not placement.is_short(sp.eye_array(999, format="csr"), placement.HOST_PAIRS + 1)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_matrices_of_few_rows_are_solved_on_the_host(dtype: str) -> None:
    """The first dense solve on a GPU compiles kernels for seconds."""
    most = placement.LAPACK_ROWS
    for n, is_short in ((2, True), (most, True), (most + 1, False)):
        A = np.zeros((n, n), dtype)
        assert placement.is_short(A, n) == is_short
        assert placement.is_short(sp.csr_array(A), n) == is_short
    assert not placement.is_short(lambda x: x, 1)
    assert not placement.is_short(np.zeros((2, 2), int), 1)
