"""`eigsh`: eigenpairs of Hermitian matrices and operators, with SciPy's signature and meaning."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from blockvec.system.scalars import plain

from .arguments import Options
from .problem import IterationState, Method
from .result import EigenResult
from .runtime.processes import together
from .runtime.progress import logger
from .settle import settle

if TYPE_CHECKING:
    from .iterations.jd_options import JacobiDavidsonOptions
    from .iterations.mixed_precision import Precision


@overload
def eigsh(
    A: Any,
    k: int | None = None,
    M: Any = None,
    sigma: float | None = None,
    which: str = "LM",
    *,
    return_eigenvectors: bool = True,
    return_info: Literal[True],
    **options: Unpack[Options],
) -> EigenResult: ...


@overload
def eigsh(
    A: Any,
    k: int | None = None,
    M: Any = None,
    sigma: float | None = None,
    which: str = "LM",
    *,
    return_eigenvectors: Literal[True] = True,
    return_info: Literal[False] = False,
    **options: Unpack[Options],
) -> tuple[Any, Any]: ...


@overload
def eigsh(
    A: Any,
    k: int | None = None,
    M: Any = None,
    sigma: float | None = None,
    which: str = "LM",
    *,
    return_eigenvectors: bool = True,
    return_info: bool = False,
    **options: Unpack[Options],
) -> Any: ...


@together
def eigsh(
    A: Any,
    k: int | None = None,
    M: Any = None,
    sigma: float | None = None,
    which: str = "LM",
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0,
    return_eigenvectors: bool = True,
    Minv: Any = None,
    OPinv: Any = None,
    mode: str = "normal",
    rng: Any = None,
    *,
    method: Method = "auto",
    precision: Precision = "auto",
    block_size: int | None = None,
    preconditioner: Any = None,
    orthogonal_to: Any = None,
    convergence: Literal["value", "norm", "absolute"] = "value",
    norm: float | None = None,
    callback: Callable[[IterationState], object] | None = None,
    progress: bool = False,
    time_limit: float | None = None,
    on_unconverged: Literal["raise", "warn", "return"] = "raise",
    return_info: bool = False,
    device: str | None = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    like: Any = None,
    interval: tuple[float, float] | None = None,
    verify: Literal["auto", "always", "never"] = "auto",
    check_hermitian: bool = True,
    jd_options: JacobiDavidsonOptions | None = None,
    checkpoint: Any = None,
    checkpoint_interval: float = 60.0,
    comm: Any = None,
) -> Any:
    """Compute k eigenpairs of a real symmetric or complex Hermitian matrix.

    A replacement for `scipy.sparse.linalg.eigsh` that finds all copies of multiple eigenvalues, returns
    orthonormal vectors also in clusters and for complex matrices, and accepts matrices on a GPU. The guide
    describes methods, default sizes and devices; `plan` prints what is chosen for given arguments.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        The matrix A, of SciPy, CuPy, torch or JAX; see `blockvec.as_operator`. Integers are promoted to
        float64. A callable maps a row-major array of shape (n, b) to an array of the same shape, and needs
        `shape`, and `like` unless its arrays are NumPy's or CuPy's.
    k : int, optional
        Number of eigenpairs, 1 to n; default 6. With `interval`, the largest number that is accepted.
    M : sparse matrix, dense array, LinearOperator or callable, shape (n, n), optional
        Matrix of the generalised problem A x = lambda M x, Hermitian positive definite. With `sigma` (but not
        Jacobi-Davidson, or "SM") it may be semidefinite, and only finite eigenvalues are returned; in
        buckling mode it may be indefinite, and A must be definite. It is factorised (on a GPU without `sigma`
        only); of an operator with more than 3000 rows the inverse square root is applied as a Chebyshev
        polynomial, on the host.
    sigma : float, optional
        Compute the eigenvalues near sigma by shift-invert. A - sigma M is factorised unless `OPinv` is given:
        on the host by SuperLU (PARDISO with the extra ``mkl``), on a GPU by cuDSS. With ``method="jd"`` or
        ``method="filter"``, or where A cannot be factorised, eigenvalues nearest to sigma are computed
        without a factorisation; the history of a filter contains the residuals of (A - sigma I)^2.
    which : {"LM", "LA", "SA", "BE", "SM"}
        Eigenvalues of largest magnitude, largest or smallest (algebraic) values, both ends (half of k from
        each, for odd k one more from the high end), or smallest magnitude (``sigma=0``). With
        `sigma` it refers to the transformed eigenvalues of `mode`, as in SciPy: the values nearest to sigma
        are "LM", and "SM" are those furthest from it.
    v0 : array or BlockVector, shape (n,) or (n, s), optional
        Initial vector, or a block of initial vectors. Default: random.
    ncv : int, optional
        Number of basis vectors before a restart, at least ``k + block_size``. A smaller basis needs less
        memory, a larger one fewer applications of A.
    maxiter : int, optional
        Maximum number of restarts (default 5000), or of outer iterations of Jacobi-Davidson (default
        100 000).
    tol : float
        Tolerance of `convergence`; 0 iterates to the limit set by rounding errors.
    return_eigenvectors : bool
        Whether to return the vectors together with the values.
    rng : Generator, int or None
        Source of all random numbers. The same seed gives bit-identical results on the same device, on a host
        with the same number of threads (those of BLAS included). With None the seed is random, or 0 if `v0`
        is given: as in SciPy, calls with the same `v0` then return the same results.
    method : {"auto", "lanczos", "filter", "jd", "dense"}
        Block Lanczos, block Lanczos on a Chebyshev polynomial of A, block Jacobi-Davidson, or dense LAPACK.
        "auto" selects by sizes, patterns and options: dense LAPACK for few rows, Jacobi-Davidson if
        `preconditioner` or `jd_options` is given, otherwise Lanczos, with a filter where that pays. Where one
        end of the spectrum of an explicit matrix takes longer than a factorisation, the run continues by
        shift-invert just outside the spectrum, with a proof by inertia (unless `maxiter` is given), and up to
        n = 3000 dense LAPACK takes over from every iteration that fails. ``info["why"]`` contains the reason.
        Other methods end with `NoConvergence` after several times the applications of A that dense LAPACK
        takes time for.
    precision : {"auto", "double", "mixed"}
        Precision of filters of a sparse matrix A in float64 or complex128. "mixed" filters use a copy of A in
        single precision, which takes about half of the time; results are as accurate as with "double". "auto"
        mixes where the limits of residuals are loose enough and A is large. "mixed" is an error where no
        filter can be mixed: for functions, `M`, `sigma`, `interval` and other methods.
    block_size : int, optional
        Number of columns per application of the operator.
    preconditioner : matrix, LinearOperator, Operator or callable, optional
        Preconditioner of Jacobi-Davidson: a Hermitian approximation of (A - sigma M)^-1, or without `sigma`
        of (A - s M)^-1 with a shift s beyond the wanted end of the spectrum. A callable maps a row-major
        array of shape (n, b) to an array of the same shape.
    orthogonal_to : array or BlockVector, shape (n, c), optional
        Compute eigenpairs of P A P in the orthogonal complement of these columns, where P is the projector on
        it. They are eigenpairs of A if the columns span an invariant subspace.
    convergence : {"value", "norm", "absolute"}
        Limit for the true residual ||A x - theta x|| of a converged pair: tol abs(theta),
        tol (||A|| + abs(theta)), or tol. In addition, residuals up to 100 u (||A|| + abs(theta)) always count
        as converged, where u is the unit roundoff. Rows of penalties, whose diagonal elements exceed
        everything else 1e5 times, are scaled for values below them; ||A|| is then that of the scaled rows.
        Where largest rows leave few digits, a warning says so, or an error with `interval`.
    norm : float, optional
        ||A||_2 for these limits; default: an estimate from the iteration.
    callback : callable, optional
        Called with an `IterationState` after every restart (dense LAPACK has none). If it returns True, the
        run stops.
    progress : bool
        Whether to show a progress bar, on stderr if that is a terminal, or in a notebook.
    time_limit : float, optional
        Seconds from the call after which to stop, checked between steps, stages and factorisations.
    on_unconverged : {"raise", "warn", "return"}
        Response to pairs that did not converge: raise `NoConvergence`, return all pairs with a
        `ConvergenceWarning`, or return them silently (flagged in the result's `converged`). Where all have
        converged, see `verify`.
    return_info : bool
        Return an `EigenResult` instead of arrays.
    device : {"cpu", "gpu"}, optional
        Device of a callable, or the device that a matrix on the host is copied to.
    shape, dtype
        Shape and element type of a callable A.
    like : {"numpy", "cupy", "torch", "jax"}, module or array, optional
        The caller's kind of arrays: of the results, and those that callables (A, `OPinv`, `preconditioner`)
        take and return. A library's name, its module, or an example, whose device the results are moved to;
        for a callable A, the example also gives `device` and `dtype`. Default: torch or JAX if A is an array
        or a function of theirs, otherwise NumPy or CuPy, as the device. Gradients are not recorded.
    interval : (float, float), optional
        Compute all eigenpairs with eigenvalues in this closed interval; one or both ends may be infinite.
        Values that rounding errors cannot tell from an end are inside. Where A (and M) are matrices whose
        factors are affordable, inertia counts the eigenvalues, and shift-invert from several shifts collects
        them. Otherwise, and with ``method="filter"``, an iteration computes the eigenpairs until one lies
        outside, and the number is an estimate, ``info["counted"]`` with ``info["count_error"]``.
    verify : {"auto", "always", "never"}
        Whether to search for missed copies of multiple eigenvalues before the end. "auto" does so if an
        eigenvalue may have more copies than the block has columns, and in Jacobi-Davidson with "LM" or
        around `sigma`. Where A - sigma M is factorised (mode "normal", which "LM", no `orthogonal_to`),
        "always" proves by the inertia of two more factorisations that no value nearer to sigma than the
        furthest one is missing. ``result.verification`` says what came of it, ``info["verification"]`` in
        words. Where a limit of the caller ends the solve before, or a search cannot tell, a
        `ConvergenceWarning` says so; with "always" that counts as pairs that did not converge. "never" is
        silent.
    check_hermitian : bool
        Whether to check first, with random vectors, that A is Hermitian (two operator columns). The norm of
        A is measured by the same products.
    OPinv : LinearOperator, Operator or callable, optional
        (A - sigma M)^-1, on the device of A. Two random vectors check it; solves that are accurate to 1e-3
        at least, such as iterative ones, are refined where the tolerance needs it.
    mode : {"normal", "buckling", "cayley"}
        Transformation of an eigenvalue by `sigma`: 1/(lambda - sigma), lambda/(lambda - sigma), or (lambda +
        sigma)/(lambda - sigma). In buckling mode vectors are orthonormal in the inner product of A.
    jd_options : JacobiDavidsonOptions, optional
        Options of Jacobi-Davidson: corrections, start, restarts.
    checkpoint : path-like, optional
        File for the state of the iteration, replaced atomically between restarts. If it exists, the run
        resumes from it, with results that are bit-identical to those of an uninterrupted run. A file that is
        damaged or belongs to another matrix or other options raises an error. `maxiter`, `time_limit`,
        `callback` and `v0` may change (`maxiter` includes the restarts before the interruption). The file is
        deleted when all pairs have converged. The stages of a solve have files ``<checkpoint>.<stage>``.
    checkpoint_interval : float
        Seconds between two writes of the file (default 60), longer if writing takes more than a twentieth of
        the time. The file is also written when the run stops because of `maxiter`, `time_limit`, a callback
        or Ctrl-C.
    comm : mpi4py.MPI.Comm, optional
        Processes that all call this function and share the rows in equal ranges, on hosts or, with
        ``device="gpu"``, on one GPU per process. A is a matrix that all of them have, this process's rows of
        it with shape (n_local, n), a `blockvec.models.RowGenerator`, or a function of this process's rows
        (with `shape`). `v0`, `orthogonal_to` and arrays of callables are this process's rows. Factorisations,
        and with them `M` and `OPinv`, are not available.
    Minv : matrix, LinearOperator, Operator or callable, optional
        Inverse of M, without `sigma`. M is not factorised then, but used as an operator, and the norm of Minv
        gives the lower bound of its spectrum.

    Returns
    -------
    w : array, shape (k,)
        Eigenvalues, ascending, on the device of A; `like` selects the kind of array.
    V : array, shape (n, k)
        Orthonormal eigenvectors; with several processes a `BlockVector` with this process's rows. With
        ``return_eigenvectors=False`` only w is returned, with ``return_info=True`` an `EigenResult`.

    Raises
    ------
    NoConvergence
        A subclass of SciPy's ArpackNoConvergence, with the converged pairs and the whole result.
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments; the message names the argument and the remedy.
    BreakdownError
        If A returns NaN or Inf.
    Interrupted
        A KeyboardInterrupt with the pairs computed so far, after Ctrl-C.

    References
    ----------
    Wu, Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602; Stewart, ibid. 23 (2002) 601.

    Examples
    --------
    >>> import blockvec
    >>> from solvers import eigsh
    >>> A = blockvec.models.model("laplace1d:n=1000")
    >>> w, V = eigsh(A, k=3, which="LA", rng=0)
    >>> w.round(6).tolist()
    [3.999911, 3.999961, 3.99999]
    """
    given = locals()
    begin_s = time.perf_counter()
    from .call import called, solved  # most of the package, which `import solvers` need not wait for

    options = {name: plain(given[name]) for name in Options.__annotations__}
    call = called(A, plain(k), M, plain(sigma), plain(which), options, begin_s)
    result = solved(call, A, M)
    if not return_eigenvectors:
        result = replace(result, eigenvectors=None)
    if call.caller is not None:
        result = result.shared(call.caller)
    result = result.with_info(time_s=time.perf_counter() - begin_s)
    if (call.processes is None or call.processes.rank == 0) and logger.isEnabledFor(logging.INFO):
        logger.info(result.summary())
    settle(result, verify, on_unconverged, "LM" if sigma is None else which)
    if return_info:
        return result
    return (result.eigenvalues, result.eigenvectors) if return_eigenvectors else result.eigenvalues
