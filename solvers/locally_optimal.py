"""`lobpcg`: SciPy's call of the locally optimal block preconditioned conjugate gradient method."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from blockvec import BlockVector, as_operator, precompiled
from blockvec.errors import OptionError, ShapeError
from blockvec.interchange import ArrayKind, is_function

from .arguments import Options, blas_threads, integer, natively
from .blocks import Array, Block, ColumnBlock, RealArray, column_factors, pick, small_matrix, to_host
from .eigsh import eigsh
from .orthogonalization import orthogonalize
from .sizes import SHORT_ROWS
from .small_matrices import ritz_pairs

ITERATIONS = 20  # the default of SciPy
DENSE = 5  # rows per column, below which a dense problem is solved, as in SciPy
NEGLIGIBLE = 10.0  # eps: share of the longest direction, below which the others are rounding noise
NOT_HERMITIAN = 10.0  # eps: difference of a small matrix from Hermitian, relative or absolute, as in SciPy


def lobpcg(
    A: Any,
    X: Any,
    B: Any = None,
    M: Any = None,
    Y: Any = None,
    tol: float | None = None,
    maxiter: int | None = None,
    largest: bool = True,
    verbosityLevel: int = 0,  # noqa: N803  the names of SciPy
    retLambdaHistory: bool = False,  # noqa: N803
    retResidualNormsHistory: bool = False,  # noqa: N803
    restartControl: int = 20,  # noqa: N803
) -> Any:
    """Compute eigenpairs at an end of the spectrum of A x = lambda B x by LOBPCG.

    A replacement for `scipy.sparse.linalg.lobpcg` and CuPy's: the same iterations, with a basis of X,
    residuals and previous directions that is orthonormal to rounding, so that no ill-conditioned Gram matrix
    ends them. `eigsh` usually takes less time.

    Parameters
    ----------
    A : sparse matrix, array, LinearOperator or callable, shape (n, n)
        Hermitian. A callable maps an array of shape (n, c) to an array of the same shape.
    X : array or BlockVector, shape (n, k)
        Initial vectors; not modified.
    B : like A, optional
        Hermitian positive definite. Default: the identity.
    M : like A, optional
        Preconditioner: approximation of the inverse of A.
    Y : array, shape (n, c), optional
        Constraints: linearly independent columns, to which the vectors are orthogonal in the inner product
        of B.
    tol : float, optional
        Largest residual norm ||A x - lambda B x||; default n sqrt(eps).
    maxiter : int, optional
        Number of iterations, default 20; the basis is extended once more than that, as in SciPy.
    largest : bool
        Whether to compute the largest or the smallest eigenvalues.
    verbosityLevel : int
        Whether to print the course of the iteration.
    retLambdaHistory, retResidualNormsHistory : bool
        Whether to return the eigenvalues, or the residual norms, of all iterations, as lists of arrays.
    restartControl : int
        Drop directions if the residuals grow 2^restartControl times above the least ones.

    Returns
    -------
    w : array, shape (k,)
        Eigenvalues, from the wanted end on: those of the iterate with the smallest residuals.
    X : array, shape (n, k)
        Vectors, orthonormal in the inner product of B.
    lambdas, residuals : list of array, optional

    Raises
    ------
    OptionError, ShapeError, DTypeError
        For arguments that do not fit; subclasses of ValueError or TypeError.
    BreakdownError
        If A, B or M returns NaN or Inf, or B is not positive definite.

    Warns
    -----
    UserWarning
        If residuals are above the tolerance at the end, and for n < 5 k, where a dense problem is solved.

    References
    ----------
    Knyazev, SIAM J. Sci. Comput. 23 (2001) 517; Hetmaniuk, Lehoucq, J. Comput. Phys. 218 (2006) 324 (the
    basis).

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> A = blockvec.models.model("laplace2d:n=30")
    >>> X = np.random.default_rng(0).standard_normal((900, 4))
    >>> w, X = blockvec.lobpcg(A, X, largest=False, maxiter=200, tol=1e-8)
    >>> w.round(6).tolist()
    [0.020523, 0.051201, 0.051201, 0.08188]
    """
    kind = ArrayKind.of_caller(A) or ArrayKind.of_caller(X)
    maxiter = ITERATIONS if maxiter is None else integer("maxiter", maxiter, 0)
    if X is None or len(getattr(X, "shape", ())) != 2:
        raise ShapeError("X: give an array of shape (n, k), the initial vectors.")
    if Y is not None and len(Y.shape) != 2:
        text = f"Expected rank-2 array for argument Y, instead got {len(Y.shape)}, so ignore it."
        warnings.warn(text, stacklevel=2)
        Y = None
    if np.dtype(str(X.dtype).rpartition(".")[2]).kind not in "fc":
        text = f"Data type for argument X is {X.dtype}, which is not inexact, so casted to np.float32."
        warnings.warn(text, stacklevel=2)
        X = X.astype(np.float32)
    is_block = isinstance(X, BlockVector)
    A, B, M, start, Y = natively(kind, A, B, M, X.array if is_block else X, Y)
    layout = X.layout if is_block else None
    run = _Lobpcg(A, B, M, BlockVector(start, copy=True, layout=layout), Y, largest, verbosityLevel)
    if verbosityLevel:
        name = "standard" if B is None else "generalized"
        print(f"Solving {name} eigenvalue problem: {run.n} rows, {run.k} vectors, {run.fixed} constraints")
    values: Any
    vectors: Any
    histories: list[Any] = []
    if run.n - run.fixed < DENSE * run.k:
        warnings.warn(
            f"The problem size {run.n} minus the constraints size {run.fixed} is too small relative to the "
            f"block size {run.k}. Using a dense eigensolver instead of LOBPCG iterations. No output of the "
            "history of the iterations.",
            stacklevel=2,
        )
        options: Options = {"method": "dense", "on_unconverged": "return", "check_hermitian": False}
        options["orthogonal_to"] = Y if run.fixed else None
        count = min(run.k, run.n - run.fixed)
        values, vectors = eigsh(run.A, count, run.B, which="LA" if largest else "SA", **options)
        values, vectors = values[:: run.sign], vectors[:, :: run.sign]
    else:
        limit = float(tol or 0) if (tol or 0) > 0 else run.n * float(np.finfo(run.X.dtype).eps) ** 0.5
        with blas_threads(run.A), precompiled("lobpcg", run.A, run.X.dtype, b=run.k):
            messages = run.iterate(limit, maxiter, 2.0**restartControl)
        for message in messages:
            warnings.warn(message, stacklevel=2)
        values, vectors = column_factors(run.theta, run.X), run.X.array
        histories = [run.thetas] * retLambdaHistory + [run.norms] * retResidualNormsHistory
    block = BlockVector(vectors, copy=not vectors.flags.c_contiguous, layout=layout)
    vectors = block if is_block else block.array
    if kind is not None and not is_block:
        values, vectors = kind.share(values), kind.share(vectors)
    return (values, vectors, *histories)


class _Lobpcg:
    """The basis S = [Y X P W], orthonormal in the inner product of B, with A S and B S beside it."""

    def __init__(self, A: Any, B: Any, M: Any, X: BlockVector, Y: Any, largest: bool, verbosity: int) -> None:
        self.k, self.n, self.sign, self.verbosity = X.shape[1], X.n_global, -1 if largest else 1, verbosity
        images = (m(X.array) if is_function(m) else m for m in (A, B) if m is not None)
        dtype = np.result_type(X.dtype, *(image.dtype for image in images))
        dtype = np.dtype(dtype.char if dtype.char in "fdFD" else "D" if dtype.kind == "c" else "d")
        n, layout = self.n, X.layout
        of: Any = {"shape": (n, n), "dtype": dtype, "device": X.device}  # of a function
        operators: Any = (
            None if m is None else as_operator(m, layout=layout, **(of if is_function(m) else {}))
            for m in (A, B, M)
        )
        self.A, self.B, self.M = operators
        if self.A is None or self.A.shape != (self.n, self.n):
            raise ShapeError(f"A has shape {getattr(self.A, 'shape', None)} but X has {self.n} rows.")
        self.fixed = 0 if Y is None else Y.shape[1]
        # Ranges of columns of one block are passed over, which are contiguous in column-major ones.
        is_short = X.device == "cpu" and self.n <= SHORT_ROWS
        kind: Any = ColumnBlock.of if is_short else lambda block: block
        self.X = kind(BlockVector(X.array, copy=True, dtype=dtype, layout=X.layout))
        self.S = self.X.like(self.fixed + 3 * self.k)
        self.AS, self.BS = self.S.like(), self.S if self.B is None else self.S.like()
        if Y is not None:
            self.S[:, : self.fixed] = kind(BlockVector(Y, copy=True, dtype=dtype, layout=X.layout))

    def iterate(self, limit: float, maxiter: int, growth: float) -> list[str]:
        """Iterate; set X, theta and the histories, and return warnings."""
        begin, k = self.fixed, self.k
        found: list[str] = []
        if begin and self._orthonormal(0, begin) < begin:
            raise OptionError("Linearly dependent constraints: leave out columns of Y.")
        theta = self._restart()
        self.thetas, self.norms = [theta], []
        least, best = np.inf, -1
        for iteration in range(maxiter + 2):  # the last time for the residuals alone
            R, norms = self._residuals(theta)
            self.norms.append(norms)
            mean = float(norms.mean())
            if mean < least:
                least, best = mean, iteration
                self.X = self.S[:, begin : begin + k].copy()
            elif mean > growth * least:
                self.directions = 0
                self._apply(begin, k)
            active = norms > limit
            if self.verbosity:
                print(f"iteration {iteration}\ncurrent block size: {active.sum()}")
                print(f"eigenvalue(s):\n{theta}\nresidual norm(s):\n{norms}")
            if iteration > maxiter or not active.any():
                break
            added = self._extend(pick(R, np.flatnonzero(active)), norms[active])
            if not added and not self.directions:
                found.append(
                    f"Failed at iteration {iteration} with accuracies {norms}\n not reaching the requested "
                    f"tolerance {limit}."
                )
                break
            theta, C = self._ritz(k + self.directions + added)
            self._rotate(C, k, np.flatnonzero(active))
            self.thetas.append(theta)
        if norms.max() > limit:
            found.append(
                f"Exited at iteration {min(iteration, maxiter)} with accuracies \n{norms}\nnot reaching the "
                f"requested tolerance {limit}.\nUse iteration {best} instead with accuracy \n{least}.\n"
            )
        self.theta = self._restart()
        _, norms = self._residuals(self.theta)
        if norms.max() > limit >= self.norms[best].max():  # vectors of one eigenvalue were mixed
            self.theta, norms = self.thetas[best], self.norms[best]
        else:
            self.X = self.S[:, begin : begin + k].copy()
        self.thetas, self.norms = [*self.thetas[: best + 1], self.theta], [*self.norms[: best + 1], norms]
        if norms.max() > limit:
            found.append(
                f"Exited postprocessing with accuracies \n{norms}\nnot reaching the requested tolerance "
                f"{limit}."
            )
        return found

    def _restart(self) -> RealArray:
        """Begin from X: its Ritz pairs, without directions."""
        self.S[:, self.fixed : self.fixed + self.k] = self.X
        self._orthonormal(self.fixed, self.k)
        self._apply(self.fixed, self.k)
        theta, C = self._ritz(self.k)
        self._rotate(C, self.k)
        return theta

    def _orthonormal(self, begin: int, width: int) -> int:
        """Make columns of S orthonormal, also to those before; return how many of them are independent."""
        W, V = self.S[:, begin : begin + width], self.S[:, :begin]
        found = orthogonalize(W, V if begin else None, M=self.B)
        if self.B is not None:
            self.B.apply(W, out=self.BS[:, begin : begin + width])
        return int(np.count_nonzero(~found.lost))

    def _apply(self, begin: int, width: int) -> None:
        self.A.apply(self.S[:, begin : begin + width], out=self.AS[:, begin : begin + width])

    def _ritz(self, width: int) -> tuple[RealArray, Array]:
        """Compute the k wanted Ritz values of A in the span of X, P and W, and their coefficients."""
        span = slice(self.fixed, self.fixed + width)
        G = to_host(self.S[:, span].dot(self.AS[:, span]))
        if self.verbosity:
            bound = NOT_HERMITIAN * float(np.finfo(G.dtype).eps) * max(float(np.linalg.norm(G, 1)), 1.0)
            size = float(np.linalg.norm(G - G.conj().T, 1))
            if size > bound:
                text = f"Matrix gramA of the type {G.dtype} is not Hermitian: condition: {size} < {bound}"
                warnings.warn(f"{text} fails.", stacklevel=4)
        values, V = ritz_pairs(G.astype(np.complex128 if G.dtype.kind == "c" else np.float64))
        order = np.argsort(self.sign * values, kind="stable")[: self.k]
        return values[order].astype(self.X.array.real.dtype), V[:, order]

    def _rotate(self, C: Array, k: int, active: Sequence[int] | Any = ()) -> None:
        """Set X = [X P W] C, and P to the part of that outside of the old X, for some columns."""
        D = C[:, active].copy()
        D[:k] = 0
        for _ in range(2):
            D -= C @ (C.conj().T @ D)
        U, sizes, _ = np.linalg.svd(D, full_matrices=False)
        U = U[:, sizes > NEGLIGIBLE * float(np.finfo(self.X.dtype).eps) * sizes.max(initial=0)]
        self.directions = U.shape[1] if len(C) > k else 0
        both = np.hstack([C, U[:, : self.directions]])
        for buffer in (self.S, self.AS, *([] if self.B is None else [self.BS])):
            whole: Any = buffer[:, self.fixed : self.fixed + len(C)]
            whole.combine(small_matrix(both, whole), out=whole[:, : both.shape[1]])

    def _residuals(self, theta: RealArray) -> tuple[Block, RealArray]:
        X = slice(self.fixed, self.fixed + self.k)
        R: Any = self.AS[:, X].copy()
        R.axpy(column_factors(-theta, R), self.BS[:, X])
        return R, np.asarray(to_host(R.norms()))

    def _extend(self, R: Block, norms: RealArray) -> int:
        """Append the preconditioned residuals to the basis; return the number of new columns."""
        begin, width = self.fixed + self.k + self.directions, R.shape[1]
        R.scale(column_factors(1 / norms, R))
        self.S[:, begin : begin + width] = R if self.M is None else self.M.apply(R)
        added = self._orthonormal(begin, width)
        self._apply(begin, added)
        return added
