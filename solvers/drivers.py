"""Drivers of standard problems: choice of method and sizes, and the run."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, __version__, array_namespace, single_threaded_blas
from blockvec import Operator as ArrayOperator
from blockvec.errors import BreakdownError, OptionError, ShapeError

from .arguments import integer, orthonormal_block
from .blocks import Block, Operator, project_out, to_host
from .column_block import ColumnBlock, ColumnOperator
from .combine import both_ends, one_after_other, staged
from .costs import FEW_ROWS, most_calls
from .interior_filter import solve_window
from .iterations.base import Iteration, IterationResult
from .iterations.filter_design import INDEX_BYTES, choose_degree
from .iterations.filtered_lanczos import FilteredRestart
from .iterations.jacobi_davidson import JacobiDavidson
from .iterations.jd_options import JacobiDavidsonOptions
from .iterations.krylov import Counts
from .iterations.lanczos import ThickRestart
from .iterations.mixed_precision import can_convert, copy_bytes, saves_time
from .iterations.rayleigh_ritz import IDENTITY_COLUMNS, Tolerance, dense_eigenpairs
from .problem import Chosen, IterationOptions, Method, Problem
from .result import EigenResult, SolveInfo
from .runtime.checkpoint import probe
from .runtime.interrupts import deferred_interrupt
from .runtime.memory import available_bytes, require_memory
from .runtime.processes import delivered, largest
from .runtime.progress import logger
from .transform.spectral_map import SpectralMap

MAX_RESTARTS = 5000
MAX_OUTER = 100_000  # outer iterations of Jacobi-Davidson, which may be a single step each
SHORT_ROWS = 1 << 17  # of columns up to which blocks on the host are column-major
PAIR = 2
# Up to so many wanted eigenpairs, blocks of two short columns take less time than larger ones; with solves,
# where a search for copies takes long, up to fewer.
FEW_PAIRS, FEW_COSTLY_PAIRS = 10, 5
DENSE_ROWS = 500  # up to here dense LAPACK takes a fraction of a second and cannot miss anything
DENSE_ROWS_SHIFTED = 150  # with factors, some twenty steps of which take less time than so many solves
DENSE_ROWS_INSIDE = 1500  # iterations inside a spectrum apply A to more columns than this
DENSE_SHARE = 3  # with k > n / DENSE_SHARE the basis of an iteration would be the whole space
DENSE_MAX_ROWS = 10000
MIN_DEGREE = 6  # below this the sketch and the Rayleigh-Ritz steps of a filter cost what it saves
MANY_PAIRS = 20
LEAST_STEPS = 8  # steps of a large block for which a basis needs room
SHORT_COLUMN = 1 << 11  # rows per wanted pair up to which the number of calls decides about the time
# Upper bounds of the basis of a window, in vectors and bytes: in the middle of a spin chain's spectrum
# (12 870 rows) 256 took half of the time and a third of the columns of 82, on a sheet of graphene the same.
WINDOW_BASIS, WINDOW_BYTES = 256, 1 << 30


def solve(problem: Problem) -> EigenResult:
    """Solve a standard problem by the given method, or by one selected from its size and costs."""
    return run(*prepare(problem))


def run(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve a problem with options, both from `prepare`."""
    if options.method == "dense":
        return solve_dense(problem, options)
    if problem.is_around_target and not problem.asks_for_corrections:
        return _solve_around(problem, options)
    if options.method == "filter" and problem.target is not None:
        return solve_window(problem, options, solve_iteratively)
    if problem.which == "BE":
        return both_ends(problem, lambda end: solve_iteratively(end, options))
    return solve_iteratively(problem, options)


def prepare(problem: Problem) -> tuple[Problem, IterationOptions]:
    """Check k, orthonormalise the locked columns, and choose method and sizes."""
    op = problem.operator
    given = problem.locked
    locked = None if given is None else orthonormal_block("orthogonal_to", given, op, problem.blocks)
    k = integer("k", problem.k, 1, problem.n - (0 if locked is None else locked.n_cols))
    asked = replace(problem, k=k)
    problem = replace(asked, locked=locked)
    return problem, _options(problem, asked)


def _options(problem: Problem, asked: Problem) -> IterationOptions:
    """Choose method and sizes; `asked` has its locked columns as given: zero ones count for the method."""
    b = _block_size(problem)
    ncv = _basis_size(problem, b)
    method, degree, why = choose_method(asked, b, ncv)
    logger.debug("method %s: %s; block size %d, ncv %d, degree %d", method, why, b, ncv, degree)
    maxiter = MAX_OUTER if problem.begins_with_corrections else MAX_RESTARTS
    if problem.maxiter is not None:
        maxiter = integer("maxiter", problem.maxiter, 1)
    options = IterationOptions(b, ncv, maxiter, degree, method, why)
    return replace(options, most_calls=most_calls(problem, options))


# --- method and sizes -------------------------------------------------------------------------------


def choose_method(problem: Problem, block_size: int, ncv: int) -> tuple[Chosen, int, str]:
    """Choose the method, the degree of its filter, and give the reason.

    The `start`, `locked`, `block_size` and `checkpoint` of a problem are honoured by iterations only.
    """
    method, n, k = problem.method, problem.n, problem.k
    cost = problem.operator, block_size, (k + ncv) // 2
    if method == "dense" and problem.checkpoint is not None:
        raise OptionError("checkpoint: not available with method='dense'; use method='lanczos'.")
    if method == "auto" and problem.precision == "mixed":
        return "filter", max(choose_degree(*cost), MIN_DEGREE), "precision='mixed' asks for it"
    if method != "auto":
        degree = max(choose_degree(*cost), MIN_DEGREE) if method == "filter" else 1
        return method, degree, "asked for"
    for name in ("preconditioner", "jd_options"):
        if getattr(problem, name) is not None:
            return "jd", 1, f"{name} is given"
    iterative = (problem.start, problem.block_size, problem.locked, problem.checkpoint)
    if all(value is None for value in iterative):
        most = DENSE_ROWS if problem.target is None else DENSE_ROWS_INSIDE
        if problem.has_costly_steps:
            most = DENSE_ROWS_SHIFTED
        if n <= most:
            return "dense", 1, f"n = {n} is at most {most}"
        if k * DENSE_SHARE > n and n <= DENSE_MAX_ROWS:
            return "dense", 1, f"k = {k} is more than 1/{DENSE_SHARE} of n = {n}"
    if problem.target is not None:
        return "jd", 1, "sigma is given, and A is no matrix of the host that could be factorised"
    degree = choose_degree(*cost)
    if degree < MIN_DEGREE:
        return "lanczos", 1, "applying A costs as much as orthogonalising, or is of unknown cost"
    return "filter", degree, f"a step of Lanczos costs as much as {degree} applications of A"


def _block_size(problem: Problem) -> int:
    """Choose the block size, or check the one given.

    Four columns at a time halve the cost per column against one (basis and matrix are read once for all),
    and cost a tenth more columns as long as a restart leaves room for a dozen steps. Eight are a little
    cheaper still, on a GPU by half, where a call from Python takes as long as four columns; they are taken
    where many pairs are wanted and a column is known to be cheap. Fewer pairs on the host would be done a
    fifth sooner in blocks of four, but lattices have values of multiplicity six, after which blocks of four
    need a search for further copies that can take longer than the solve. For a few pairs on the
    host two short columns take half of the time of four, and a third fewer are needed. Single ones need
    another third fewer, which a search for copies of every value takes. For more pairs four short columns
    take as long as two, and find more copies; eight need up to twice as many.
    """
    op, n, k = problem.operator, problem.n, problem.k
    is_sparse = getattr(op, "nnz", None) is not None
    if problem.block_size is not None:
        b = integer("block_size", problem.block_size, 1, n)
    elif problem.begins_with_corrections:
        guided = problem.preconditioner is not None or (problem.target is not None and is_sparse)
        b = _correction_block_size(op.device != "cpu" or n <= SHORT_COLUMN * k, k, problem.ncv, guided)
    else:
        few = FEW_COSTLY_PAIRS if problem.has_costly_steps else FEW_PAIRS
        wide = 0 if problem.start is None else problem.start.shape[1]
        filters = problem.method == "filter" or problem.precision == "mixed"  # in larger blocks
        is_usual = k <= few and wide <= PAIR and not filters
        b = 8 if k >= 8 and (op.device != "cpu" or is_sparse) else 4 if k >= 4 else 2
        if has_short_columns(problem) and not (problem.has_costly_steps and not is_usual):
            b = min(k, PAIR) if is_usual else min(b, 4)  # only copies of wanted values change the result
        if problem.ncv is not None:  # two steps between restarts
            b = min(b, max(1, (integer("ncv", problem.ncv, 1) - k) // 2))
    return min(b, n - problem.n_locked)


def _correction_block_size(is_short: bool, k: int, ncv: Any, guided: bool) -> int:
    """Choose the block size of Jacobi-Davidson, for a basis of `ncv` vectors if given.

    Blocks take more columns and fewer calls. Calls decide about the time while columns are short
    (`is_short`: on a GPU up to a million rows at least), the more the more pairs are wanted: on two cores ten
    pairs of 900 to 14 000 rows took 0.43 to 0.74 of the time of blocks of two in blocks of eight, five pairs
    0.4 to 0.6 on about 1000 rows, but 1.0 to 1.4 on 8000 to 14 000. For longer columns, many pairs pay for a
    block of four, and few do where a preconditioner or a filter around a target guides them (`guided`).
    """
    if k < 4:
        return 2
    if is_short and (ncv is None or integer("ncv", ncv, 1) >= k + 8 * LEAST_STEPS):
        return 8
    return 4 if guided or k >= MANY_PAIRS else 2


def _basis_size(problem: Problem, b: int) -> int:
    """Choose the basis size for blocks of b columns, or check the one given.

    A preconditioner makes do with a smaller basis: 8 steps instead of 14 took a twentieth more of its
    applications and a fifth less of all other work.
    """
    k, room = problem.k, problem.n - problem.n_locked
    wide = 0 if problem.start is None else problem.start.shape[1]
    if wide > room:
        raise ShapeError(f"v0 has {wide} columns, the space they live in only {room} dimensions.")
    if problem.ncv is None:
        steps = 8 if b > 4 or problem.preconditioner is not None else 14 if b > 1 else 20
        if (
            problem.has_costly_steps
        ):  # it ends when the pairs have converged: rather a large basis than restarts
            steps = 20
        # In whole blocks: rows are aligned then, and kernels are compiled for few widths.
        ncv = min(room, -(-(k + max(k, steps * b) + wide) // b) * b)
        if problem.target is None or problem.method != "filter":
            return ncv
        row_bytes = problem.operator.dtype.itemsize
        return max(ncv, min(WINDOW_BASIS, WINDOW_BYTES // (problem.n * row_bytes), problem.n // 8))
    least = min(room, max(k, wide) + b)
    if integer("ncv", problem.ncv, 1) < least:
        columns = f", {wide} columns of v0" if wide else ""
        raise OptionError(
            f"ncv: got {problem.ncv}; k = {k}{columns} and block_size = {b} need at least {least}."
        )
    return min(room, int(problem.ncv))


# --- runs -------------------------------------------------------------------------------------------


def solve_iteratively(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve by block Lanczos, with or without a filter, or by block Jacobi-Davidson."""
    options = replace(options, mixes=_mixes(problem, options))
    _require_memory(problem, options)
    op = problem.operator
    start: Block = _empty(op) if problem.start is None else problem.start
    if problem.blocks is not BlockVector:
        start = problem.blocks(start.array)
    elif options.method != "jd" and has_short_columns(problem):
        start, problem = ColumnBlock.of(start), _by_columns(problem)
        op = problem.operator
    if problem.start is None:
        start = start.random_like(options.block_size, problem.rng)
    elif not to_host(start.norms()).any():
        raise OptionError("v0 is zero; give a start with a direction, or leave it out.")
    if problem.checkpoint is not None:
        problem.checkpoint.problem = _fingerprint(problem, options)
        problem.checkpoint.image = probe(op, start, problem.locked)
        problem.checkpoint.layout = op.layout
    iterations: dict[Chosen, type[Iteration]]
    iterations = {"lanczos": ThickRestart, "filter": FilteredRestart, "jd": JacobiDavidson}
    is_explicit = op.device == "cpu" and getattr(op, "nnz", None) is not None  # products need no BLAS
    threads = single_threaded_blas if is_explicit else contextlib.nullcontext()
    with threads, deferred_interrupt() as interrupted:
        try:
            outcome = iterations[options.method](problem, options, start, interrupted).run()
        except BreakdownError as error:
            source = "A" if problem.preconditioner is None else "A or the preconditioner"
            raise BreakdownError(
                f"{source} returned NaN or Inf for a finite block, or numbers whose squares overflow "
                f"({error})"
            ) from error
        if largest(op.layout, interrupted()):
            outcome = replace(outcome, reason="interrupted")
    return _result(problem, options, outcome)


def has_short_columns(problem: Problem) -> bool:
    """Check whether Lanczos runs on column-major blocks: steps take as long as their calls."""
    op = problem.operator
    is_here = op.device == "cpu" and isinstance(op, ArrayOperator | _Described)
    is_usual = problem.blocks is BlockVector and problem.target is None and op.dtype.char in "dD"
    return is_here and is_usual and op.shape[0] <= SHORT_ROWS


def _by_columns(problem: Problem) -> Problem:
    """Convert a problem of the host to column-major blocks."""
    locked = None if problem.locked is None else ColumnBlock.of(problem.locked)
    operator = ColumnOperator(cast(ArrayOperator, problem.operator))
    return replace(problem, operator=cast(Operator, operator), locked=locked)


def _empty(op: Operator) -> BlockVector:
    """Return a block without columns that an operator can be applied to."""
    return BlockVector.empty(op.shape[0], 0, op.dtype, device=op.device, layout=op.layout)


def _mixes(problem: Problem, options: IterationOptions) -> bool:
    """Check whether filters may be in single precision: where that saves time and memory suffices for it."""
    op, b = problem.operator, options.block_size
    if options.method != "filter" or problem.precision == "double" or not can_convert(op):
        return False
    if problem.precision == "mixed":
        return True
    if not saves_time(op, b):
        return False
    free = available_bytes(op)
    lacks = free is not None and _basis_bytes(problem, options) + copy_bytes(op, b) > free
    return not largest(op.layout, lacks)


def _basis_bytes(problem: Problem, options: IterationOptions) -> int:
    op = problem.operator
    return _empty(op).n_rows * _columns(problem, options) * op.dtype.itemsize


def _require_memory(problem: Problem, options: IterationOptions) -> None:
    """Refuse an iteration that needs more memory than is free."""
    op, needed, remedy = problem.operator, _basis_bytes(problem, options), "lower ncv or k"
    purpose = f"a basis of ncv = {options.ncv} vectors of {_empty(op).n_rows} rows"
    if options.mixes:
        needed += copy_bytes(op, options.block_size)
        purpose += " and a copy of A in single precision"
        remedy += ", or use precision='double'"
    require_memory(op, needed, purpose, remedy)


def _columns(problem: Problem, options: IterationOptions) -> int:
    """Count the vectors that an iteration stores."""
    basis = 2 * options.ncv + 4 * problem.k if options.method == "jd" else options.ncv
    return basis + 6 * options.block_size + problem.k + problem.n_locked


@dataclass(frozen=True)
class _Described:
    """The properties of an operator that the choice of method and sizes depends on."""

    n: int
    nnz: int
    dtype: np.dtype[Any]
    device: str = "cpu"

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.n


def memory_needed(
    n: int,
    nnz: int,
    k: int,
    processes: int = 1,
    *,
    dtype: Any = np.float64,
    method: Method = "auto",
    block_size: int | None = None,
    ncv: int | None = None,
) -> int:
    """Estimate the bytes that each process of a solve on hosts needs, before there is a matrix.

    For one end of the spectrum of a sparse matrix. They are those of the matrix, twice because its parts or a
    scaled copy are made from it, and of the vectors that the iteration stores. The halo of the process's rows
    is not counted.

    Parameters
    ----------
    n, nnz, k : int
        Rows and entries of the whole matrix, and wanted eigenpairs.
    processes : int
    dtype : dtype
        Element type of the matrix.
    method, block_size, ncv
        As for `eigsh`.

    Returns
    -------
    int

    Examples
    --------
    >>> from blockvec.solvers import memory_needed
    >>> [round(memory_needed(400**3, 7 * 400**3, 20, processes) / 1e9) for processes in (1, 4)]
    [91, 23]
    """
    op: Any = _Described(n, nnz, np.dtype(dtype))
    tolerance = Tolerance(0.0, "value", float(np.finfo(op.dtype).eps) / 2)
    problem = Problem(
        operator=op,
        k=integer("k", k, 1, n),
        which="SA",
        tolerance=tolerance,
        rng=np.random.default_rng(0),
        method=method,
        block_size=block_size,
        ncv=ncv,
    )
    options = _options(problem, problem)
    rows = -(-n // integer("processes", processes, 1))
    if options.method == "dense":
        return dense_bytes(op)
    itemsize: int = op.dtype.itemsize
    return 2 * -(-nnz // processes) * (itemsize + INDEX_BYTES) + rows * _columns(problem, options) * itemsize


def _fingerprint(problem: Problem, options: IterationOptions) -> dict[str, Any]:
    """Collect everything that determines an iteration, except the operator itself."""
    return {
        "n": problem.n,
        "method": options.method,
        "k": problem.k,
        "which": problem.which,
        "block_size": options.block_size,
        "ncv": options.ncv,
        "norm": problem.norm,
        "verify": problem.verify,
        "degree": options.degree,
        "sigma": problem.target,
        **asdict(problem.tolerance),
        "columns of v0": 0 if problem.start is None else problem.start.shape[1],
        "columns of orthogonal_to": problem.n_locked,
        "preconditioner": problem.preconditioner is not None,
        **(problem.jd_options or JacobiDavidsonOptions()).fingerprint(),
        "dtype": problem.operator.dtype.name,
        "rng": type(problem.rng.bit_generator).__name__,
        "blockvec": __version__,
        **({"exponent of two": problem.exponent} if problem.exponent else {}),
        **({"precision": problem.precision} if options.mixes else {}),
    }


def _solve_around(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve around a target by Jacobi-Davidson, and by a filter if that stagnates in a dense spectrum."""
    first = solve_iteratively(problem, options)
    if first.info["stopped"] != "stagnated" or problem.may_be_dense:
        return first
    part = replace(
        staged(problem, "window"),
        start=BlockVector(first.eigenvectors),
        method="filter",
        block_size=None,
        ncv=None,
        maxiter=None,
    )
    why = f"{options.why}; corrections stagnated, since eigenvalues are dense there"
    sizes = replace(_options(part, part), why=why)
    return one_after_other(first, solve_window(part, sizes, solve_iteratively))


def dense_bytes(op: Operator) -> int:
    """Compute the memory that dense LAPACK needs."""
    n: int = op.shape[0]
    return 5 * n * n * op.dtype.itemsize


def solve_dense(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve by dense LAPACK."""
    op, n = problem.operator, problem.n
    purpose = f"a dense matrix of {n} rows and its eigenvectors"
    require_memory(op, dense_bytes(op), purpose, "use method='lanczos'")
    if op.layout is not None and n > FEW_ROWS:
        raise OptionError(
            f"method: dense LAPACK runs in every process, for up to {FEW_ROWS} rows; A has {n}: use "
            "method='lanczos', or leave out comm."
        )
    seen = problem.seen or SpectralMap(problem.target).transformed
    theta, X, norm = dense_eigenpairs(op.apply, _empty(op), problem.k, problem.which, seen, problem.locked)
    norm = norm if problem.norm is None else problem.norm
    counts = Counts(
        operator_columns=n + len(theta),
        block_applications=-(-n // IDENTITY_COLUMNS) + -(-len(theta) // IDENTITY_COLUMNS),
    )
    outcome = IterationResult(
        theta=theta,
        X=BlockVector(X, layout=op.layout),
        residuals=_residuals(problem, theta, X),
        limits=problem.tolerance.limits(theta, norm),
        reason="converged",
        verification="not needed: dense LAPACK finds everything",
        missing=0,
        norm=norm,
        degree=1,
        counts=counts,
        history=[],
    )
    return _result(problem, options, outcome)


def _residuals(problem: Problem, theta: Any, X: Any) -> Any:
    """Compute true residual norms, a few columns at a time."""
    op, xp = problem.operator, array_namespace(X)
    norms = []
    for begin in range(0, len(theta), IDENTITY_COLUMNS):
        part = slice(begin, begin + IDENTITY_COLUMNS)
        block = BlockVector(xp.ascontiguousarray(X[:, part]), layout=op.layout)
        R = op.apply(block).axpy(xp.asarray(-theta[part].astype(block.array.real.dtype)), block)
        norms.append(to_host(project_out(problem.locked, R).norms()))
    return np.concatenate(norms).astype(np.float64)


def _result(problem: Problem, options: IterationOptions, outcome: IterationResult) -> EigenResult:
    """Sort the pairs of an outcome, and describe the run: the problem, the method and the costs."""
    iterates, counts = options.method != "dense", outcome.counts
    method, why = options.method, options.why
    if method == "filter" and problem.method == "auto" and outcome.degree == 1:
        method, why = "lanczos", "it was predicted to converge before a filter would pay"
    info: SolveInfo = {
        "method": method,
        "why": why,
        "stopped": outcome.reason,
        "verification": outcome.verification,
        "n": problem.n,
        "k": problem.k,
        "which": problem.which,
        "sigma": problem.target,
        "interval": None,
        "counted": None,
        "count_error": None,
        "tol": problem.tolerance.tol,
        "convergence": problem.tolerance.convergence,
        "dtype": problem.operator.dtype.name,
        "device": problem.operator.device,
        "norm": outcome.norm,
        "block_size": options.block_size if iterates else None,
        "ncv": options.ncv if iterates else None,
        "degree": outcome.degree,
        "operator_columns": counts.operator_columns,
        "single_columns": counts.single_columns,
        "block_applications": counts.block_applications,
        "preconditioner_columns": counts.preconditioner_columns,
        "verification_columns": counts.verification_columns,
        "missing": outcome.missing,
        "restarts": counts.restarts,
        "reductions": counts.reductions,
        "time_s": time.perf_counter() - problem.begin_s,
    }
    order = np.argsort(outcome.theta, kind="stable")
    theta, residuals, limits = (
        values[order] for values in (outcome.theta, outcome.residuals, outcome.limits)
    )
    X = array_namespace(outcome.X.array).ascontiguousarray(outcome.X.array[:, order])
    vectors = delivered(X, problem.operator.layout)
    return EigenResult.from_pairs(theta, vectors, residuals, limits, info, outcome.history)
