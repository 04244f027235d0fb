"""The methods of singular values: an eigenproblem in stages, dense LAPACK, and a few passes.

Lanczos on A^H A needs the short vectors alone. Its rounding errors are u ||A||^2, so that a singular value s
is accurate to u ||A||^2 / s, and its vectors are those of A only for values of the size of ||A||. The vectors
of these are accepted, and the others are computed again in their complement, where the rounding errors are
u ||A|| times the largest of them: stage by stage, all values become as accurate as if nothing had been
squared. The triplets are always those of A itself: with A V = Q R and the singular vectors of R.

References
----------
Stathopoulos, Wu, ACM Trans. Math. Softw. 37 (2010) 21, and Wu, Romero, Stathopoulos, SIAM J. Sci. Comput. 39
(2017) S248 (two stages; here the second one is the first one again, without the vectors that are known);
Halko, Martinsson, Tropp, SIAM Rev. 53 (2011) 217, equation 4.3 (bound of an error by random products); Musco,
Musco, NIPS 28 (2015) 1396 (block Krylov spaces of few passes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import BreakdownError

from ..arguments import is_explicit
from ..blocks import RealArray, column_factors, columns_of, side_by_side, small_matrix, to_host
from ..costs import DENSE_SHARE, FEW_ROWS, dense_rows
from ..iterations.rayleigh_ritz import FLOOR, SAME_VALUE, Tolerance
from ..iterations.run import Counts
from ..orthogonalization import orthogonalize
from ..placement import can_factorise, shift_invert_s
from ..planning import Plan, Stage, iteration_stages
from ..problem import STOPPED, IterationState, Problem, Verification
from ..result import EigenResult
from ..runtime.memory import require_memory
from ..sizes import choose_options
from ..stages.drivers import solve
from .operators import Pair

TIGHTER = (
    2.0  # ratio of the limits of triplets to those of a stage, which settles values above half of the largest
)
GRAM_ROUNDING = 40.0  # u ||A|| ||A x||: rounding errors of A^H A x
RESOLVED = 4.0  # limits of residuals of A^H A above which its values are no rounding errors
SEARCH_TOLERANCE = 1e-4  # relative, of the next value
INVERSE_RESTARTS = 20  # of a stage by factors, whose solves may not permit its own limits
# Elements of A, of which wide blocks take a third of the time of single columns, fewer columns in all.
WIDE_ENTRIES = 400_000
WIDE, WIDE_PAIRS = 8, 32  # columns of these blocks, and triplets from which on; half of it for fewer
WIDE_BASIS, BASIS_PER_PAIR = 128, 5  # vectors of a basis of such blocks, at least, and per triplet
DENSE_ENTRIES = 1 << 20  # elements of A that is formed for dense LAPACK because that takes less time
DENSE_BYTES = 1 << 30  # bytes of A that is formed for its smallest values
SVD_S = 2e-9  # s per cubed row, of dense LAPACK for all triplets of a square matrix (one core, 1000 rows)
PASSES, OVERSAMPLING = 4, 10  # of solver="randomized": products with A and A^H, and further columns
PROBES = 10  # random vectors that bound the error of an approximation: with the probability 1 - 10^-PROBES


@dataclass(kw_only=True)
class Task:
    """The singular triplets that are asked for, and how to compute them."""

    pair: Pair
    is_centred: bool
    A: Any  # the matrix of the caller, or its operator
    k: int
    which: str
    method: str  # "auto", "lanczos", "randomized" or "dense"
    tol: float
    unit: float  # unit roundoff of the caller's type
    rng: np.random.Generator
    start: Any
    options: Mapping[str, int]
    limits: Mapping[str, Any]  # fields of `Problem`: sizes, verify, callback, time_limit, begin_s

    def problem(self, operator: Operator, which: str, k: int, **changes: Any) -> Problem:
        """Make the eigenproblem of an operator of A."""
        limits = {**self.limits}
        if limits["block_size"] is None and limits["ncv"] is None:
            limits["block_size"], limits["ncv"] = self._sizes(operator)
        fields: dict[str, Any] = {
            "operator": operator,
            "k": k,
            "which": which,
            "tolerance": Tolerance(self.tol, "value", self.unit / TIGHTER),
            "rng": self.rng,
            "start": self.start,
            "method": "auto" if self.method == "auto" else "lanczos",
            **limits,
        }
        return Problem(**{**fields, **changes})

    def _sizes(self, operator: Operator) -> tuple[int | None, int | None]:
        """Choose wide blocks and a large basis where products take longer than all else; else None."""
        n = self.pair.shape[1]
        if self.pair.entries < WIDE_ENTRIES or self.start is not None or n <= WIDE_BASIS:
            return None, None
        if getattr(operator, "matrix", None) is not None:
            return None, None
        b = WIDE if self.k >= WIDE_PAIRS else WIDE // 2
        return b, min(max(WIDE_BASIS, BASIS_PER_PAIR * self.k), n)

    def accepted(self, s: RealArray, norm: float) -> RealArray:
        """Compute the residual limits of singular values."""
        return np.maximum(self.tol * s, FLOOR * self.unit * (norm + s))


@dataclass
class Triplets:
    """Singular triplets of a `Pair`, the most wanted first, with true residuals and what they have cost."""

    U: BlockVector
    s: RealArray
    V: BlockVector
    residuals: RealArray  # the larger one of both
    method: str
    why: str
    norm: float
    counts: Counts = field(default_factory=Counts)
    verification: Verification = Verification.NOT_NEEDED
    text: str = "not needed: dense LAPACK finds everything"
    stopped: str = "converged"
    missing: int = 0
    stages: int = 1
    block_size: int | None = None
    ncv: int | None = None
    history: list[IterationState] = field(default_factory=list)
    further: dict[str, Any] = field(default_factory=dict)  # entries of `info`


Method = tuple[str, str, Callable[[Task], Triplets]]


def choose(task: Task) -> Method:
    """Choose the method: its name, the reason, and the function that runs it."""
    (m, n), k = task.pair.shape, task.k
    device = task.pair.forward.device
    nbytes = m * n * task.pair.forward.dtype.itemsize
    if task.method == "dense":
        return "dense", "asked for", dense
    if task.method == "randomized":
        return "randomized", "asked for", randomized
    if _has_factors(task):
        return "inverse", "A is square, and its factors take seconds", inverse
    if task.which == "SM" and n <= FEW_ROWS and nbytes <= DENSE_BYTES:
        return "dense", f"min(m, n) = {n} is at most {FEW_ROWS}, and nothing is squared", dense
    if task.which == "SM":
        return "lanczos", "A has too many columns for dense LAPACK, and no factors", smallest
    is_small = m * n <= DENSE_ENTRIES and n <= dense_rows("end", device, k)
    if is_small and task.method == "auto" and task.start is None:
        return "dense", f"A has {m} x {n} elements", dense
    if k * DENSE_SHARE > n and nbytes <= DENSE_BYTES and n <= FEW_ROWS:
        return "dense", f"k = {k} is more than 1/{DENSE_SHARE} of min(m, n) = {n}", dense
    return "lanczos", "the largest values are at an end of the spectrum of A^H A", largest


def _has_factors(task: Task) -> bool:
    """Check whether A is a square, sparse matrix whose factors take less time than dense LAPACK."""
    (m, n), op, device = task.pair.shape, task.pair.forward, task.pair.forward.device
    is_sparse = is_explicit(task.A) and hasattr(task.A, "nnz") and not task.is_centred
    if m != n or task.which != "SM" or not is_sparse or n <= dense_rows("factors", device, task.k):
        return False
    K = task.pair.augmented(task.A, 1.0)
    place = as_operator(K) if device == "cpu" else op
    if not can_factorise(place, K, None):
        return False
    return n > FEW_ROWS or shift_invert_s(K, place) < SVD_S * n**3


def plan(task: Task, method: Method) -> Plan:
    """Describe what a method will do."""
    name, why, _ = method
    m, n = task.pair.shape
    device = task.pair.forward.device
    if name == "dense":
        nbytes = 3 * m * n * task.pair.forward.dtype.itemsize
        stages: tuple[Stage, ...] = (Stage("dense", "dense", why, nbytes=nbytes),)
    elif name == "inverse":
        stages = (Stage("iterate", "lanczos", why),)
    else:
        which = "SA" if task.which == "SM" else "LA"
        gram = task.problem(task.pair.gram(), which, task.k)
        first, *others = iteration_stages(gram, choose_options(gram))
        when = "values are left that squares do not resolve"
        again = [] if name == "randomized" else [replace(first, when=when, why="they are all that is left")]
        stages = (first, *others, *again)
    form = "by A itself" if name == "dense" else "as those of (A^H A)^-1" if name == "inverse" else "of A^H A"
    return Plan(n, task.k, device, None, form, stages)


# --- triplets of A ----------------------------------------------------------------------------------------


def triplets_of(
    pair: Pair, V: Any, method: str, why: str, left: Callable[[BlockVector], BlockVector] | None = None
) -> Triplets:
    """Compute the singular triplets of A on orthonormal columns V, and their true residuals.

    They are those of A V = Q R, so that small values do not suffer from squares, the largest first. This
    needs the vectors of all larger values, without which rounding errors of A v along these would make
    ||A^H u - s v|| as large as u ||A||^2 / s. `left` computes blocks of left vectors without such errors;
    triplets are then those of U^H A V, the smallest first.
    """
    V = V if isinstance(V, BlockVector) else BlockVector(V)
    W = pair.forward.apply(V)
    Q = W.copy() if left is None else left(V)
    R = orthogonalize(Q, rng=0).R
    if left is not None:
        R = to_host(Q.dot(W))
    if not np.isfinite(R).all():
        raise BreakdownError("svds: A returned NaN or Inf for a finite block; check its entries.")
    X, s, Yh = np.linalg.svd(R)
    order = np.arange(len(s)) if left is None else np.arange(len(s))[::-1]
    X, s, Y = X[:, order], s[order].astype(np.float64), Yh.conj().T[:, order]
    U, V = Q.combine(small_matrix(X, Q)), V.combine(small_matrix(Y, V))
    first = W.combine(small_matrix(Y, W)).axpy(column_factors(-s, U), U)
    second = pair.adjoint.apply(U).axpy(column_factors(-s, V), V)
    norms = [to_host(R.norms()).astype(np.float64) for R in (first, second)]
    return Triplets(U, s, V, np.maximum(*norms), method, why, float(s.max(initial=0.0)))


def _settled(task: Task, found: Triplets) -> int:
    """Count the most wanted triplets whose residuals are within their limits."""
    within = found.residuals <= task.accepted(found.s, found.norm)
    return len(within) if within.all() else int(np.argmin(within))


# --- iterations -------------------------------------------------------------------------------------------


def largest(task: Task) -> Triplets:
    """Compute the largest values in stages, the first one with A^H A as a matrix if that is small."""
    explicit = task.pair.explicit_gram()
    operator = task.pair.gram()
    found = _in_stages(task, operator, "LA", "lanczos", math.inf, first=explicit)
    is_open = task.limits["verify"] != "never" and not found.verification.is_decided
    last, limit = found.s[-1], task.accepted(found.s, found.norm)[-1]
    if is_open and found.stopped == "converged" and last <= SAME_VALUE * limit:  # too small for a search
        _search(task, operator, found, (last + limit) ** 2)
    return found


def inverse(task: Task) -> Triplets:
    """Compute the smallest values of a square matrix by its factors, in the same stages.

    Errors of solves mix vectors of small values, so that iterations may stagnate before their own limits, but
    not before those of A. An inertia count tells whether a value is missing.
    """
    norm = math.sqrt(_largest_eigenvalue(task, task.pair.gram()))
    K = task.pair.augmented(task.A, norm)
    operator, left = task.pair.inverse_gram(K)
    maxiter = INVERSE_RESTARTS if task.limits["maxiter"] is None else task.limits["maxiter"]
    quick = replace(task, limits={**task.limits, "verify": "never", "maxiter": maxiter})
    found = _in_stages(quick, operator, "LA", "inverse", norm, left)
    if _settled(task, found) < task.k:
        is_given = task.limits["maxiter"] is not None or found.stopped != "maxiter"
        found.stopped = found.stopped if is_given else "stagnated"
        return found
    found.stopped = "converged"
    if task.limits["verify"] == "never":
        return found
    last = float(found.s[-1] - SAME_VALUE * task.accepted(found.s, norm)[-1])
    if last <= 0:
        found.verification, found.text = Verification.NOT_NEEDED, "not needed: all are zero to rounding"
    elif (count := task.pair.count_below(K, last)) is None:
        _search(task, operator, found, (1 + SEARCH_TOLERANCE) / last**2)
    else:
        expected = int((found.s < last).sum())
        found.missing = max(count - expected, 0)
        found.verification = Verification.UNDECIDED if found.missing else Verification.PROVED
        found.text = f"{count} values below {last:.6g} by inertia, {expected} computed"
    return found


def _search(task: Task, operator: Operator, found: Triplets, most: float) -> None:
    """Look for an eigenvalue of an operator above a number in the complement of the right vectors."""
    if found.V.n_cols == task.pair.shape[1]:
        found.verification, found.text = Verification.NOT_NEEDED, "not needed: these are all values"
        return
    theta = _largest_eigenvalue(task, operator, found.V, SEARCH_TOLERANCE)
    found.missing = int(theta > most)
    found.verification = Verification.UNDECIDED if found.missing else Verification.SEARCHED
    found.text = (
        "found 1 more" if found.missing else "passed: the next value is less wanted than the last one"
    )


def smallest(task: Task) -> Triplets:
    """Compute the smallest values by A^H A, and those that squares do not resolve by Jacobi-Davidson.

    Each of these is corrected around its value as an eigenpair of the augmented operator, in the complement
    of those before.
    """
    norm = math.sqrt(_largest_eigenvalue(task, task.pair.gram()))
    found = _in_stages(task, task.pair.gram(), "SA", "lanczos", norm)
    within = found.residuals <= task.accepted(found.s, norm)
    if within.all() or found.stopped in STOPPED or found.stopped == "maxiter":
        return found
    (m, _), H, columns = task.pair.shape, task.pair.augmented_operator(), 0
    xp, locked = array_namespace(found.V.array), None
    for j in np.argsort(found.s, kind="stable"):
        u, v = (BlockVector(X.array[:, j : j + 1], copy=True) for X in (found.U, found.V))
        both = BlockVector(xp.concatenate([u.array, v.array])).scale(math.sqrt(0.5))
        if not within[j]:
            sizes: dict[str, Any] = {"block_size": None, "ncv": None, "maxiter": None, "norm": norm}
            sizes |= {"target": float(found.s[j]), "method": "jd", "start": both, "locked": locked}
            part = solve(task.problem(H, "LM", 1, **sizes, verify="never", callback=None))
            columns += part.info["operator_columns"]
            both = BlockVector(part.eigenvectors, copy=True)
        locked = cast(BlockVector, both if locked is None else side_by_side(locked, both))
    assert locked is not None
    left, right = locked[:m].copy(), locked[m:].copy()
    orthogonalize(right, rng=0)
    better = triplets_of(task.pair, right, "jd", found.why, lambda V: left)
    found.counts.operator_columns += columns
    kept = ("counts", "verification", "text", "missing", "block_size", "ncv", "history", "norm")
    better = replace(better, **{name: getattr(found, name) for name in kept}, stages=found.stages + 1)
    better.stopped = "converged" if _settled(task, better) == task.k else "stagnated"
    if found.s.min() ** 2 <= RESOLVED * FLOOR * task.unit * norm**2:
        better.verification = Verification.UNDECIDED
        better.text = "undecided: A^H A does not tell the smallest values from zero"
    return better


def _largest_eigenvalue(
    task: Task, operator: Operator, locked: BlockVector | None = None, tol: float = 0.1
) -> float:
    """Estimate the largest eigenvalue of an operator of A, in the complement of locked columns."""
    sizes: dict[str, Any] = {"maxiter": None, "ncv": None, "block_size": None}
    changes = {"start": None, "verify": "never", "callback": None, "locked": locked, **sizes}
    problem = task.problem(operator, "LA", 1, **changes)
    problem = replace(problem, tolerance=replace(problem.tolerance, tol=tol))
    return max(float(to_host(solve(problem).eigenvalues)[0]), 0.0)


def _in_stages(
    task: Task,
    operator: Operator,
    which: str,
    method: str,
    norm: float,
    left: Callable[[BlockVector], BlockVector] | None = None,
    first: Operator | None = None,
) -> Triplets:
    """Compute eigenvectors of an operator of A in stages, those that are settled first.

    `norm` is that of A, infinite if it is the largest value computed; `left` as in `triplets_of`; `first` is
    the same operator in a form for the first stage.
    """
    parts: list[EigenResult] = []
    k, locked, start, done, rest = task.k, None, task.start, 0, None
    is_squared = left is None
    tolerance = Tolerance(task.tol if is_squared else 0.0, "value", task.unit / TIGHTER)
    while True:
        changes = {"locked": locked, "start": start, "tolerance": tolerance, "norm": rest}
        if parts and _is_complete(parts[0]):
            changes["verify"] = "never"
        problem = task.problem(operator if parts or first is None else first, which, k - done, **changes)
        part = solve(problem)
        parts.append(part)
        V = side_by_side(locked, BlockVector(columns_of(part.eigenvectors, _wanted_first(part, which))))
        found = triplets_of(task.pair, V, method, part.info["why"], left)
        found.norm = found.norm if norm == math.inf else norm
        before, done = done, _settled(task, found)
        is_over = which == "SA" or part.info["stopped"] in STOPPED
        is_over |= part.info["stopped"] == "maxiter" and is_squared
        if done == k or done <= before or is_over:
            return _joined(task, found, parts)
        # The known ones, and the others as they are so far.
        locked, start = found.V[:, :done].copy(), found.V[:, done:].copy()
        following = max(float(found.s[done]), task.unit * found.norm)
        rest = (following**2 or None) if is_squared else following**-2
        if is_squared:
            tolerance = replace(tolerance, rounding=GRAM_ROUNDING * task.unit * found.norm * following)


def _is_complete(first: EigenResult) -> bool:
    """Check that a search for missed copies in the first stage has told all values from rounding errors."""
    values = to_host(first.eigenvalues).astype(np.float64)
    return first.verification.is_decided and bool((values > RESOLVED * first.limits).all())


def _wanted_first(part: EigenResult, which: str) -> NDArray[np.intp]:
    order = np.arange(len(part.residuals))
    return order if which == "SA" else order[::-1]


def _joined(task: Task, found: Triplets, parts: list[EigenResult]) -> Triplets:
    """Add up what stages have cost, and what became of their verification."""
    columns, counts, history = 0, Counts(), []
    for part in parts:
        history += [
            replace(state, operator_columns=state.operator_columns + columns) for state in part.history
        ]
        columns += part.info["operator_columns"]
        counts.restarts += part.info["restarts"]
        counts.reductions += part.info["reductions"]
        counts.block_applications += part.info["block_applications"]
        counts.verification_columns += part.info["verification_columns"]
    counts.operator_columns = columns + task.k
    first, last = parts[0], parts[-1]
    checked = first if _is_complete(first) else last  # a search is one in the complement of all stages before
    is_left = _settled(task, found) < task.k and last.info["stopped"] == "converged"
    return replace(
        found,
        why=first.info["why"],
        counts=counts,
        verification=checked.verification,
        text=checked.info["verification"],
        stopped="stagnated" if is_left else last.info["stopped"],
        missing=last.info["missing"],
        stages=len(parts),
        block_size=first.info["block_size"],
        ncv=first.info["ncv"],
        history=history,
    )


def randomized(task: Task) -> Triplets:
    """Approximate the largest triplets by a block Krylov space of a few passes, and bound the error."""
    pair, k = task.pair, task.k
    n = pair.shape[1]
    width = min(k + task.options.get("oversampling", OVERSAMPLING), n)
    passes = task.options.get("passes", PASSES)
    ncv = min(width * passes, n)
    problem = task.problem(
        pair.gram(),
        "LA",
        k,
        start=None,
        block_size=width,
        ncv=ncv,
        maxiter=1,
        verify="never",
        method="lanczos",
    )
    part = solve(problem)
    V = BlockVector(columns_of(part.eigenvectors, _wanted_first(part, "LA")))
    found = triplets_of(pair, V, "randomized", f"{passes} passes with {width} columns")
    found = _joined(task, found, [part])
    found.counts.operator_columns += PROBES
    found.stopped, found.further = "converged", _error(task, found)
    found.text = "skipped: an approximation"
    return found


def _error(task: Task, found: Triplets) -> dict[str, float]:
    """Bound ||A - U S V^H||_2 by products with random normal vectors."""
    n, U, V = task.pair.shape[1], found.U, found.V
    normal = task.rng.standard_normal((n, PROBES)).astype(V.dtype)
    probes = BlockVector(array_namespace(V.array).asarray(normal))
    rest = task.pair.forward.apply(probes)
    projected = V.dot(probes)
    U.combine(column_factors(found.s, U)[:, None] * projected, out=rest, alpha=-1, beta=1)
    largest_norm = float(to_host(rest.norms()).max())
    return {
        "error": 10 * math.sqrt(2 / math.pi) * largest_norm,
        "error_probability": 10.0**-PROBES,
    }


def dense(task: Task) -> Triplets:
    """Compute all triplets by dense LAPACK, and return those that are wanted."""
    pair, k = task.pair, task.k
    m, n = pair.shape
    nbytes = 3 * m * n * pair.forward.dtype.itemsize
    require_memory(cast(Any, pair.forward), nbytes, f"a dense matrix of {m} x {n}", "use solver='lanczos'")
    A = pair.matrix()
    xp = array_namespace(A)
    if not bool(xp.isfinite(A).all()):
        raise BreakdownError("svds: A holds NaN or Inf; check its entries.")
    left, s, right = map(xp.asarray, xp.linalg.svd(A, full_matrices=False))
    values = to_host(s).astype(np.float64)
    order = np.argsort(values if task.which == "SM" else -values, kind="stable")[:k]
    columns = xp.asarray(order)
    U, V = (BlockVector(xp.ascontiguousarray(X[:, columns])) for X in (left, right.conj().T))
    s = values[order]
    first = pair.forward.apply(V).axpy(column_factors(-s, U), U)
    second = pair.adjoint.apply(U).axpy(column_factors(-s, V), V)
    residuals = np.maximum(*(to_host(R.norms()).astype(np.float64) for R in (first, second)))
    counts = Counts(operator_columns=k + (0 if hasattr(pair.forward, "matrix") else n))
    return Triplets(U, s, V, residuals, "dense", "", float(values.max(initial=0.0)), counts)
