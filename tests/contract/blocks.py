"""How the contract's tests draw blocks, place them in memory that must stay untouched, and judge results."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from blockvec import BlockVector, array_namespace
from blockvec.backends import backend_for, is_cupy
from blockvec.kernels.roofline import Ceilings
from blockvec.parallel import PeerError
from blockvec.parallel.communicator import in_rank_order
from tests.blocks import draw
from tests.matrices import unit

DTYPES = ("float32", "float64", "complex64", "complex128")
CEILINGS = Ceilings(10.0, 8.0, 9.0, {"float64": 50.0, "float32": 99.0}, 20.0)  # that nobody measured
MAX_WORK = 1_500_000  # multiply-adds of a reference product in extended precision

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)
# Few rows, rows around the panels and vectors of the kernels, and enough of them for all their branches.
row_counts = st.one_of(
    st.integers(0, 5), st.integers(6, 300), st.sampled_from([255, 256, 257, 1023, 1025, 4097, 9001, 20011])
)
widths = st.one_of(st.integers(0, 17), st.sampled_from([24, 31, 32, 33, 48, 63, 64]))
factors = st.sampled_from([0, 1, -1, 2, 0.3, -1.7])
complex_factors = st.one_of(factors, st.sampled_from([1j, 0.5 - 2j, -1 + 0.25j]))


@dataclass(frozen=True)
class Layout:
    """Columns of other data to the left and to the right of a view."""

    left: int
    right: int


layouts = st.builds(Layout, st.integers(0, 3), st.integers(0, 3))
PLAIN = Layout(0, 0)


@dataclass(frozen=True)
class Sizes:
    """Extents of a product: rows, and columns of both factors."""

    K: int
    M: int
    N: int


@st.composite
def sizes(draw: Any) -> Sizes:
    """Extents whose reference product is affordable."""
    M, N = draw(widths), draw(widths)
    return Sizes(min(draw(row_counts), MAX_WORK // max(1, M * N)), M, N)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers of mixed sign and magnitude on the host."""

    def part() -> Any:
        return rng.uniform(-1, 1, shape) * 10.0 ** rng.integers(-3, 3, shape)

    return (part() + 1j * part() if np.dtype(dtype).kind == "c" else part()).astype(dtype)


def random_matrix(rng: np.random.Generator, shape: tuple[int, int], dtype: str, density: float = 0.2) -> Any:
    """A sparse matrix with empty rows and, now and then, no entries at all."""
    dense = values(rng, shape, dtype) * (rng.random(shape) < density)
    dense[rng.random(shape[0]) < 0.2] = 0
    return sp.csr_array(dense)


def exact_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Elements (parts) of {-1, 0, 1}: their sums of products are exact, so no row can hide."""
    return draw(rng, shape, dtype)


def on(device: str, array: Any) -> Any:
    """Copy a host array to a device."""
    return backend_for(device).from_host(array)


def host(array: Any) -> Any:
    """NumPy copy of a block or an array of any device."""
    if isinstance(array, BlockVector):
        array = array.array
    return array.get() if is_cupy(array) else np.array(array)


class Guarded:
    """A block inside a wider one whose other columns, and the rows above and below, are NaN."""

    def __init__(self, content: Any, device: str, layout: Layout = PLAIN) -> None:
        K, M = content.shape
        columns = slice(layout.left, layout.left + M)
        frame = np.full((K + 2, layout.left + M + layout.right), np.nan, content.dtype)
        frame[1 : K + 1, columns] = content
        self.parent = on(device, frame)
        self.inside = (slice(1, K + 1), columns)
        self.block = BlockVector(self.parent[self.inside])

    def is_untouched_outside(self) -> bool:
        """Whether all that is not the block's is still NaN."""
        frame = host(self.parent)
        frame[self.inside] = np.nan
        return bool(np.isnan(frame).all())


def extended(array: Any) -> Any:
    """The same numbers in extended precision."""
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)


def adjoint(array: Any, conj: bool) -> Any:
    """A^H, or A^T."""
    return (array.conj() if conj else array).T


@dataclass(frozen=True)
class Reference:
    """alpha X Y + beta C in extended precision, with the bound on what rounding may add to it."""

    exact: Any
    bound: Any

    @classmethod
    def of(
        cls, X: Any, Y: Any, dtype: Any, alpha: complex = 1, beta: complex = 0, C: Any = None
    ) -> Reference:
        """Bound by c u (2 + sqrt(L)) |X| |Y| componentwise; sums are at most L = all terms long."""
        u = unit(dtype)
        sums = extended(X) @ extended(Y)
        spread = np.abs(X).astype(np.float64) @ np.abs(Y).astype(np.float64)
        exact, bound = alpha * sums, 4 * u * (2 + np.sqrt(X.shape[1])) * abs(alpha) * spread
        if beta != 0:
            exact = exact + beta * extended(C)
            bound = bound + 8 * u * (abs(beta) * np.abs(C) + abs(alpha) * spread)
        return cls(exact, bound + np.finfo(dtype).tiny)

    def accepts(self, result: Any) -> bool:
        """Whether every element is within its bound."""
        return bool((np.abs(extended(host(result)) - self.exact) <= self.bound).all())


def is_close(result: Any, expected: Any, scale: Any, dtype: Any, ulps: float = 8) -> bool:
    """Whether |result - expected| <= ulps u scale in every element."""
    difference = np.abs(extended(host(result)) - extended(np.asarray(expected)))
    return bool((difference <= ulps * unit(dtype) * np.abs(scale) + np.finfo(dtype).tiny).all())


FORMS = (sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.csc_matrix, sp.coo_matrix)


def untidy(dense: np.ndarray, form: Any, *, writeable: bool = True) -> Any:
    """A sparse matrix with each entry a in two parts, 3 a and -2 a, at random places of its row or column."""
    entries = sp.coo_array(dense)
    data = np.concatenate([3 * entries.data, -2 * entries.data])
    rows, columns = (np.tile(places, 2) for places in entries.coords)
    kind = form(dense.shape).format
    major, minor = (columns, rows) if kind == "csc" else (rows, columns)
    keys = np.random.default_rng(0).random(len(data))
    order = np.argsort(keys) if kind == "coo" else np.lexsort((keys, major))
    data, major, minor = data[order], major[order], minor[order]
    if kind == "coo":
        A = form((data, (major, minor)), shape=dense.shape)
    else:
        pointers = np.searchsorted(major, np.arange(dense.shape[kind == "csc"] + 1))
        A = form((data, minor, pointers), shape=dense.shape)
    assert not A.has_canonical_format
    for array in arrays_of(A):
        array.flags.writeable = writeable
    return A


def arrays_of(A: Any) -> tuple[np.ndarray, ...]:
    """What a matrix consists of."""
    return (A.data, *A.coords) if A.format == "coo" else (A.data, A.indices, A.indptr)


@contextlib.contextmanager
def kept(*matrices: Any) -> Iterator[None]:
    """Assert that matrices consist of the same arrays afterwards, and these of the same bits."""
    before = [[(array, array.tobytes()) for array in arrays_of(A)] for A in matrices]
    yield
    for A, arrays in zip(matrices, before, strict=True):
        for now, (array, bits) in zip(arrays_of(A), arrays, strict=True):
            assert now is array, f"{type(A).__name__}: an array is another one"
            assert now.tobytes() == bits, f"{type(A).__name__}: an array was written to"


class Hub:
    """What the threads of one `ThreadComm` share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reports: list[Any] = [None] * size
        self.settling, self.failed = threading.Barrier(size), dict[int, int]()
        self.mail = {pair: queue.Queue() for pair in itertools.product(range(size), repeat=2)}


class ThreadComm:
    """A communicator over threads of this process, as `blockvec.parallel.Communicator` describes it."""

    def __init__(self, rank: int, hub: Hub) -> None:
        self.rank, self.size, self.hub, self.started = rank, hub.size, hub, 0

    def allgather(self, part: Any) -> Any:
        self.started += 1
        for rank in range(self.size):
            self.hub.mail[self.rank, rank].put(part.copy())
        parts = [self._received(rank, self.started) for rank in range(self.size)]
        assert len({(part.shape, part.dtype) for part in parts}) == 1, "parts differ"
        return array_namespace(part).stack(parts)

    def sum(self, part: Any) -> Any:
        return in_rank_order(self.allgather(part))

    def exchange(self, sends: Any, receives: Any) -> Callable[[], None]:
        self.started += 1
        number = self.started
        for rank, array in sends:
            assert array.flags.c_contiguous
            self.hub.mail[self.rank, rank].put(array.copy())

        def wait() -> None:
            for rank, array in receives:
                assert array.flags.c_contiguous
                array[...] = self._received(rank, number)

        return wait

    def announce(self) -> None:
        self.hub.failed[self.rank] = self.started

    def settle(self, report: Any) -> list[Any]:
        self.hub.reports[self.rank] = report
        self.hub.settling.wait(timeout=60)
        reports = list(self.hub.reports)
        if self.rank == 0 and any(entry is not None for entry in reports):
            for box in self.hub.mail.values():
                while not box.empty():
                    box.get()
            self.hub.failed.clear()
        self.hub.settling.wait(timeout=60)
        self.started = 0 if any(entry is not None for entry in reports) else self.started
        return reports

    def _received(self, rank: int, number: int) -> Any:
        """Wait for a message of an operation, at most a minute; not for threads that failed before it."""
        for _ in range(6000):
            if any(started < number for started in list(self.hub.failed.values())):
                raise PeerError("another thread has failed")
            with contextlib.suppress(queue.Empty):
                return self.hub.mail[rank, self.rank].get(timeout=0.01)
        raise TimeoutError(f"rank {self.rank} has waited for rank {rank} for a minute")


def in_parallel(size: int, work: Callable[[ThreadComm], Any]) -> list[Any]:
    """Run ``work(comm)`` on `size` ranks and return the results in rank order."""
    hub = Hub(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadComm(rank, hub))
        except BaseException as error:
            errors.append(error)
            hub.settling.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
