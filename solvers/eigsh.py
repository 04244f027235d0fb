"""`eigsh`: eigenpairs of Hermitian matrices and operators, with SciPy's signature and meaning."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from .arguments import Options
from .problem import IterationState, Method
from .result import EigenResult, settle
from .runtime.processes import together
from .runtime.progress import logger

Which = Literal["LM", "LA", "SA", "BE", "SM"]

if TYPE_CHECKING:
    from .iterations.correction import JacobiDavidsonOptions
    from .problem import Precision


@overload
def eigsh(
    A: Any,
    k: int | None = None,
    M: Any = None,
    sigma: float | None = None,
    which: Which = "LM",
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
    which: Which = "LM",
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
    which: Which = "LM",
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
    which: Which = "LM",
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

    A replacement for `scipy.sparse.linalg.eigsh` that finds all copies of multiple eigenvalues, and takes
    matrices on a GPU. The guide's page "Options of eigsh" has more on each argument.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Of SciPy, CuPy, torch or JAX. A callable maps arrays (n, b) to (n, b), and needs `shape`.
    k : int, optional
        Number of eigenpairs, 1 to n; default 6. With `interval`, the most that are accepted.
    M : sparse matrix, dense array, LinearOperator or callable, shape (n, n), optional
        Solve A x = lambda M x. M is positive definite; with `sigma` it may be semidefinite.
    sigma : float, optional
        Compute the eigenvalues nearest to sigma, by factors of A - sigma M, or by iteration without any.
    which : {"LM", "LA", "SA", "BE", "SM"}
        Largest magnitude, largest, smallest, both ends, smallest magnitude; with `sigma`, of the transformed
        values, as in SciPy: the nearest ones are "LM".
    tol : float
        Residuals ``||A x - lambda x||`` are at most tol abs(lambda); see `convergence`. 0: rounding errors.
    interval : (float, float), optional
        Compute all eigenpairs with values in this closed interval; an end may be infinite.
    return_info : bool
        Return an `EigenResult`: values, vectors, residuals, `verification`, costs and the plan.

    Returns
    -------
    w : array, shape (k,)
        Eigenvalues, ascending, on the device of A; `like` selects the kind of array.
    V : array, shape (n, k)
        Orthonormal eigenvectors; with `comm` a `BlockVector` with this process's rows.

    Other Parameters
    ----------------
    v0 : array or BlockVector, shape (n,) or (n, s), optional
        Initial vectors, random without.
    ncv, maxiter, block_size : int, optional
        Basis vectors, most restarts (5000), columns per product with A.
    return_eigenvectors : bool
        Without, only w is returned.
    Minv, OPinv : LinearOperator, Operator or callable, optional
        Inverses of M and of A - sigma M, which are not factorised then.
    mode : {"normal", "buckling", "cayley"}
        Transformation by `sigma`, as in SciPy.
    rng : Generator, int or None
        Source of random numbers; the same seed gives the same bits on the same device and threads.
    method : {"auto", "lanczos", "filter", "jd", "dense"}
        Block Lanczos, a Chebyshev filter, Jacobi-Davidson, or LAPACK; `plan` prints what "auto" takes.
    precision : {"auto", "double", "mixed"}
        Whether filters are applied in single precision; results are as accurate.
    preconditioner : matrix, LinearOperator, Operator or callable, optional
        Of Jacobi-Davidson: an approximation of (A - sigma M)^-1.
    jd_options : JacobiDavidsonOptions, optional
        Options of Jacobi-Davidson.
    orthogonal_to : array or BlockVector, shape (n, c), optional
        Known eigenvectors, which are projected out.
    convergence, norm : {"value", "norm", "absolute"}, float
        Limit of residuals: tol abs(lambda), tol (``||A||`` + abs(lambda)) with a norm that may be given, or
        tol.
    callback, progress : callable, bool
        Called with an `IterationState` after each restart, stops by True; a progress bar.
    time_limit : float, optional
        Seconds from the call after which to stop.
    on_unconverged : {"raise", "warn", "return"}
        What follows where pairs did not converge.
    verify : {"auto", "always", "never"}
        Whether to search for missed copies; "always" proves by inertia that none is missing, or raises.
    check_hermitian : bool
        Whether to check by random vectors that A is Hermitian.
    device, shape, dtype, like
        "cpu" or "gpu"; of a callable its shape and element type; the kind of arrays of the results.
    checkpoint, checkpoint_interval : path-like, float
        File from which an interrupted run resumes, and the seconds between writes (60).
    comm : mpi4py.MPI.Comm, optional
        Processes that share the rows; arrays are those of this process.

    Raises
    ------
    NoConvergence
        A subclass of SciPy's ArpackNoConvergence, with the pairs that converged and the whole result.
    OptionError, ShapeError, DTypeError, DeviceError, BreakdownError, Interrupted
        For invalid arguments, for NaN or Inf from A, and after Ctrl-C with the pairs so far.

    See Also
    --------
    plan, count_eigenvalues, replace_eigsh

    References
    ----------
    Wu, Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602; Stewart, ibid. 23 (2002) 601.

    Examples
    --------
    >>> from blockvec import eigsh
    >>> from blockvec.models import model
    >>> K = model("laplace1d:n=1000")
    >>> w, V = eigsh(K, k=3, which="SA")  # the lowest
    >>> w, V = eigsh(K, k=3, sigma=2.0)  # around a number
    >>> w, V = eigsh(K, k=3, M=2 * K + K.T, sigma=0.1)  # with a mass matrix
    >>> w, V = eigsh(K, interval=(0.0, 1e-3))  # all in an interval, none missing
    >>> w, V = eigsh(lambda X: K @ X, k=3, which="LA", shape=K.shape)  # a function
    >>> w.round(6).tolist()
    [3.999911, 3.999961, 3.99999]
    """
    given = locals()
    begin_s = time.perf_counter()
    from .call import Call, solved  # most of the package, which `import solvers` need not wait for

    call = Call(given, begin_s)
    result = solved(call)
    w, V = result.eigenvalues, result.eigenvectors if return_eigenvectors else None
    if call.caller is not None:
        w, V = call.caller.share(w), None if V is None else call.caller.share(V)
    info = result.info | {"time_s": time.perf_counter() - begin_s}
    result = replace(result, eigenvalues=w, eigenvectors=V, info=info)
    if (call.processes is None or call.processes.rank == 0) and logger.isEnabledFor(logging.INFO):
        logger.info(result.summary())
    settle(result, verify, on_unconverged, "LM" if sigma is None else which)
    if return_info:
        return result
    return (w, V) if return_eigenvectors else w
