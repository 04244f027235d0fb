"""Factorisations of Hermitian matrices A - sigma M: accurate solves with blocks, and inertia.

References
----------
Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228, section 3 (inertia counts).
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..backends import Array, Backend, backend_for, single_threaded_blas
from ..backends.base import is_nearly_full, is_small
from ..blocks.blockvector import BlockVector
from ..errors import BreakdownError, OptionError, ShapeError
from ..operations.profile import Profile
from .adapters import as_operator
from .base import BlockLike
from .operator import Operator

ACCURATE = 16.0  # a solution whose residual is below so many u of | |S| |x| + |b| | is as good as any
REFINEMENTS = 3  # steps of refinement in which a usable factorisation reaches that
CERTAIN = 10.0  # times the backward error: the least distance of an eigenvalue from a shift that counts
SINGULAR = 30.0  # a matrix with an eigenvalue below so many u |x|^H |S| |x| is singular


def factorize(A: Any, M: Any = None, sigma: float = 0.0, *, device: str | None = None) -> Factorization:
    """Factorise A - sigma M for solves with blocks, and count its negative eigenvalues.

    Parameters
    ----------
    A, M : sparse matrix or dense array, shape (n, n)
        Hermitian matrices of SciPy, NumPy or CuPy; without M, the identity. Dense arrays are copied; sparse
        matrices must not be modified while they are in use.
    sigma : float
        The shift.
    device : {"cpu", "gpu", "cuda:1"}, optional
        Device to copy the matrices to; default: that of A.

    Returns
    -------
    Factorization

    Raises
    ------
    OptionError, ShapeError, DTypeError
        For matrices that are not explicit, finite, or of one shape.
    DeviceError
        On a GPU without cuDSS.
    CapacityError
        If the factors do not fit in free memory; raised before they are allocated.

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec as bv
    >>> A = bv.models.laplace1d(n=100)
    >>> F = bv.factorize(A, sigma=0.9)
    >>> F.inertia  # eigenvalues of A below the shift
    31
    >>> B = np.ones((100, 2))
    >>> X = F.solve(B)
    >>> bool(np.abs(A @ X.array - 0.9 * X.array - B).max() < 1e-12)
    True
    """
    factors = Factorization(A, M, device=device)
    factors.refactorize(sigma)
    return factors


class Factorization:
    """Factors of a Hermitian matrix S = A - sigma M on one device; see `factorize`.

    ``Factorization(A, M)`` has the matrices, and no factors before the first `refactorize`.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    dtype : numpy.dtype
        Element type of S.
    sigma : float
        The shift.
    is_singular : bool
        Whether S is singular to working precision. Its solves are inaccurate, or refused.
    nearest : float
        Estimate of the least magnitude of an eigenvalue of S, relative to its norm.
    pivot_error : float
        Estimate of ||E||, relative to ||S||, where solves without refinement are those with S + E.
    """

    def __init__(self, A: Any, M: Any = None, *, device: str | None = None) -> None:
        operator = as_operator(A, device=device)
        self._backend: Backend = operator.backend
        dtype = operator.dtype if M is None else np.promote_types(operator.dtype, as_operator(M).dtype)
        self._A = self._explicit("A", A, dtype)
        mass: Any = sp.eye_array(self._A.shape[0], dtype=dtype, format="csr") if M is None else M
        self._M = self._explicit("M", mass, dtype)
        if self._A.shape[0] != self._A.shape[1] or self._M.shape != self._A.shape:
            shapes = ("{} x {}".format(*matrix.shape) for matrix in (self._A, self._M))
            raise ShapeError(f"factorize: A is {', M '.join(shapes)}; give square ones.")
        if not self._A.shape[0]:
            raise ShapeError("factorize: A has no rows; there is nothing to factorise.")
        self._is_on_host = self._backend.name == "cpu"
        self._products: tuple[Any, ...] = ()  # S on the host; A and M, or None, on a GPU
        if not self._is_on_host:
            self._products = self._applied(self._A), None if M is None else self._applied(self._M)
        self.shape: tuple[int, int] = self._A.shape
        self.dtype = np.dtype(dtype)
        self._unit = float(np.finfo(dtype).eps) / 2
        self._trusted = self._unit**0.5  # relative residual up to which a factorisation is usable
        self._factors = self._backend.factors(self._A)
        self.sigma = math.nan
        self._inertia: int | None = None
        self._counts = False  # whether the pivots of the factors are certain to tell the inertia
        self.is_singular, self._refinements, self._stored, self._norm = True, 0, 0, 0.0
        self.nearest, self.pivot_error = 0.0, math.inf

    @staticmethod
    def is_available(device: str = "gpu") -> bool:
        """Check whether the library that factorises large matrices of a device is installed."""
        return bool(backend_for(device).factor_library())

    @staticmethod
    def library(device: str = "cpu", dtype: Any = "float64") -> str:
        """Name the library that factorises large sparse matrices of a device and an element type.

        Returns
        -------
        str
            ``"SuperLU"``, ``"PARDISO"`` or ``"cuDSS"``; empty if none is installed.

        Examples
        --------
        >>> from blockvec import Factorization
        >>> Factorization.library("cpu", "complex128")
        'SuperLU'
        """
        return backend_for(device).factor_library(np.dtype(dtype).name)

    @staticmethod
    def is_small(n: int, entries: int) -> bool:
        """Check whether a matrix is factorised on the host in seconds, also one of a GPU."""
        return is_small(n, entries)

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:0"``, the device that blocks must be on."""
        return self._backend.name

    @property
    def inertia(self) -> int | None:
        """Number of negative eigenvalues of S; None where that is not certain.

        With a positive definite M it is that of the eigenvalues of A x = lambda M x below sigma. It is not
        certain where rows are exchanged for pivots, a solve is inaccurate, or an eigenvalue is so near that
        rounding errors of the pivots could have moved it across.
        """
        if self._counts:
            self._inertia, self._counts = self._factors.negative, False
        return self._inertia

    @property
    def entries(self) -> int:
        """Stored elements of the factors."""
        return self._factors.entries

    @property
    def nbytes(self) -> int:
        """Memory of the factors."""
        return self._factors.nbytes

    @property
    def solve_width(self) -> int:
        """Columns of the narrowest block that is solved for at full speed; with fewer, each takes longer."""
        return self._factors.width

    @property
    def growth(self) -> float:
        """Stored elements of the factors per element of S."""
        return self._factors.entries / max(self._stored, 1)

    @property
    def largest_mass(self) -> float:
        """Largest magnitude of an element of M."""
        entries = self._M if isinstance(self._M, np.ndarray) else self._M.data
        return float(abs(entries).max()) if entries.size else 0.0

    def shift_rounding(self, sigma: float) -> float:
        """Compute the rounding error u (||A|| / ||M|| + abs(sigma)) of eigenvalues near a shift."""
        A, M = (self._row_sums(abs(matrix)) for matrix in (self._A, self._M))
        return self._unit * ((A / M + abs(sigma)) or 1.0)

    @Profile.timed("factorisation")
    def refactorize(self, sigma: float, *, only_counts: bool = False) -> None:
        """Replace the factors by those for another shift.

        What depends on the pattern of S only is computed once, where the library can: orderings, symbolic
        factors, memory.

        Pivots on the diagonal keep the factors of a symmetric matrix several times sparser than exchanges of
        rows, and refinement makes up for the digits that small pivots cost. Where it cannot, rows are
        exchanged, unless `only_counts` tells that no solves follow: then `sigma` is NaN afterwards, and
        `inertia` may be certain all the same.
        """
        self.sigma = float(sigma)
        if not np.isfinite(self.sigma):
            raise OptionError(f"sigma: got {sigma!r}; give a finite number.")
        S = self._A if self._is_on_host and self.sigma == 0 else self._A - self._M * self.sigma
        self._inertia, self._counts, self.is_singular = None, False, True
        if self._is_on_host:
            S = S if isinstance(S, np.ndarray) or not is_nearly_full(S) else S.toarray()
            self._products = (as_operator(S, check_indices=False),)
        is_dense = isinstance(S, np.ndarray)
        self._stored = S.size if is_dense else int(S.nnz)
        # Calls of BLAS are short beside sparse factors, and its threads disturb long after them.
        is_sparse = self._is_on_host and not is_dense
        with single_threaded_blas if is_sparse else contextlib.nullcontext():
            self._compute(S, only_counts)

    def _compute(self, S: Any, only_counts: bool) -> None:
        """Compute the factors of S, where others are not accurate by exchanges of rows."""
        for exchanges_rows in (False, True):
            has_pivots = self._factors.compute(S, exchanges_rows)
            if not (has_pivots or (exchanges_rows and self._factors.entries)):
                continue
            if self._is_accurate_after_trial(S):
                break
            self._inertia = self.inertia  # before other factors replace these
            self.is_singular |= not has_pivots
            if only_counts:
                self.sigma = math.nan
                break

    def log_determinant(self) -> tuple[float, float] | None:
        """Compute the sign and the logarithm of the magnitude of det S from the pivots.

        The sign is 0 and the logarithm -inf for a matrix that is singular to working precision. cuDSS does
        not tell the pivots: None.

        Examples
        --------
        >>> import blockvec as bv
        >>> bv.factorize(bv.models.laplace1d(n=3), sigma=1.0).log_determinant()  # of -1
        (-1.0, 0.0)
        """
        if self.is_singular or not self._factors.entries:
            return 0.0, -math.inf
        found = self._factors.log_determinant()
        return None if found is None else (float(np.sign(found[0].real)), found[1])

    def solve(self, B: BlockLike, out: BlockLike | None = None, *, tolerance: float = 0.0) -> BlockVector:
        """Solve S X = B for a block; the residual of each column is checked, and refined where needed.

        Parameters
        ----------
        B : BlockVector or row-major array, shape (n, M)
        out : BlockVector or row-major array, shape (n, M), optional
            Output, which may be B itself.
        tolerance : float
            Residuals of at most tolerance ||x|| need no refinement. By default they are refined until
            rounding errors of the matrix explain them.

        Raises
        ------
        BreakdownError
            If the residual remains above the square root of the unit roundoff, relative to ||S|| ||X||.
        """
        block = B if isinstance(B, BlockVector) else BlockVector(B)
        if block.n_rows != self.shape[0] or block.device != self.device:
            raise ShapeError(
                f"solve: B is {block.shape} on {block.device}, the matrix {self.shape} on {self.device}."
            )
        if block.dtype != self.dtype:
            block = block.astype(self.dtype)
        if self._is_on_host:
            columns = self.solve_columns(np.asfortranarray(block.array), tolerance)
            X = BlockVector(np.ascontiguousarray(columns))
        else:
            X = self._refined(block, tolerance) if block.n_cols else block
        if out is None:
            return X
        target = out if isinstance(out, BlockVector) else BlockVector(out)
        target[:, :] = X
        return target

    def solve_columns(self, B: Array, tolerance: float = 0.0) -> Array:
        """Solve S X = B for a column-major NumPy array of the type of S, which is not checked; see `solve`.

        The shortest way to a few columns on the host; X is column-major.
        """
        return self._refined(B, tolerance) if B.size else B

    @Profile.timed("products")
    def solve_once(self, B: Array) -> Array:
        """Solve (S + E) X = B for the same arrays, with the error E of the pivots: nothing is checked."""
        X: Array = self._raw(B)
        return X

    # Blocks are column-major arrays on the host, and of BlockVector on a GPU.

    @Profile.timed("products")
    def _refined(self, B: Any, tolerance: float) -> Any:
        if not self._factors.entries:
            raise BreakdownError(
                f"solve: A - sigma M is singular for sigma = {self.sigma:.12g}; give another shift."
            )
        accurate, least = ACCURATE * self._unit, self._refinements
        if tolerance > accurate * self._norm:
            accurate, least = min(tolerance / self._norm, self._trusted), 0
        X = self._raw(B)
        for step in range(REFINEMENTS + 1):
            R = self._residual(B, X)
            error = self._backward_error(B, X, R)
            if step == REFINEMENTS or (step >= least and error <= accurate):
                break
            if np.isfinite(error):
                X += self._raw(R)
            else:
                X = self._raw(B)
        if not error <= self._trusted:
            raise BreakdownError(
                f"solve: the relative residual is {error:.2g} after {REFINEMENTS} steps of refinement; the "
                f"factors for sigma = {self.sigma:.12g} are not usable, or B holds NaN or Inf. Give another "
                "shift."
            )
        return X

    def _raw(self, B: Any) -> Any:
        if self._is_on_host:
            return np.asfortranarray(self._factors.solve(B))
        return BlockVector(self._factors.solve(B.array))

    def _residual(self, B: Any, X: Any) -> Any:
        """Compute B - S X, on the host with the entries of S rounded.

        That is an error of u (||A|| + abs(sigma) ||M||) ||x||.
        """
        if self._is_on_host:
            R = np.empty_like(B)
            self._products[0].apply_columns(X, R)
            return np.subtract(B, R, out=R)
        A, M = self._products
        R = B.copy()
        A.apply(X, out=R, alpha=-1, beta=1, shift=self.sigma if M is None else 0)
        if M is not None and self.sigma:
            M.apply(X, out=R, alpha=self.sigma, beta=1)
        return R

    def _lengths(self, B: Any) -> Any:
        return np.sqrt(np.vecdot(B.T, B.T).real) if self._is_on_host else B.norms()

    def _backward_error(self, B: Any, X: Any, R: Any) -> float:
        """Compute the largest residual of a column, relative to ||S|| ||x|| + ||b||."""
        with np.errstate(over="ignore", invalid="ignore"):
            scale = self._norm * self._lengths(X) + self._lengths(B) + np.finfo(self.dtype).tiny
            return float((self._lengths(R) / scale).max())

    def _is_accurate_after_trial(self, S: Any) -> bool:
        """Solve with a random right-hand side: count the refinements needed, look for a zero eigenvalue.

        The matrix is singular if two steps of inverse iteration find an eigenvalue that rounding explains.
        """
        xp, magnitudes = self._backend.xp, abs(S)
        self._norm = self._row_sums(magnitudes)
        numbers = np.random.default_rng(0).standard_normal((self.shape[0], 1)).astype(self.dtype)
        B = numbers if self._is_on_host else BlockVector(self._backend.from_host(numbers))
        X, self._refinements = self._raw(B), 0

        def column(V: Any) -> Any:
            return V[:, 0] if self._is_on_host else V.array[:, 0]

        def rounding(X: Any, b: Any) -> float:
            return self._unit * float(xp.linalg.norm(magnitudes @ xp.abs(column(X)) + b))

        def length_of(X: Any) -> float:
            return float(self._lengths(X)[0])

        R = self._residual(B, X)
        self.pivot_error = self._backward_error(B, X, R)
        is_usable = self.pivot_error <= self._trusted
        error, first = length_of(R), length_of(X)  # their ratio is the pivots' error in this direction
        limit = xp.abs(column(B))
        while not (is_accurate := length_of(R) <= ACCURATE * rounding(X, limit)):
            if self._refinements == REFINEMENTS - 1:
                break
            self._refinements += 1
            X += self._raw(R)
            R = self._residual(B, X)
        with np.errstate(over="ignore", invalid="ignore"):
            length = length_of(X)
            if np.isfinite(length):
                X *= 1 / length
                X = self._raw(X)
                length = length_of(X)
        self.is_singular = not np.isfinite(length)
        self.nearest = 1 / (length * self._norm) if 0 < length < math.inf else 0.0
        self._counts = self._inertia is None and is_usable and CERTAIN * error * length <= first
        if not self.is_singular:
            size = xp.abs(column(X)) / length
            scale = float(xp.vdot(size, magnitudes @ size))
            self.is_singular = bool(1 / length <= SINGULAR * self._unit * scale)
        return bool(is_accurate)

    def _row_sums(self, magnitudes: Any) -> float:
        """Compute the largest sum of a row, by a product, which all libraries have."""
        return float((magnitudes @ self._backend.xp.ones(self.shape[0], magnitudes.dtype)).max())

    def _explicit(self, name: str, matrix: Any, dtype: Any) -> Any:
        """Convert a matrix to compressed row form on the device, in canonical format."""
        if not hasattr(matrix, "dtype") or not (hasattr(matrix, "tocsr") or hasattr(matrix, "__array__")):
            raise OptionError(
                f"{name} is a {type(matrix).__name__}; a factorisation needs a sparse matrix or dense array."
            )
        if isinstance(matrix, np.ndarray):  # also of half precision, which sparse matrices do not have
            matrix = matrix.astype(dtype, order="C")  # a copy in any case, which the caller cannot modify
        is_kept = isinstance(matrix, np.ndarray) and self._backend.name == "cpu" and is_nearly_full(matrix)
        converted = matrix if is_kept else self._backend.csr(matrix, np.dtype(dtype))
        if not self._backend.xp.isfinite(converted if is_kept else converted.data).all():
            raise OptionError(f"{name} holds NaN or Inf; check its entries.")
        return converted

    def _applied(self, matrix: Any) -> Operator:
        return as_operator(matrix.toarray() if is_nearly_full(matrix) else matrix, check_indices=False)

    def __repr__(self) -> str:
        n, dtype = self.shape[0], self.dtype.name
        return f"Factorization({n}x{n}, {dtype}, sigma={self.sigma:g}, {self.device})"
