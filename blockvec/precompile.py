"""Parallel compilation of the kernels of a call, when the first one is missing.

A kernel takes a few tenths of a second to compile, and an iterative method needs dozens of them. What a
method asks for follows from its type and a few widths (`requests`): one function per method.

A call says so as soon as it knows its sizes: `precompile` in a function of `kernels_of_call`, or the block of
`precompiled`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .backends import Backend, backend_for, backend_of, is_cupy
from .kernels.problem import (
    MAX_ALIGNMENT,
    SpmmvProblem,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
    promote,
    real_type,
)
from .operations.dispatch import preferred
from .operations.elementwise import ROOTS
from .system.config import options

if TYPE_CHECKING:
    from .kernels.source import Kernel

MOST_THREADS = 8  # that compile: with 16 five first solves on 16 cores ended no sooner

_calls: contextvars.ContextVar[contextlib.ExitStack | None] = contextvars.ContextVar(
    "blockvec_calls", default=None
)

Matrices = list[tuple[SpmmvProblem, Any]]
"""Some product with each sparse matrix of a solve, and the matrix as kernels take it."""


@contextlib.contextmanager
def kernels_of_call() -> Iterator[None]:
    """Cancel at the end of the ``with`` block what is left of the calls of `precompile` in it."""
    with contextlib.ExitStack() as stack:
        token = _calls.set(stack)
        try:
            yield
        finally:
            _calls.reset(token)


def precompile(method: str, operator: Any, dtype: Any = None, **sizes: int) -> None:
    """Compile as `precompiled` does what follows in the block of `kernels_of_call`, if there is one."""
    if (call := _calls.get()) is not None:
        call.enter_context(precompiled(method, operator, dtype, **sizes))


def precompile_matrix(matrix: Any) -> None:
    """Compile in the same way what a matrix of CuPy in CSR form is looked at with before all products."""
    if (call := _calls.get()) is None or not is_cupy(getattr(matrix, "indptr", None)):
        return
    from .kernels import elementwise as k
    from .kernels.sparse import codes, pieces

    given, dtype = matrix.indices.dtype.name, matrix.dtype.name
    short = "int32" if max(*matrix.shape, matrix.nnz) <= np.iinfo(np.int32).max else given
    wanted = {
        pieces.kernel_of("diagonal", given, dtype): None,
        k.within_kernel(given): None,
        pieces.kernel_of("structure", short): None,
        k.philox_kernel(real_type(dtype)): None,
        pieces.kernel_of("units", short): None,
        codes.kernel_of(dtype): None,
    }
    backend = backend_of(matrix.data)
    call.enter_context(_in_threads(lambda: wanted, backend))


@contextlib.contextmanager
def precompiled(method: str, operator: Any, dtype: Any = None, **sizes: int) -> Iterator[None]:
    """Compile the kernels of the operations inside the ``with`` block in parallel, before their first use.

    On a GPU, the first kernel in the block that has to be compiled starts the compilation of all kernels that
    the method is known to use, in `Options.threads` threads, up to eight. An operation whose kernel is still
    being compiled waits for it. Results do not change. On the host the context manager has no effect.

    Parameters
    ----------
    method : str
        ``"lanczos"``, ``"filter"``, ``"jd"``, and ``"begin"`` and ``"check"`` of what is before these, as of
        `solvers.eigsh`; other functions of `solvers` by their names; any other name stands for the products
        of blocks of `b` columns, and of these with a basis of up to `capacity` columns.
    operator : Operator, or tuple of Operator
        Specifies the number of rows, the device and, if it has one, the sparse matrix whose products are
        compiled. It is not applied. Others may follow, whose products are compiled, too.
    dtype : dtype, optional
        Element type of the blocks; by default that of the operator.
    **sizes : int
        Sizes that determine the widths of blocks, such as ``b`` (block size) and ``capacity`` (columns of the
        basis).

    Examples
    --------
    A block power method, whose kernels a GPU compiles in parallel:

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
    operators = operator if isinstance(operator, tuple) else (operator,)
    operator = operators[0]
    if operator.device == "cpu":
        yield
        return
    backend = backend_for(operator.device)
    matrices = [each for part in operators for each in sparse_products(part)]
    name = np.dtype(operator.dtype if dtype is None else dtype).name
    layout = getattr(operator, "layout", None)
    n = operator.shape[0] if layout is None else layout.n_local
    blocks = Blocks(n, name, matrices, sizes, backend)
    with _in_threads(lambda: requests(method, blocks), backend):
        yield


@contextlib.contextmanager
def _in_threads(wanted: Callable[[], dict[Any, Any]], backend: Backend) -> Iterator[None]:
    """Start what is wanted before the first kernel that is compiled; cancel at the end what has not begun."""
    from .kernels.build import on_first_miss

    jobs: list[Future[None]] = []
    try:
        with on_first_miss(lambda: jobs.extend(start(wanted().items(), backend))):
            yield
    finally:
        for job in jobs:
            job.cancel()


def start(wanted: Iterable[tuple[Any, Any]], backend: Backend) -> list[Future[None]]:
    """Start to compile and load the kernels of requests, with their matrices, in threads."""
    threads = _threads(min(options().threads, MOST_THREADS))
    return [
        threads.submit(contextvars.copy_context().run, _prepare, request, backend, matrix)
        for request, matrix in wanted
    ]


def _prepare(request: Any, backend: Backend, matrix: Any) -> None:
    """Compile and load a kernel. Errors stay in the thread: the real call raises them."""
    if not isinstance(request, TsmttsmProblem | TsmmProblem | SweepProblem | SpmmvProblem):
        backend.load_kernel(request)
    elif chosen := preferred(request, backend):
        chosen.prepare(request, *([matrix] if isinstance(request, SpmmvProblem) else []))


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="blockvec-precompile")


def sparse_products(operator: Any) -> Matrices:
    """Describe a product with each sparse matrix behind an operator."""
    if operator is None:
        return []
    if parts := getattr(operator, "parts", ()):  # such as A and A^H of A^H A
        return [product for part in parts for product in sparse_products(part)]
    if not hasattr(operator, "sparse_product"):
        return sparse_products(getattr(operator, "operator", None))  # a solver's operator has one inside
    product = operator.sparse_product()
    return [product] if product[0] else []


class Blocks:
    """Descriptions of the operations on blocks of one type with `n` rows; widths are columns.

    `sizes` are widths by name; one that is missing is 0, and what has no columns is left out. `backend` may
    have kernels for several operations. `found` are the requests, and the matrices of products; `kernels` is
    the module of those without configurations.
    """

    def __init__(
        self, n: int, dtype: str, matrices: Matrices, sizes: Mapping[str, int], backend: Backend
    ) -> None:
        from .kernels import elementwise as kernels

        self.n, self.dtype, self.matrices, self.backend = n, dtype, matrices, backend
        self.kernels = kernels
        self.sizes = {name: int(size) for name, size in sizes.items()}
        self.is_single = dtype in ("float32", "complex64")
        self.real = "float32" if self.is_single else "float64"
        self.found: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> int:
        """Look up a size."""
        return self.sizes.get(name, 0)

    def _columns(self, letter: str, width: int, ld: int, at: int) -> dict[str, Any]:
        """Describe the columns from `at` on of rows of `ld` elements; 0 for a block of its own."""
        size, ld = itemsize(self.dtype), max(ld, width)
        distances = at * size | (ld * size if ld > width else 0)
        aligned = min(MAX_ALIGNMENT, distances & -distances or MAX_ALIGNMENT)
        return {f"ld{letter}": ld, f"align_{letter}": aligned}

    def _add(self, request: Any, *widths: int) -> None:
        if min(widths) > 0:
            self.found[request] = None

    def dot(self, M: int, N: int, lda: int = 0, at: int = 0, ldb: int = 0, at_b: int = 0, **how: Any) -> None:
        """Add A^H B."""
        layout = self._columns("a", M, lda, at) | self._columns("b", N, ldb, at_b) | how
        types = self.dtype, self.dtype
        self._add(TsmttsmProblem(self.n, M, N, *types, conj=is_complex(self.dtype), **layout), M, N)

    def gram(self, M: int, ld: int = 0, at: int = 0) -> None:
        """Add A^H A."""
        self.dot(M, M, ld, at, ld, at, same=True)

    def combine(
        self, M: int, N: int, lda: int = 0, at: int = 0, ldb: int = 0, at_b: int = 0, **how: Any
    ) -> None:
        """Add B = A C."""
        layout = self._columns("a", M, lda, at) | self._columns("b", N, ldb, at_b) | how
        self._add(TsmmProblem(self.n, M, N, self.dtype, self.dtype, **layout), M, N)

    def subtract(self, M: int, N: int, lda: int = 0, at: int = 0) -> None:
        """Add B -= A C."""
        self.combine(M, N, lda, at, alpha="general", beta="one")

    def steps(self, b: int, columns: int) -> bool:
        """Add whole steps of a Krylov space, where one kernel takes them; say whether."""
        kernel = self.backend.krylov_kernel(self.dtype, self.n, columns, b)
        if kernel is not None:
            self.found[kernel] = None
        return kernel is not None

    def recurrences(self, b: int, *, lanczos: bool = False) -> None:
        """Add recurrences that one launch takes, where there is a kernel for a matrix."""
        for _, matrix in self.matrices:
            kernel = self.backend.recurrence_kernel(matrix, self.dtype, b, lanczos)
            if kernel is not None:
                self.found[kernel] = None

    def rotate(self, M: int, N: int, ld: int = 0) -> None:
        """Add A[:, :N] = A C."""
        self.combine(M, N, ld, ldb=max(ld, M), inplace=True)

    def project(self, M: int, N: int, ldw: int) -> None:
        """Add the coefficients of a block in a basis, and what is left of it with its Gram matrix."""
        self.dot(M, N, ldw)
        self.update(M, N, ldw)

    def update(self, M: int, N: int, ldw: int, ldv: int = 0) -> None:
        """Add V -= W C with the Gram matrix of V."""
        if self.is_single:
            self.combine(M, N, ldw, ldb=ldv, alpha="general", beta="one")
            return
        types = self.dtype, self.dtype, self.dtype
        layout = self._columns("a", M, ldw, 0) | self._columns("b", N, ldv, 0)
        self._add(SweepProblem(self.n, M, N, *types, **layout), M, N)

    def apply(self, width: int, ldx: int = 0, ldy: int = 0, at_y: int = 0, **classes: Any) -> None:
        """Add products with the matrices."""
        layout = self._columns("x", width, ldx, 0) | self._columns("y", width, ldy, at_y)
        for product, matrix in self.matrices if width > 0 else ():
            plain = replace(product.plain, width=width, dtype_x=self.dtype, **layout)
            self.found[replace(plain, **classes)] = matrix

    def recur(self, width: int, **classes: Any) -> None:
        """Add the products of a Chebyshev recurrence."""
        for beta in ("zero", "general"):
            self.apply(width, alpha="general", beta=beta, shift="scalar", **classes)

    def orthonormalize(self, width: int) -> None:
        """Add what makes the columns of a block orthonormal."""
        self.gram(width)
        self.rotate(width, width)

    def factorize(self, width: int) -> None:
        """Add the same where the device computes the factor."""
        self.orthonormalize(width)
        if width:
            self.found[self.kernels.inverse_factor_kernel(self.dtype, width)] = None

    def norms(self) -> None:
        """Add the norms of the columns of residuals."""
        from .kernels.rows import trace

        T, R, k = self.dtype, self.real, self.kernels
        kernels: list[Kernel] = [k.axpby_kernel(T, None, T, flat=False), k.axpby_kernel(T, T, T, R, R)]
        kernels += [k.ColumnDots(T, T, same=True).kernel(), k.fold_kernel("float64", R)]
        self.found |= dict.fromkeys([*kernels, trace(ROOTS.function, (R,), (R,))])

    def scale(self) -> None:
        """Add what all methods do: random numbers, norms, and sums of blocks with factors per column."""
        self.norms()
        T, R, k = self.dtype, self.real, self.kernels
        sums = promote(T, "float64")  # sums of blocks of threads
        kernels: list[Kernel] = [k.philox_kernel(R), k.fill_kernel(R), k.fold_kernel(sums, T)]
        kernels += [k.axpby_kernel(T, Y, T, factor) for Y in (None, T) for factor in ("real", R)]
        for aligned in (True, False)[: 1 + (T != "complex128")]:  # columns at odd places
            kernels += [k.ColumnDots(T, T, same, aligned=aligned).kernel() for same in (False, True)]
            kernels += [k.axpby_kernel(T, None, T, flat=False, aligned=aligned)]
        if is_complex(T):  # real factors and dots of complex blocks
            kernels += [k.axpby_kernel(R, None, T), k.fold_kernel("float64", T)]
        self.found |= dict.fromkeys(kernels)


def requests(method: str, blocks: Blocks) -> dict[Any, Any]:
    """List what a method asks for: problems, with their matrices, and kernels without configurations."""
    METHODS.get(method, _any)(blocks)
    if method not in ("begin", "check"):
        blocks.scale()
    return blocks.found


def _check(s: Blocks) -> None:
    """List the check of symmetry: two random vectors beside their products."""
    s.found[s.kernels.philox_kernel(s.real)] = None
    s.apply(2, ldy=4, at_y=2)
    s.gram(4)
    s.found[s.kernels.axpby_kernel(s.dtype, None, s.dtype, flat=False)] = None


def _any(s: Blocks) -> None:
    s.apply(s.b)
    s.factorize(s.b)
    for M in range(s.b, s.capacity, s.b or 1):
        s.project(M, s.b, s.capacity)


def _begin(s: Blocks) -> bool:
    """List the first step of a Krylov space, what takes longest first; say whether a kernel takes others."""
    takes_steps = s.steps(s.b, s.capacity)
    s.factorize(s.b)
    s.apply(s.b)
    return takes_steps


def _krylov(s: Blocks, filtered: bool) -> None:
    """List the steps and restarts of a Krylov space of blocks of b columns, and the search for copies.

    In the order of their first use, and last what many solves end without: what waits is cancelled in the
    end. `last` are the columns that the last restart keeps.
    """
    b, keep, capacity, last = s.b, s.keep, s.capacity, s.last
    if not _begin(s):
        for M in range(b, capacity, b or 1):
            s.project(M, b, capacity)
        for M in (b, 2 * b) if filtered else (b, 2 * b, keep - b, keep, keep + b):
            s.subtract(M, b, capacity)
    s.rotate(capacity, keep, capacity)
    if filtered and s.p:
        s.gram(keep, capacity, s.p)
    s.norms()
    if filtered:
        s.recurrences(2, lanczos=True)
        s.recurrences(b)
        s.recur(b)
        # A X less X times a factor per column, of columns of a basis.
        s.found[s.kernels.axpby_kernel(s.dtype, s.dtype, s.dtype, s.real, flat=False)] = None
        s.combine(keep, b, capacity)
    s.rotate(capacity, last, capacity)
    s.gram(last, capacity)
    s.apply(s.k)
    s.combine(1, 1)
    s.dot(1, 1)
    s.apply(1)
    s.apply(2)
    if filtered:
        s.dot(keep, keep, capacity, 0, capacity, s.p)
        s.orthonormalize(keep)
        s.apply(b, ldx=capacity, ldy=capacity, at_y=keep)
        for N in (1, 2):
            s.subtract(keep, N, capacity, b)
    else:
        s.combine(1, 1, ldb=capacity, at_b=b)


def _jd(s: Blocks) -> None:
    """List a Jacobi-Davidson search space, whose widths are multiples of p, and its corrections."""
    b, p, k, basis = s.b, s.p, s.k, s.basis
    s.apply(b)
    for width in (s.width, 1):
        s.apply(width, shift="column", dots=("xy",))
        s.dot(p, width)
        s.subtract(p, width)
    s.orthonormalize(b)
    for M in range(p, s.capacity + 1, p or 1):
        s.project(M, s.width, basis)
        s.project(M, b, basis)
        s.combine(M, k, basis)
    s.rotate(s.vectors, s.after, basis)
    s.apply(s.width)
    s.orthonormalize(k)
    s.apply(1)
    s.dot(k, 1)
    s.subtract(k, 1)
    s.dot(2 * p, b)
    s.subtract(2 * p, 1)


def _svds(s: Blocks) -> None:
    """List triplets of given vectors, and the first look at A; iterations have lists of their own."""
    s.apply(1)
    s.apply(s.k)
    s.orthonormalize(s.k)
    s.combine(s.k, s.k)


def _cg(s: Blocks) -> None:
    """List true residuals, and steps."""
    s.apply(s.b)
    b = min(s.b, 32)
    s.orthonormalize(b)
    s.apply(b, gram=("xy",))
    s.update(b, b, 0)
    s.combine(b, b, ldb=s.b if s.b > b else 0, beta="one")
    s.combine(b, b)


def _minres(s: Blocks) -> None:
    s.apply(s.b)
    s.apply(s.b, dots=("xy",))


def _gmres(s: Blocks) -> None:
    """List true residuals, and Arnoldi steps."""
    s.apply(s.b)
    capacity = s.b * (s.restart + 1)
    for M in range(s.b, capacity, s.b or 1):
        s.dot(M, s.b, capacity)
        s.subtract(M, s.b, capacity)


def _lobpcg(s: Blocks) -> None:
    """List steps of all vectors, on three blocks side by side: X, P and W."""
    b, ld = s.b, 3 * s.b
    s.apply(b, ldx=ld, ldy=ld)
    s.gram(b, ld)
    for M in (b, 2 * b, ld):
        s.dot(M, M, ld, ldb=ld)
        s.rotate(M, min(M, 2 * b), ld)
    for M in (b, 2 * b):
        s.dot(M, b, ld, ldb=ld)
        s.update(M, b, ld, ld)


def _checked(s: Blocks) -> None:
    """List the check of a matrix, and products with right-hand sides or those of Lanczos steps for bounds."""
    _check(s)
    s.apply(s.b or 1)


METHODS: dict[str, Callable[[Blocks], object]] = {
    "begin": _begin,
    "check": _check,
    "lanczos": functools.partial(_krylov, filtered=False),
    "filter": functools.partial(_krylov, filtered=True),
    "jd": _jd,
    "svds": _svds,
    "cg": _cg,
    "minres": _minres,
    "lobpcg": _lobpcg,
    "gmres": _gmres,
    **dict.fromkeys(("solve", "function"), _checked),
    "polynomial": lambda s: s.recur(s.b, chain="one", ldz=s.b),
    "moments": lambda s: s.recur(s.b, dots=("xy", "yy")),
}
