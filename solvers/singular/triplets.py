"""`svds`: singular triplets of matrices and operators, with SciPy's signature and meaning; its result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector, Operator, RowFunction, RowLayout, array_namespace, as_operator
from blockvec.errors import OptionError, ShapeError
from blockvec.interchange import ArrayKind, is_function, native
from blockvec.models import RowGenerator
from blockvec.parallel import Communicator, choose_gpu, require_same, share
from blockvec.precompile import precompile
from blockvec.system.frozen import frozen
from blockvec.system.scalars import plain

from ..arguments import blas_threads, check_choice, generator, integer, natively, positive, real, tall_block
from ..blocks import Array, to_host
from ..problem import IterationState, Verification
from ..result import EigenResult, counted, settle
from ..runtime.processes import (
    delivered,
    largest,
    processes_of,
    shares,
    split,
    together,
)
from ..runtime.progress import logger
from .methods import solved
from .operators import Pair
from .task import BASIS, WIDE, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYNONYMS = {"arpack": "lanczos", "propack": "lanczos", "lobpcg": "lanczos"}  # SciPy's names of algorithms
CHOICES = {
    "which": ("LM", "SM"),
    "solver": ("auto", "lanczos", "randomized", "dense", *SYNONYMS),
    "verify": ("auto", "always", "never"),
    "on_unconverged": ("raise", "warn", "return"),
}
OPTIONS = ("passes", "oversampling")  # of solver="randomized"
DOUBLE = {"f": np.dtype(np.float64), "F": np.dtype(np.complex128)}
FEW_ENTRIES = 100_000_000  # of a matrix of the host in single precision that is copied in double precision
FEW_ENDS = 1024  # rows in which largest entries are looked for at once; those of a GPU are copied


@frozen
class SvdResult:
    """Singular triplets, their accuracy, and how they were computed; unpacks to ``u, s, vh``.

    Attributes
    ----------
    u : array, shape (m, k), or None
        Orthonormal left singular vectors. The entry of largest magnitude of every column is positive, as by
        scikit-learn's ``svd_flip``. With ``comm`` a BlockVector of this process's rows.
    s : array, shape (k,)
        Singular values, ascending.
    vh : array, shape (k, n), or None
        Right singular vectors in its rows, conjugated.
    residuals : numpy.ndarray, shape (k,)
        The larger one of the true residual norms ||A v - s u||_2 and ||A^H u - s v||_2.
    limits : numpy.ndarray, shape (k,)
        Residual norms at which a triplet counts as converged: tol s, but at least 100 u (||A|| + s).
    converged : numpy.ndarray of bool, shape (k,)
    verification : Verification
        Whether copies of multiple values may be missing; ``verification.is_decided`` is False if so.
    info : dict
        Method and costs: ``solver`` as given, ``method`` and ``why``, ``plan``, ``stopped``,
        ``verification``, ``m``, ``n``, ``k``, ``which``, ``tol``, ``norm``, ``dtype``, ``device``,
        ``center``, ``block_size``, ``ncv``, ``stages``, ``operator_columns`` (those of A, each with one of
        A^H), ``verification_columns``, ``restarts``, ``time_s``; with ``comm`` also ``processes``, as of
        `eigsh`; of ``solver="randomized"`` also ``error``, a bound of ||A - u s vh||_2 that holds but with
        the probability ``error_probability``.
    history : sequence of IterationState
        One entry per restart, with the squares of singular values, and residuals of A^H A.
    """

    u: Any
    s: Any
    vh: Any
    residuals: NDArray[np.float64]
    limits: NDArray[np.float64]
    converged: NDArray[np.bool_]
    verification: Verification
    info: dict[str, Any]
    history: Sequence[IterationState]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.u, self.s, self.vh))

    @property
    def eigenvalues(self) -> Any:
        """The singular values, under the name that `NoConvergence` has for values."""
        return self.s

    @property
    def eigenvectors(self) -> Any:
        """The right singular vectors in columns, under the name that `NoConvergence` has for vectors."""
        return None if self.vh is None else self.vh.T.conj()

    def __str__(self) -> str:
        """Format a table of values and residuals."""
        values = to_host(native(self.s))
        lines = [f"{'':>4} {'singular value':>22}  {'residual':>9}"]
        for i, value in enumerate(values.tolist()):
            flag = "" if self.converged[i] else "  not converged"
            lines.append(f"{i + 1:4d} {value:22.14g}  {self.residuals[i]:9.1e}{flag}")
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """Describe the outcome in a few sentences: convergence, copies of multiple values, and costs."""
        info, count = self.info, int(self.converged.sum())
        of = f"All {count}" if count == info["k"] else f"{count} of {info['k']}"
        copies = "complete" if self.verification.is_decided else "not verified"
        columns = counted(info["operator_columns"], "operator column")
        return (
            f"{of} converged ({info['method']}: {info['why']}). Multiplicities {copies} "
            f"({info['verification']}). {columns}, {counted(info['restarts'], 'restart')}, "
            f"{info['time_s']:.3g} s."
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the residuals of A^H A relative to their limits over the operator columns.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Default: those of a new figure.

        Raises
        ------
        OptionError
            If there is no history, as after dense LAPACK.
        """
        ax = EigenResult.plot(cast(Any, self), ax)
        ax.set_title(f"{self.info['k']} singular values {self.info['which']}")
        return ax


@together
def svds(
    A: Any,
    k: int = 6,
    ncv: int | None = None,
    tol: float = 0,
    which: Literal["LM", "SM"] = "LM",
    v0: Any = None,
    maxiter: int | None = None,
    return_singular_vectors: bool | Literal["u", "vh"] = True,
    solver: str = "auto",
    rng: Any = None,
    options: Mapping[str, int] | None = None,
    *,
    random_state: Any = None,
    center: bool = False,
    block_size: int | None = None,
    verify: Literal["auto", "always", "never"] = "auto",
    callback: Callable[[IterationState], object] | None = None,
    time_limit: float | None = None,
    on_unconverged: Literal["raise", "warn", "return"] = "raise",
    return_info: bool = False,
    device: str | None = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    like: Any = None,
    comm: Any = None,
) -> Any:
    """Compute the k largest or smallest singular values of a matrix, with their vectors.

    A replacement for `scipy.sparse.linalg.svds` that finds all copies of multiple values, also computes all
    values, and accepts matrices on a GPU.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, or Operator, shape (m, n)
        The matrix A, of SciPy, CuPy, torch or JAX; see `blockvec.as_operator`. Integers are promoted to
        float64. A linear operator needs ``rmatmat`` or ``rmatvec``.
    k : int
        Number of singular values, 1 to min(m, n).
    ncv : int, optional
        Number of basis vectors before a restart.
    tol : float
        Limit of the residuals ||A v - s u|| and ||A^H u - s v|| relative to s; 0 iterates to the limit set by
        rounding errors. Residuals up to 100 u (||A|| + s) always count as converged, where u is the unit
        roundoff.
    which : {"LM", "SM"}
        The largest or the smallest values.
    v0 : array or BlockVector, shape (min(m, n),) or (min(m, n), b), optional
        Initial vectors; for m >= n right ones, otherwise left ones. Those of length max(m, n) are multiplied
        by A^H or A first. Default: random.
    maxiter : int, optional
        Maximum number of restarts.
    return_singular_vectors : bool or {"u", "vh"}
        Whether to return both kinds of vectors, none, or one of them; the other one is None.
    solver : {"auto", "lanczos", "randomized", "dense", "arpack", "propack", "lobpcg"}
        Thick-restart block Lanczos on A^H A (or A A^H, if that is smaller), with stages that keep the
        accuracy of A; for the largest values a block Krylov space of few passes without a restart, whose
        error is estimated; or dense LAPACK. "auto" selects dense LAPACK for small matrices, and for the
        smallest values of up to 3000 rows or columns the inverse of a triangular factor. SciPy's names are
        synonyms of "lanczos", since results are specified here, not algorithms.
    rng, random_state : Generator, int or None
        Source of all random numbers, as in `eigsh`.
    options : dict, optional
        Of ``solver="randomized"``: ``passes`` over A and A^H (default 4), and ``oversampling``, further
        columns (default 10).
    center : bool
        Subtract the mean of each column, for principal components: A - 1 mean^T, which is never formed.
        The accuracy remains that of A: limits and ``info["norm"]`` are those of its norm.
    block_size : int, optional
        Number of columns per product with A.
    verify : {"auto", "always", "never"}
        Whether to search for missed copies of multiple values before the end, as in `eigsh`.
    callback : callable, optional
        Called with an `IterationState` of A^H A after every restart. If it returns True, the run stops.
    time_limit : float, optional
        Seconds after which to stop.
    on_unconverged : {"raise", "warn", "return"}
        Response to triplets that did not converge, as in `eigsh`. ``solver="randomized"`` returns them.
    return_info : bool
        Return an `SvdResult`, which also unpacks to ``u, s, vh``.
    device, like
        As in `eigsh`.
    shape, dtype
        Shape and element type of a function. It has no adjoint: give an `Operator` of it with
        ``is_hermitian = True`` if it is Hermitian, and a LinearOperator otherwise.
    comm : mpi4py.MPI.Comm, optional
        Processes that share the rows: A holds those of this process, any number of them, and `shape` is that
        of the whole matrix; or A is an Operator with a layout. `v0`, `like` and dense LAPACK are refused.

    Returns
    -------
    u : array, shape (m, k)
        Orthonormal left singular vectors. The entry of largest magnitude of each column is positive, as by
        scikit-learn's ``svd_flip``. With `comm` a BlockVector of the rows of this process; `s` and `vh` are
        whole on all of them.
    s : array, shape (k,)
        Singular values, ascending as SciPy's.
    vh : array, shape (k, n)
        Right singular vectors. With ``return_singular_vectors=False`` only s is returned.

    Raises
    ------
    NoConvergence
        A subclass of SciPy's ArpackNoConvergence, with the converged values and right vectors and the whole
        result.
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments; the message names the argument and the remedy.
    BreakdownError
        If A returns NaN or Inf.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from blockvec import svds
    >>> A = sp.diags_array([4.0, 3.0, 2.0, 1.0], shape=(6, 4))
    >>> u, s, vh = svds(A, k=2)
    >>> s.round(6).tolist()
    [3.0, 4.0]
    >>> bool(np.allclose(A @ vh.T, u * s))
    True
    """
    begin_s = time.perf_counter()
    which, options = plain(which), dict(options or {})
    choices = {"which": which, "solver": solver, "verify": verify, "on_unconverged": on_unconverged}
    _check(return_singular_vectors, callback, options, choices)
    sizes = {"block_size": block_size, "ncv": ncv, "maxiter": maxiter}
    limits: dict[str, Any] = {
        **{name: size if size is None else integer(name, plain(size), 1) for name, size in sizes.items()},
        **{"verify": verify, "callback": callback, "begin_s": begin_s},
        "time_limit": positive("time_limit", time_limit),
    }
    given, caller, processes, kind = _operands(A, k, v0, like, comm, solver, center, shape, dtype, device)
    seed = random_state if rng is None else rng
    task = Task(
        which=which,
        method=SYNONYMS.get(solver, solver),
        tol=real("tol", tol, "a number of at least 0", 0.0),
        rng=generator(0 if seed is None and v0 is not None else seed, processes),
        options=options,
        limits=limits,
        **given,
    )
    with blas_threads(task.pair.forward):
        result = _result(task, solver, kind, processes)
    if solver != "randomized":
        settle(result, verify, on_unconverged)  # type: ignore[arg-type]
    if (processes is None or processes.rank == 0) and logger.isEnabledFor(logging.INFO):
        logger.info(result.summary())
    arrays = {"u": result.u, "s": result.s, "vh": result.vh}
    for name, array in arrays.items():
        is_wanted = name == "s" or return_singular_vectors in (True, name)
        arrays[name] = None if not is_wanted else array if caller is None else caller.share(array)
    result = replace(result, **arrays)
    return result if return_info else tuple(result) if return_singular_vectors else result.s


def _operands(
    A: Any,
    k: Any,
    v0: Any,
    like: Any,
    comm: Any,
    solver: str,
    center: bool,
    shape: Any,
    dtype: Any,
    device: Any,
) -> tuple[dict[str, Any], ArrayKind | None, Communicator | None, np.dtype[Any]]:
    """Convert the matrix of a call, or the rows of this process, and start vectors.

    Returns fields of a `Task`, the caller's arrays, the processes that share the rows, and the type of
    results.
    """
    caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
    if caller is not None and is_function(A):
        device, dtype = device or caller.device, dtype or caller.dtype
    processes, rows = processes_of(A, comm), None
    if processes is not None:
        for name, is_given in (("v0", v0), ("like", like), ("solver", solver == "dense" or None)):
            if is_given is not None:
                raise OptionError(
                    f"{name}: needs whole vectors or matrices, and A has rows in {processes.size} processes; "
                    f"leave out {name}, or comm."
                )
        caller, device = None, choose_gpu(processes) if device == "gpu" else device
    A, start = natively(caller, A, v0)
    if processes is not None:
        A, rows = _own_rows(A, processes, shape, device)
    op = as_operator(A, shape=shape, dtype=dtype, device=device)
    m, n = op.shape if rows is None else (rows.n_global, op.shape[1])
    if not min(m, n):
        raise ShapeError(f"A is {m} x {n}; there are no singular values to compute.")
    k, kind = integer("k", plain(k), 1, min(m, n)), op.dtype
    wide = DOUBLE.get(kind.char) if op.device == "cpu" and hasattr(A, "astype") else None
    if wide is not None and largest(rows, getattr(A, "nnz", A.size)) <= FEW_ENTRIES:
        A = A.astype(wide)
        op = as_operator(A)
    _precompile(op, (m, n), k)
    with blas_threads(op):
        pair = Pair.of(op, bool(center), rows)
        start = None if start is None else _start(start, pair)
    matrix, unit = A if processes is None else None, float(np.finfo(kind).eps) / 2
    fields = {"pair": pair, "A": matrix, "k": k, "start": start, "unit": unit}
    return fields, caller, processes, kind


def _precompile(op: Operator, shape: tuple[int, int], k: int) -> None:
    """Compile the kernels of a solve while its matrix is examined."""
    both = (op, op.H) if hasattr(op, "nnz") else (op,)
    precompile("svds", both, k=k)
    if min(shape) > BASIS and len(both) > 1:  # the first steps, whose kernel takes longest
        precompile("begin", both[:: 1 if shape[0] < shape[1] else -1], b=WIDE, capacity=BASIS + WIDE)


def _own_rows(A: Any, comm: Communicator, shape: Any, device: str | None) -> tuple[Any, RowLayout | None]:
    """Return the rows of this process with their layout, or an operator that has one.

    All processes call it.
    """
    if isinstance(A, Operator | RowGenerator):
        return split(A, comm, shape=shape, dtype=None, device=device, mode="normal"), None
    own: tuple[int, ...] = getattr(A, "shape", ())
    if shape is None or len(own) != 2 or own[1] != shape[1]:
        raise ShapeError(
            f"A: is a {type(A).__name__} of shape {own} in one of {comm.size} processes, with shape={shape}; "
            "give a matrix of this process's rows, and as shape=(m, n) the extents of the whole one."
        )
    require_same(comm, A=f"elements of {A.dtype}")
    rows = RowLayout.from_local(own[0], comm)
    if rows.n_global != shape[0]:
        raise ShapeError(
            f"shape: got {tuple(shape)}, but the {comm.size} processes have {rows.n_global} rows; give each "
            "its own rows of A."
        )
    return A, rows


def _start(start: Any, pair: Pair) -> BlockVector:
    """Form start vectors of the shorter side."""
    m, n = pair.shape
    is_long = np.shape(start)[:1] == (m,) != (n,)
    where = {"dtype": pair.forward.dtype, "device": pair.forward.device, "layout": None}
    side: Any = SimpleNamespace(shape=(m if is_long else n,) * 2, **where)
    block = tall_block("v0", start, side)
    return pair.adjoint.apply(block) if is_long else block


def _check(vectors: Any, callback: Any, options: Mapping[str, int], choices: Mapping[str, Any]) -> None:
    """Refuse options that are unknown."""
    for name, value in choices.items():
        check_choice(name, value, CHOICES[name])
    if vectors not in (True, False, "u", "vh") or (vectors in (0, 1) and not isinstance(vectors, bool)):
        raise OptionError(f"return_singular_vectors: got {vectors!r}; give True, False, 'u' or 'vh'.")
    if callback is not None and not callable(callback):
        raise OptionError(f"callback: got {callback!r}; give a function of an IterationState.")
    if choices["which"] == "SM" and choices["solver"] == "randomized":
        raise OptionError("which: got 'SM', but solver='randomized' approximates the largest; use another.")
    for name, value in options.items():
        if name not in OPTIONS or choices["solver"] != "randomized":
            raise OptionError(
                f"options: got {name!r} with solver {choices['solver']!r}; 'randomized' has "
                f"{' and '.join(OPTIONS)}."
            )
        integer(name, value, 2 if name == "passes" else 0)


def _result(task: Task, solver: str, dtype: Any, processes: Communicator | None) -> SvdResult:
    """Solve, and form the result for the caller's matrix: signs, scale, orientation."""
    plan, found = solved(task)
    pair, exponent = task.pair, task.pair.exponent
    m, n = pair.shape[:: -1 if pair.is_swapped else 1]
    U, V = _with_signs(*(found.V, found.U) if pair.is_swapped else (found.U, found.V))
    info: dict[str, Any] = {
        **{"solver": solver, "plan": plan, "m": m, "n": n, "k": task.k, "which": task.which, "tol": task.tol},
        **{"dtype": dtype.name, "device": pair.forward.device, "center": pair.is_centred},
        **found.info,
        "time_s": time.perf_counter() - task.limits["begin_s"],
    }
    for name in info.keys() & {"norm", "error"}:
        info[name] = float(np.ldexp(info[name], exponent))
    if processes is not None:
        info["processes"] = shares(pair.adjoint if pair.is_swapped else pair.forward)
    s = np.ldexp(found.s, exponent).astype(dtype.type(0).real.dtype)
    return SvdResult(
        u=delivered(U.array.astype(dtype, copy=False), U.layout),
        s=array_namespace(U.array).asarray(s),
        vh=(V if V.layout is None else V.gather()).array.T.conj().astype(dtype, copy=False),
        residuals=np.ldexp(found.residuals, exponent),
        limits=np.ldexp(found.limits, exponent),
        converged=found.residuals <= found.limits,
        verification=found.verification,
        info=info,
        history=[state.times(2 * exponent) for state in found.history],
    )


def _with_signs(U: BlockVector, V: BlockVector) -> tuple[BlockVector, BlockVector]:
    """Make the entry of largest magnitude in each column of U positive."""
    largest = _largest_entries(U)
    if U.layout is not None:
        each = np.array(share(cast(Communicator, U.layout.comm), largest))
        largest = each[abs(each).argmax(axis=0), np.arange(U.n_cols)]
    factors = largest.conj() / np.maximum(abs(largest), np.finfo(U.dtype).tiny)
    factors = array_namespace(U.array).asarray(np.where(factors == 0, 1, factors).astype(U.dtype))
    return U.scale(factors), V.scale(factors)


def _largest_entries(U: BlockVector) -> Array:
    """Find the entry of largest magnitude of each column, on the host.

    On a GPU the second half of the rows is merged into the first one until few are left: an array library
    would compile a dozen kernels for seconds.
    """
    array, k = U.array, U.n_cols
    if U.device != "cpu" and len(array) > FEW_ENDS:
        rows, flat = len(array), U.copy().array.reshape(-1)
        while rows > FEW_ENDS:
            half = rows // 2
            first, second = (_parts(flat[row * k : (row + half) * k]) for row in (0, rows - half))
            LARGER(*first, *second, out=first)
            rows -= half
        array = flat[: rows * k].reshape(rows, k)
    if not len(array):
        return np.zeros(k, U.dtype)
    ends = to_host(array)
    parts = [ends[begin : begin + FEW_ENDS] for begin in range(0, len(ends), FEW_ENDS)]
    chosen = np.array([abs(part).max(axis=0) for part in parts]).argmax(axis=0)  # argmax of all is slow
    columns = [parts[part][:, j] for j, part in enumerate(chosen.tolist())]
    return np.array([column[abs(column).argmax()] for column in columns])


def _parts(array: Array) -> tuple[Array, ...]:
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)


def _larger(xp: Any, *parts: Any) -> tuple[Any, ...]:
    """Choose from two numbers, given by their parts, that of larger magnitude; of equal ones the first."""
    first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    is_second = sum(part**2 for part in second) > sum(part**2 for part in first)
    return tuple(xp.where(is_second, b, a) for a, b in zip(first, second, strict=True))


LARGER = RowFunction(_larger)
