"""Preconditioners for Jacobi-Davidson: the diagonal, factors of low precision or incomplete ones, multigrid.

A preconditioner is any function that maps a row-major array of shape (n, b) to a new one. If it has a method
``update(theta)``, this is called whenever another pair becomes the first to be corrected, or its Ritz value
has changed by more than its residual.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import spilu, splu

from blockvec import BlockVector, array_namespace, as_operator
from blockvec.errors import OptionError
from blockvec.interchange import native

from ..blocks import Array

NULL = 1e-13  # of the largest diagonal entry: values of the coarsest level that are zero but for rounding
SMOOTHING = 2  # products of a smoother with the matrix of a level, as many as a symmetric Gauss-Seidel sweep
LOWEST = 0.25  # share of the spectrum of D^-1 A below which smoothers leave errors to coarser levels
SAFETY = 1.1  # factor on estimates of the largest eigenvalue of D^-1 A
SMALLEST = 1e-3  # lower bound of diagonal entries, relative to the largest


class JacobiPreconditioner:
    """Division by abs(diag(A) - theta diag(M)), which is positive definite for every theta.

    Parameters
    ----------
    A : sparse matrix or dense array, shape (n, n)
    M : sparse matrix or dense array, shape (n, n), optional
    theta : float, default 0
        Initial value.

    Raises
    ------
    OptionError
        If A has no method ``diagonal``.

    Examples
    --------
    >>> import numpy as np
    >>> K = JacobiPreconditioner(np.diag([1.0, 4.0]))
    >>> K.update(2.0)
    >>> K(np.ones((2, 1))).tolist()
    [[1.0], [0.5]]
    """

    def __init__(self, A: Any, M: Any = None, theta: float = 0.0) -> None:
        A, M = native(A), native(M)
        if not hasattr(A, "diagonal"):
            raise OptionError(f"JacobiPreconditioner: got {type(A).__name__}; give a matrix with a diagonal.")
        self._diagonals = A.diagonal().real, 1.0 if M is None else M.diagonal().real
        self.update(theta)

    def update(self, theta: float) -> None:
        """Set theta."""
        d = abs(self._diagonals[0] - theta * self._diagonals[1])
        self._inverse = (1 / array_namespace(d).maximum(d, SMALLEST * d.max()))[:, None]

    def __call__(self, X: Array) -> Array:
        """Return K^-1 X."""
        return native(X) * self._inverse  # type: ignore[no-any-return]


class FactorPreconditioner:
    """Solves with a factorisation of A - sigma M in single precision, complete or incomplete, on the host.

    Complete factors take half of the memory of those that ``eigsh(A, sigma=sigma)`` computes. Incomplete ones
    take as much as `fill` permits.

    Parameters
    ----------
    A : sparse matrix or dense array, shape (n, n)
        Hermitian.
    M : sparse matrix or dense array, shape (n, n), optional
    sigma : float, default 0
        Shift, at which the matrix must not be singular.
    fill : float, optional
        Size of incomplete factors, relative to the entries of A. Default: complete factors.
    drop : float, default 1e-3
        Entries of incomplete factors below this fraction of their column are dropped.

    Raises
    ------
    OptionError
        If A - sigma M is no matrix of finite numbers on the host, or singular to single precision.

    References
    ----------
    Li, Shao, ACM Trans. Math. Software 37 (2011) 43 (SuperLU's incomplete factors).

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec.models import model
    >>> A = model("laplace2d:n=30")
    >>> B = np.ones((900, 2))
    >>> X = FactorPreconditioner(A)(B)
    >>> bool(np.abs(A @ X - B).max() < 1e-3)
    True
    """

    def __init__(
        self, A: Any, M: Any = None, sigma: float = 0.0, *, fill: float | None = None, drop: float = 1e-3
    ) -> None:
        S = _host_matrix("A", A)
        if M is not None or sigma:
            mass = sp.eye_array(S.shape[0]) if M is None else _host_matrix("M", M)
            S = sp.csc_array(S - sigma * mass)
        largest = float(abs(S).max())
        if not (0 < largest < math.inf):
            raise OptionError(f"FactorPreconditioner: the largest entry of A - sigma M is {largest:g}.")
        self._scale = 2.0 ** math.frexp(largest)[1]
        self._dtype = np.complex64 if S.dtype.kind == "c" else np.float32
        self.is_complete = fill is None
        factorize: Any = splu if fill is None else functools.partial(spilu, drop_tol=drop, fill_factor=fill)
        options = {
            "permc_spec": "MMD_AT_PLUS_A",
            "diag_pivot_thresh": 0.0,
            "options": {"SymmetricMode": True},
        }
        try:
            self._factors: Any = factorize((S / self._scale).astype(self._dtype), **options)
        except RuntimeError as error:
            raise OptionError(
                f"FactorPreconditioner: A - sigma M with sigma = {sigma:g} is singular in single precision "
                f"({error}); give another sigma."
            ) from None

    @property
    def entries(self) -> int:
        """Number of entries of the factors, of four bytes each (eight if complex)."""
        return int(self._factors.nnz)

    def __call__(self, X: Array) -> Array:
        """Return K^-1 X, for incomplete factors their Hermitian part."""
        X = np.asarray(native(X))
        if X.dtype.kind == "c" and self._dtype is np.float32:
            return self(X.real) + 1j * self(X.imag)
        size = np.maximum(np.abs(X).max(axis=0, initial=0.0), np.finfo(X.real.dtype).tiny)
        columns: Array = np.asfortranarray(X / size, dtype=self._dtype)
        solved = self._factors.solve(columns)
        if not self.is_complete:
            solved = (solved + self._factors.solve(columns, "H")) / 2
        return np.ascontiguousarray(solved * (size / self._scale), np.result_type(X.dtype, self._dtype))


class MultigridPreconditioner:
    """One V-cycle of algebraic multigrid by smoothed aggregation, with PyAMG's levels, on the host.

    For positive definite A, such as diffusion and elasticity on meshes of any size: memory and time are
    proportional to the number of entries. All columns pass through a level together; smoothers are Chebyshev
    polynomials of the matrix, whose products with blocks take a fraction of PyAMG's Gauss-Seidel sweeps.

    Parameters
    ----------
    A : sparse matrix, shape (n, n)
        Hermitian and positive definite; for values around a sigma below the spectrum A - sigma M.
    near_null : array, shape (n, c), optional
        Vectors that A nearly maps to zero: of elasticity the rigid-body motions. Default: ones.
    **options
        Of `pyamg.smoothed_aggregation_solver`.

    Raises
    ------
    ModuleNotFoundError
        If PyAMG is not installed.
    OptionError
        If A is no matrix of the host.
    """

    def __init__(self, A: Any, near_null: Any = None, **options: Any) -> None:
        try:
            pyamg = importlib.import_module("pyamg")
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "MultigridPreconditioner: PyAMG is not installed; install it with 'pip install pyamg'.",
                name="pyamg",
            ) from None
        matrix = sp.csr_matrix(_host_matrix("A", A))
        self.hierarchy = pyamg.smoothed_aggregation_solver(matrix, B=near_null, **options)
        *levels, coarsest = self.hierarchy.levels
        self._levels = [_level(level) for level in levels]
        values, V = np.linalg.eigh(coarsest.A.toarray())
        kept = values > NULL * abs(matrix.diagonal()).max()
        self._coarse = (V[:, kept] / values[kept]) @ V[:, kept].conj().T

    def __call__(self, X: Array) -> Array:
        """Apply a V-cycle to a block."""
        array = np.ascontiguousarray(np.asarray(native(X)))
        product: Array = self._cycle(0, BlockVector(array)).array
        return product.astype(array.dtype, copy=False).reshape(array.shape)

    def _cycle(self, depth: int, B: BlockVector) -> Any:
        """Solve A X = B on a level, approximately; smoothers begin with X = 0, and with a correction."""
        if depth == len(self._levels):
            return BlockVector(self._coarse @ B.array)
        A, P, restriction, steps = self._levels[depth]
        X = BlockVector(steps[0] * B.array)
        for step in (*steps[1:], None, *steps):
            R = A.apply(X).axpby(1, B, -1)
            change = (
                P @ self._cycle(depth + 1, restriction @ R) if step is None else BlockVector(step * R.array)
            )
            X.axpy(1, change)
        return X


def _level(level: Any) -> tuple[Any, ...]:
    """Convert A, P and R of a level; add the steps of its smoother.

    These have the roots of a Chebyshev polynomial of D^-1 A, where D is the diagonal of A.
    """
    diagonal = level.A.diagonal()
    inverse = 1 / np.where(diagonal != 0, diagonal, 1.0)
    largest = SAFETY * float(importlib.import_module("pyamg.relaxation.smoothing").rho_D_inv_A(level.A))
    middle, half = largest * (1 + LOWEST) / 2, largest * (1 - LOWEST) / 2
    roots = middle + half * np.cos(np.pi * (np.arange(SMOOTHING) + 0.5) / SMOOTHING)
    steps = [(inverse / root)[:, None] for root in roots]
    return *(as_operator(sp.csr_array(matrix)) for matrix in (level.A, level.P, level.R)), steps


def _host_matrix(name: str, A: Any) -> Any:
    """Convert a matrix of the host to compressed columns, of floating-point numbers."""
    A = native(A)
    shape: tuple[int, ...] = getattr(A, "shape", ()) if isinstance(A, np.ndarray) or sp.issparse(A) else ()
    if len(shape) != 2 or shape[0] != shape[1]:
        raise OptionError(f"{name}: got {type(A).__name__}; give a square matrix of the host.")
    matrix: Any = sp.csc_array(A)
    return matrix.astype(np.result_type(matrix.dtype, np.float32))


def following(function: Callable[[Any], Any], update: Any) -> Callable[[Any], Any]:
    """Return `function` with a method `update` of Ritz values, unless that is None."""
    if not callable(update):
        return function
    follower: Any = functools.partial(function)
    follower.update = update
    return follower  # type: ignore[no-any-return]
