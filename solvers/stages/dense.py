"""Dense LAPACK for operators of few rows: their matrices, and selected eigenpairs of these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal, eigvalsh_tridiagonal, get_lapack_funcs

from blockvec import BlockVector, array_namespace, as_operator, single_threaded_blas
from blockvec import Operator as ArrayOperator
from blockvec.errors import BreakdownError, OptionError
from blockvec.parallel import share

from ..arguments import matrix_on_host
from ..blocks import (
    Block,
    Operator,
    RealArray,
    ceil_div,
    column_factors,
    empty_block,
    is_explicit,
    project_out,
    to_host,
    whole_ranges,
)
from ..costs import FEW_ROWS, SMALL, fits_dense, is_dense, require_memory
from ..problem import Counts, IterationOptions, Problem, Selection, Verification, select
from ..result import EigenResult, result_of

PANEL = 64  # columns: of the identity per product to form a matrix, and that LAPACK may work on at once
# Rows per pair from which on selected vectors of a tridiagonal matrix take less time than all: six of 180
# rows .67, of 600 to 2000 rows .45 to .35.
SELECTIVE_ROWS = 10  # rows per pair


def formed(operator: Operator, like: Block) -> Any:
    """Form the matrix of an operator of any shape: its own, or by products with columns of the identity.

    `like` is a block that it can be applied to; its rows may be split over processes.
    """
    A, sparse = getattr(operator, "matrix", None), matrix_on_host(operator)
    if sparse is not None:
        return sparse.toarray()
    if A is None:
        xp, n = array_namespace(like.array), like.n_global
        rows = slice(None) if like.layout is None else like.layout.rows
        A = xp.empty((operator.shape[0], n), like.dtype)
        for begin in range(0, n, PANEL):
            end = min(begin + PANEL, n)
            columns = like.like(end - begin)
            columns.array[...] = xp.eye(n, end - begin, k=-begin, dtype=like.dtype)[rows]
            A[:, begin:end] = _whole(operator.apply(columns))
    return A


def dense_matrix(operator: Operator, like: Block) -> Any:
    """Form the matrix of a Hermitian operator, without rounding errors that are not Hermitian."""
    A = formed(operator, like)
    return (A + A.conj().T) / 2


def dense_bytes(op: Operator) -> int:
    """Compute the memory that dense LAPACK needs."""
    n: int = op.shape[0]
    return 5 * n * n * op.dtype.itemsize


def matrix_of(name: str, A: Any, like: ArrayOperator) -> Any:
    """Form the dense matrix of an operator of the host that must be factorised; keep matrices.

    Only operators of few rows are formed; others are kept, too. `like` has the shape and
    the type of a function.
    """
    if is_explicit(A) or not (hasattr(A, "shape") or callable(A)):
        return A
    op = as_operator(A, shape=like.shape, dtype=like.dtype)
    if op.device != "cpu" or op.shape != like.shape or not fits_dense(op):
        return A
    require_memory(op, dense_bytes(op), f"the dense matrix of {name}", f"give {name} as a sparse matrix")
    if op is not like:  # which has been checked
        op.check_hermitian(0, name=name)
    return dense_matrix(op, empty_block(op))


def dense_eigenpairs(
    operator: Operator,
    like: Block,
    k: int,
    which: Selection,
    transformed: Callable[[RealArray], RealArray] | None = None,
    locked: Block | None = None,
) -> tuple[RealArray, Any, float]:
    """Compute k wanted eigenpairs of an operator by dense LAPACK, in ascending order, and its norm.

    `which` selects eigenvalues as they are, or `transformed`. The values are on the host; the vectors are a
    row-major array of shape (n, k) on the device of `like`, which has n rows. The operator is restricted to
    the complement of the locked columns. If rows are split over processes, each computes all pairs and
    returns its rows of those of the first one.
    """
    layout = like.layout
    xp = array_namespace(like.array)
    A = dense_matrix(operator, like)
    if not bool(xp.isfinite(A).all()):
        raise BreakdownError("the matrix holds NaN or Inf; check its entries.")
    if locked is not None:
        Q = xp.linalg.qr(_whole(locked), mode="complete")[0][:, locked.shape[1] :]
        A = Q.conj().T @ A @ Q

    n, is_here, selected = len(A), isinstance(A, np.ndarray), None
    with single_threaded_blas if is_here and n <= SMALL else contextlib.nullcontext():
        if is_here and n >= SELECTIVE_ROWS * k:
            selected = selected_eigenpairs(A, k, which, transformed)
        if selected is None:
            values, X = xp.linalg.eigh(A)
            theta = to_host(values).astype(np.float64)
            order = _wanted(theta, k, which, transformed)
            selected = theta[order], X[:, xp.asarray(order)], float(np.abs(theta).max())
    theta, X, norm = selected
    X = xp.ascontiguousarray(X if locked is None else Q @ X)
    if layout is None or layout.comm is None:
        return theta, X, norm
    pairs = (theta, to_host(X), norm) if layout.rank == 0 else None
    values, X, norm = share(layout.comm, pairs)[0]
    return values, xp.asarray(np.ascontiguousarray(X[layout.rows])), norm


def _wanted(
    theta: RealArray, k: int, which: Selection, transformed: Callable[[RealArray], RealArray] | None
) -> NDArray[np.intp]:
    return np.sort(select(theta if transformed is None else transformed(theta), which)[:k])


def selected_eigenpairs(
    A: NDArray[Any],
    k: int,
    which: Selection,
    transformed: Callable[[RealArray], RealArray] | None = None,
) -> tuple[RealArray, NDArray[Any], float] | None:
    """Compute k wanted eigenpairs of a Hermitian matrix of the host, ascending, and its norm.

    They are those of a tridiagonal matrix, by bisection and inverse iteration; of an end of the spectrum no
    other values are computed, which would take a fifth of the time, but the outermost ones. Values whose
    indices are not neighbours are computed apart. Copies of one value may have the same vector then: the
    result is None if vectors are not orthonormal.

    Examples
    --------
    >>> import numpy as np
    >>> theta, X, norm = selected_eigenpairs(np.diag([3.0, 1.0, 2.0]), 2, "BE")
    >>> theta.tolist(), np.abs(X).tolist(), norm
    ([1.0, 3.0], [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], 3.0)
    """
    names = ("hetrd", "unmqr") if A.dtype.kind == "c" else ("sytrd", "ormqr")
    functions: Any = get_lapack_funcs(names, (A,))
    (reduce, rotate), n = functions, len(A)
    F, d, e, tau, _ = reduce(A.T, lower=1, lwork=PANEL * n)  # A^T is column-major, and conj(A)
    outer: Any  # values, of which the first and the last are the outermost
    low = {"SA": k, "BE": k // 2, "LA": 0}.get(which)
    try:
        if transformed is None and low is not None:
            order = np.r_[:low, n - k + low : n]
            outer = [eigvalsh_tridiagonal(d, e, select="i", select_range=(i, i))[0] for i in (0, n - 1)]
        else:
            outer = eigvalsh_tridiagonal(d, e).astype(np.float64)
            order = _wanted(outer, k, which, transformed)
        neighbours = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
        ranges = [(int(part[0]), int(part[-1])) for part in neighbours]
        parts = [eigh_tridiagonal(d, e, select="i", select_range=ends) for ends in ranges]
    except np.linalg.LinAlgError:
        return None
    theta = np.concatenate([values for values, _ in parts]).astype(np.float64)
    Z = np.asfortranarray(np.concatenate([vectors for _, vectors in parts], axis=1), A.dtype)
    defect = np.abs(Z.T @ Z - np.eye(k)).max()
    if not defect <= n * np.finfo(A.dtype).eps:
        return None
    Z[1:], *_ = rotate("L", "N", F[1:, :-1], tau, Z[1:], PANEL * k)
    return theta, Z.conj(), float(np.abs(outer).max())


def _whole(block: Block) -> Any:
    """Return all rows of a block."""
    return block.array if block.layout is None else block.layout.gather(block.array)


def solve_densely(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve by dense LAPACK."""
    from ..transform.spectral_map import SpectralMap

    op, n = problem.operator, problem.n
    purpose = f"a dense matrix of {n} rows and its eigenvectors"
    require_memory(op, dense_bytes(op), purpose, "use method='lanczos'")
    if op.layout is not None and n > FEW_ROWS:
        raise OptionError(
            f"method: dense LAPACK runs in every process, for up to {FEW_ROWS} rows; A has {n}: use "
            "method='lanczos', or leave out comm."
        )
    around = None if problem.target is None else SpectralMap(problem.target).transformed
    wanted = problem.k, problem.which, around
    theta, X, norm = dense_eigenpairs(op, empty_block(op), *wanted, problem.locked)
    norm = norm if problem.norm is None else problem.norm
    counts, k = Counts(), len(theta)
    by_products = 0 if is_dense(op) or matrix_on_host(op) is not None else n
    counts.apply(by_products + k)
    counts.block_applications = ceil_div(by_products, PANEL) + ceil_div(k, PANEL)
    limits = np.broadcast_to(problem.tolerance.limits(theta, norm), theta.shape)
    vectors = BlockVector(X, layout=op.layout)
    R = vectors.like()
    for begin, end in whole_ranges(k, PANEL, vectors):
        op.apply(vectors[:, begin:end], out=R[:, begin:end])
    R.axpy(column_factors(-theta, vectors), vectors)
    residuals = to_host(project_out(problem.locked, R).norms()).astype(np.float64)
    return result_of(
        *(problem, options, theta, vectors, residuals, limits, Verification.NOT_NEEDED, counts),
        stopped="converged",
        verification="not needed: dense LAPACK finds everything",
        missing=0,
        norm=norm,
        degree=1,
    )
