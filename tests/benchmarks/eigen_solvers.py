"""blockvec and its peers behind one form: a generator of runs that get tighter until one is accepted.

The peers stop by rules of their own, so they are run with tolerances from loose to tight, and the first run
that meets the common rule counts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse.linalg as sla

from solvers import eigsh

from .eigen_problems import ORTHONORMAL, TARGET, Judged, Problem, Run

REPEAT_BELOW_S = 2.0  # such runs are timed three times
COUNTED_BELOW_S = 0.2  # CuPy's runs that are repeated to count columns: wrapped, a matrix is slower

Solver = Callable[[Problem, float], Iterator[Run]]


class OutOfTimeError(Exception):
    """Raised inside a solver that has no time left."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside, on the main thread, after so many seconds."""

    def ring(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def cupyx_time_limit(seconds: float) -> Iterator[None]:
    """Interrupt CuPy's solvers; what they have set cuBLAS to, and reset at the end of a cycle, is reset.

    Otherwise the next call of cuBLAS would take a host's address for one of the device.
    """
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    try:
        with time_limit(seconds):
            yield
    finally:
        cublas.setPointerMode(device.get_cublas_handle(), cublas.CUBLAS_POINTER_MODE_HOST)


class ScipyCounting(sla.LinearOperator):
    """A product with the matrix, or any function of vectors and blocks, that counts columns.

    Each product asks whether the time is over: a solver may swallow what the alarm has raised.
    """

    def __init__(
        self, matrix: Any, product: Callable[[Any], Any] | None = None, limit_s: float = math.inf
    ) -> None:
        super().__init__(matrix.dtype, matrix.shape)
        self.product, self.columns = product or matrix.__matmul__, 0
        self.until = time.perf_counter() + limit_s

    def _matvec(self, x: Any) -> Any:
        return self._matmat(x)

    def _matmat(self, X: Any) -> Any:
        if time.perf_counter() > self.until:
            raise OutOfTimeError
        self.columns += 1 if X.ndim == 1 else X.shape[1]
        return self.product(X)


def blockvec_runs(problem: Problem, limit_s: float, **options: Any) -> Iterator[Run]:
    """Run `eigsh` on the matrix that peers get, which it prepares in every run."""
    task = problem.task
    for share in (1.0, 0.5, 0.1):
        begin = time.perf_counter()
        result = eigsh(
            problem.matrix,
            task.k,
            which=task.which,
            tol=share * TARGET * problem.norm,
            convergence="absolute",
            rng=0,
            time_limit=limit_s,
            on_unconverged="return",
            return_info=True,
            **options,
        )
        problem.operator.backend.synchronize()
        time_s = time.perf_counter() - begin
        if time_s > limit_s and not result.converged.all():
            raise OutOfTimeError
        told = ("method", "degree", "block_size", "ncv", "block_applications", "restarts", "reductions")
        facts = {key: result.info[key] for key in (*told, "single_columns", "verification_columns")}
        columns = result.info["operator_columns"]
        yield Run(time_s, columns, to_host(result.eigenvalues), result.eigenvectors, facts)


def arpack_runs(problem: Problem, limit_s: float) -> Iterator[Run]:
    task = problem.task
    # ARPACK's rule is relative to |theta|: begin where that is as loose as ours.
    start = round(math.log10(min(TARGET * problem.norm / max(problem.least, 1e-300), 1e-3)))
    for exponent in range(start, -13, -1):
        op = ScipyCounting(problem.matrix, limit_s=limit_s)
        v0 = np.random.default_rng(0).uniform(-1, 1, problem.n).astype(op.dtype)
        begin = time.perf_counter()
        try:
            with time_limit(limit_s):
                w, X = sla.eigsh(op, task.k, which=task.which, tol=10.0**exponent, v0=v0)
        except sla.ArpackNoConvergence:
            return
        yield Run(time.perf_counter() - begin, op.columns, w, X, {"tol": 10.0**exponent})


Preconditioner = Callable[[Any], Any]  # of one vector or a block


def lobpcg_runs(
    problem: Problem, limit_s: float, preconditioner: Preconditioner | None = None
) -> Iterator[Run]:
    task = problem.task
    if task.which == "LM":
        return
    for share in (1.0, 0.2):
        op, M = ScipyCounting(problem.matrix, limit_s=limit_s), None
        if preconditioner is not None:
            M = ScipyCounting(problem.matrix, preconditioner)
        X = np.random.default_rng(0).uniform(-1, 1, (problem.n, task.k)).astype(op.dtype)
        begin = time.perf_counter()
        with warnings.catch_warnings(), time_limit(limit_s):
            warnings.simplefilter("ignore")  # it warns where it has not converged: we look for ourselves
            w, V = sla.lobpcg(
                op, X, M=M, tol=share * TARGET * problem.norm, maxiter=100_000, largest=task.which == "LA"
            )
        facts: dict[str, Any] = {"tol": share * TARGET}
        if M is not None:
            facts["preconditioner_columns"] = M.columns
        yield Run(time.perf_counter() - begin, op.columns, w, V, facts)


def primme_runs(
    problem: Problem, limit_s: float, method: str = "PRIMME_DEFAULT_MIN_TIME", **options: Any
) -> Iterator[Run]:
    import primme

    task = problem.task
    for share in (1.0, 0.1):
        op = ScipyCounting(problem.matrix, limit_s=limit_s)
        rng = np.random.default_rng(0)
        v0 = rng.uniform(-1, 1, (problem.n, options.get("maxBlockSize", 1))).astype(op.dtype)
        begin = time.perf_counter()
        try:
            with time_limit(limit_s):
                w, V = primme.eigsh(
                    op, task.k, which=task.which, tol=share * TARGET, v0=v0, method=method, **options
                )
        except primme.PrimmeError as error:
            if time.perf_counter() > op.until:  # it turns an operator's exception into its own
                raise OutOfTimeError from None
            raise np.linalg.LinAlgError(str(error)) from error
        yield Run(time.perf_counter() - begin, op.columns, w, V, {"tol": share * TARGET})


def cupyx_eigsh_runs(problem: Problem, limit_s: float) -> Iterator[Run]:
    import cupy
    from cupyx.scipy.sparse.linalg import LinearOperator
    from cupyx.scipy.sparse.linalg import eigsh as cupyx_eigsh

    task = problem.task
    v0 = cupy.asarray(np.random.default_rng(0).uniform(-1, 1, problem.n).astype(problem.matrix.dtype))
    counted = 0

    def product(x: Any) -> Any:
        nonlocal counted
        counted += 1 if x.ndim == 1 else x.shape[1]
        return problem.matrix @ x

    for share in (1.0, 0.1, 1e-2, 1e-3, 1e-4):
        options = {"which": task.which, "v0": v0, "tol": share * TARGET * problem.norm}
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        with cupyx_time_limit(limit_s):
            w, V = cupyx_eigsh(problem.matrix, task.k, **options)
            cupy.cuda.Device().synchronize()
        time_s = time.perf_counter() - begin
        columns = None
        if time_s < COUNTED_BELOW_S:
            counted = 0
            cupyx_eigsh(LinearOperator(problem.matrix.shape, product, dtype=v0.dtype), task.k, **options)
            columns = counted
        yield Run(time_s, columns, to_host(w), V, {"tol": share * TARGET})


def cupyx_lobpcg_runs(
    problem: Problem, limit_s: float, preconditioner: Preconditioner | None = None
) -> Iterator[Run]:
    import cupy
    from cupyx.scipy.sparse.linalg import LinearOperator, lobpcg

    task = problem.task
    if task.which == "LM":
        return
    columns = 0

    def product(X: Any) -> Any:
        nonlocal columns
        columns += 1 if X.ndim == 1 else X.shape[1]
        return problem.matrix @ X

    for share in (1.0, 0.1):
        X = np.random.default_rng(0).uniform(-1, 1, (problem.n, task.k)).astype(problem.matrix.dtype)
        op = LinearOperator(problem.matrix.shape, product, matmat=product, dtype=X.dtype)
        options = {"tol": share * TARGET * problem.norm, "maxiter": 100_000, "largest": task.which == "LA"}
        if preconditioner is not None:
            apply = preconditioner
            options["M"] = LinearOperator(op.shape, apply, matmat=apply, dtype=X.dtype)
        start = cupy.asarray(X)
        columns = 0
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        with warnings.catch_warnings(), cupyx_time_limit(limit_s):
            warnings.simplefilter("ignore")
            w, V = lobpcg(op, start, **options)
            cupy.cuda.Device().synchronize()
        yield Run(time.perf_counter() - begin, columns, to_host(w), V, {"tol": share * TARGET})


def raft_runs(problem: Problem, limit_s: float) -> Iterator[Run]:
    """Run RAFT's Lanczos solver, whose time only its number of steps can bound: no signal interrupts it."""
    import cupy
    from pylibraft.sparse.linalg import eigsh as raft_eigsh

    task = problem.task
    if problem.matrix.dtype.kind == "c":
        return
    v0 = cupy.asarray(np.random.default_rng(0).uniform(-1, 1, problem.n).astype(problem.matrix.dtype))

    def timed(share: float, steps: int) -> tuple[float, Any, Any]:
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        w, V = raft_eigsh(
            *(problem.matrix, task.k, task.which, v0), maxiter=steps, tol=share * TARGET * problem.norm
        )
        cupy.cuda.Device().synchronize()
        return time.perf_counter() - begin, cupy.asarray(w), cupy.asarray(V)

    some = 4 * max(2 * task.k + 1, 20)  # two cycles or more
    step_s = min(timed(1.0, some)[0] for _ in range(2)) / some
    for share in (1.0, 0.1, 1e-2, 1e-3, 1e-4):
        time_s, w, V = timed(share, some + int(limit_s / step_s))
        if time_s > limit_s:
            raise OutOfTimeError
        yield Run(time_s, None, to_host(w), V, {"tol": share * TARGET})


def to_host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else np.asarray(array)


HOST_PEERS: dict[str, Solver] = {"scipy eigsh": arpack_runs, "scipy lobpcg": lobpcg_runs}
if importlib.util.find_spec("primme"):
    HOST_PEERS["primme"] = primme_runs
GPU_PEERS: dict[str, Solver] = {"cupyx eigsh": cupyx_eigsh_runs, "cupyx lobpcg": cupyx_lobpcg_runs}
if importlib.util.find_spec("pylibraft"):
    GPU_PEERS["raft"] = raft_runs


def first_accepted(solver: Solver, problem: Problem, limit_s: float) -> Judged:
    """Return the first run that meets the rule, or why there is none.

    Short ones are timed three times, and the median counts. On a GPU, where kernels are compiled in it, a
    first run is repeated however long it took, and only the others count; it is kept as `first_s`.
    """
    on_gpu = problem.operator.device != "cpu"
    best = Judged(None, math.inf, math.inf, "no result")
    runs = 0
    try:
        for run in solver(problem, limit_s):
            runs += 1
            judged = problem.judge(run)
            if judged.residual <= TARGET and judged.orthogonality <= ORTHONORMAL:
                times = [run.time_s]
                while (times[-1] < REPEAT_BELOW_S or (on_gpu and len(times) == 1)) and len(times) < 3:
                    again = solver(problem, limit_s)
                    times.append([next(again) for _ in range(runs)][-1].time_s)
                run.facts["first_s"] = times[0]
                run.time_s = statistics.median(times[1:] if on_gpu else times)
                return judged
            if judged.residual < best.residual:
                why = "residual" if judged.residual > TARGET else "orthogonality"
                best = Judged(None, judged.residual, judged.orthogonality, f"{why} not reached")
    except OutOfTimeError:
        return Judged(None, best.residual, best.orthogonality, f"not done in {limit_s:.3g} s", limit_s)
    except (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        return Judged(None, best.residual, best.orthogonality, f"failed: {str(error)[:200]}")
    return best
