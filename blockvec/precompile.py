"""Parallel compilation of the kernels of a run before their first use, from the list of an earlier run.

A kernel takes a few tenths of a second to compile, and an iterative method needs dozens of them. Each run
writes the list of its kernels to the cache folder. Lists per method for the first run are part of the package
(``kernels/precompiled``).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from .backends import Backend, backend_for
from .config import options
from .dispatch import preferred
from .kernels.cache import load_json, store_json
from .kernels.problem import SpmmvProblem, SweepProblem, TsmmProblem, TsmttsmProblem
from .kernels.requests import MATRIX, Entry, decode, encode, logged

if TYPE_CHECKING:
    from .kernels.requests import Request

FORMAT = 1  # of the lists in the cache folder
MAX_ENTRIES = 1000  # per list; a solve asks for 50 to 200
MAX_KINDS = 1000  # per process

_begun: set[tuple[Any, ...]] = set()  # runs that were precompiled in this process


@contextlib.contextmanager
def precompiled(method: str, operator: Any, dtype: Any = None, **sizes: int) -> Iterator[None]:
    """Compile the kernels of the operations inside the ``with`` block in parallel, before their first use.

    On a GPU, the first kernel in the block that is not in the cache starts the compilation of all kernels
    that earlier runs of the same kind used, in `Options.threads` threads. An operation whose kernel is still
    being compiled waits for it. Leaving the block stores the list of the kernels that were used, if it has
    new entries, in the cache folder. Results do not change. On the host the context manager has no effect.

    Parameters
    ----------
    method : str
        Name of the method, part of the key of the list. For the methods of `solvers.eigsh` blockvec contains
        initial lists.
    operator : Operator
        Specifies the number of rows, the device and, if it has one, the sparse matrix whose products are
        compiled. It is not applied.
    dtype : dtype, optional
        Element type of the blocks; by default that of the operator.
    **sizes : int
        Sizes that determine the widths of blocks, such as ``b`` (block size) and ``capacity`` (columns of the
        basis). Runs of the same method, types and sizes share a list, for any number of rows.

    Examples
    --------
    A block power method. From the second process on, a GPU compiles its kernels in parallel:

    >>> import blockvec
    >>> A = blockvec.as_operator(blockvec.models.model("laplace2d:n=30"))
    >>> V = blockvec.BlockVector.random(A.shape[1], 4, rng=0)
    >>> with blockvec.precompiled("power", A, b=4):
    ...     for _ in range(10):
    ...         V = A @ V
    ...         V @= blockvec.inverse_factor(V.gram()).T
    >>> V.shape
    (900, 4)
    """
    run = None
    if operator.device != "cpu":
        backend = backend_for(operator.device)
        run = Precompilation(method, operator, dtype, sizes, backend)
    if run is None or run.key in _begun or len(_begun) >= MAX_KINDS:
        yield
        return
    from .kernels.compile import on_first_miss
    from .kernels.tuning.choices import save_choices

    _begun.add(run.key)
    jobs: list[Future[None]] = []
    try:
        with logged() as log, on_first_miss(lambda: jobs.extend(run.start())):
            yield
    finally:
        for job in jobs:
            job.cancel()
    run.store(log.values())
    save_choices(backend_for(operator.device).device)


class Precompilation:
    """The list of kernels of one kind of runs, and its entries for the sizes of the current run.

    Parameters are those of `precompiled`. `dtype` is the name of the element type, and `key` is equal for
    runs that ask for the same kernels.
    """

    def __init__(
        self, method: str, operator: Any, dtype: Any, sizes: Mapping[str, int], backend: Backend
    ) -> None:
        self._method, self._backend, self._rows = method, backend, _local_rows(operator)
        self.dtype = np.dtype(operator.dtype if dtype is None else dtype).name
        self._sizes = {name: int(size) for name, size in sizes.items()}
        self._product, self._matrix = _sparse_product(operator)
        self._kind = {
            "format": FORMAT,
            "method": method,
            "dtype": self.dtype,
            "architecture": backend.device.architecture,
            "matrix": self._product and [getattr(self._product, name) for name in MATRIX[3:6]],
            "sizes": self._sizes,
        }
        kind = json.dumps(self._kind, sort_keys=True)
        self._path = options().cache_dir / "precompiled" / f"{hashlib.sha256(kind.encode()).hexdigest()}.json"
        self.key = backend.name, self._rows, self._product, kind

    @functools.cached_property
    def _stored(self) -> Sequence[Entry]:
        record = load_json(self._path) or {}
        entries = record.get("entries") if record.get("kind") == self._kind else None
        return entries[:MAX_ENTRIES] if isinstance(entries, list) else ()

    def start(self) -> list[Future[None]]:
        """Start to compile the kernels of the stored list, or of the list in the package."""
        threads = _threads(options().threads)
        return [
            threads.submit(contextvars.copy_context().run, self._prepare, request)
            for request in self.requests(self._stored or shipped(self._method, self.dtype))
        ]

    def requests(self, entries: Sequence[Entry]) -> list[Request]:
        """Convert the entries of a list to requests of this run; entries that cannot be read are skipped.

        The first requests of all entries precede the second ones: a run uses one width at a time.
        """
        sizes = {**self._sizes, "n": self._rows}
        ranges: list[list[Request]] = []
        for entry in entries:
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError, RecursionError):
                ranges.append(list(decode(entry, sizes, self.dtype, self._product)))
        steps = itertools.zip_longest(*ranges)
        return list(dict.fromkeys(request for step in steps for request in step if request is not None))

    def _prepare(self, request: Request) -> None:
        """Compile and load a kernel. Errors stay in the thread: the real call raises them."""
        if not isinstance(request, TsmttsmProblem | TsmmProblem | SweepProblem | SpmmvProblem):
            self._backend.load_kernel(request)
        elif chosen := preferred(request, self._backend):
            chosen.prepare(request, *([self._matrix] if isinstance(request, SpmmvProblem) else []))

    def store(self, requests: Iterable[object]) -> None:
        """Add requests to the list, and write the list if it has new entries."""
        entries = [encode(request, self._rows, self._product) for request in requests]
        merged = {json.dumps(entry, sort_keys=True): entry for entry in (*self._stored, *entries) if entry}
        if len(merged) > len(self._stored) and len(self._stored) < MAX_ENTRIES:
            kept = list(merged.values())[:MAX_ENTRIES]
            store_json(self._path, {"kind": self._kind, "entries": kept})


@functools.cache
def shipped(method: str, dtype: str) -> Sequence[Entry]:
    """Return the list that ships for a method in the precision of a type; empty if there is none."""
    precision = "single" if dtype in ("float32", "complex64") else "double"
    file = resources.files("blockvec.kernels") / "precompiled" / precision / f"{method}.json"
    return json.loads(file.read_text(encoding="utf-8"))["entries"] if file.is_file() else ()


def _sparse_product(operator: Any) -> tuple[SpmmvProblem | None, Any]:
    """Return a product with the sparse matrix behind an operator, and the matrix as kernels take it."""
    while operator is not None and not hasattr(operator, "sparse_product"):
        operator = getattr(operator, "operator", None)  # that a solver's operator is made of
    return (None, None) if operator is None else operator.sparse_product()


def _local_rows(operator: Any) -> int:
    """Return the rows of blocks in this process."""
    layout = getattr(operator, "layout", None)
    return int(operator.shape[0] if layout is None else layout.n_local)


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="blockvec-precompile")
