"""The methods of singular values: an eigenproblem in stages, dense LAPACK, and a few passes.

Lanczos on A^H A needs the short vectors alone. Its rounding errors are u ||A||^2, so that a singular value s
is accurate to u ||A||^2 / s, and its vectors are those of A only for values of the size of ||A||. The vectors
of these are accepted, and the others are computed again in their complement, where the rounding errors are
u ||A|| times the largest of them: stage by stage, all values become as accurate as if nothing had been
squared. The triplets are always those of A itself: with A V = Q R and the singular vectors of R. The smallest
values are the largest ones of an inverse, by sparse factors or by R of A = Q R.

References
----------
Stathopoulos, Wu, ACM Trans. Math. Softw. 37 (2010) 21, and Wu, Romero, Stathopoulos, SIAM J. Sci. Comput. 39
(2017) S248 (two stages; here the second one is the first one again, without the vectors that are known);
Halko, Martinsson, Tropp, SIAM Rev. 53 (2011) 217, equation 4.3 (bound of an error by random products); Musco,
Musco, NIPS 28 (2015) 1396 (block Krylov spaces of few passes).
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import BreakdownError

from ..blocks import empty_block, is_explicit, side_by_side, small_matrix, to_host
from ..costs import (
    AFFORDABLE_S,
    DENSE_SHARE,
    FEW_ROWS,
    can_factorise,
    dense_rows,
    factor_s,
    require_memory,
    shift_invert_s,
)
from ..iterations.spectrum import sketch_of
from ..orthogonalization import orthogonalize
from ..planning import Plan, Stage, iteration_stages
from ..problem import FLOOR, SAME_VALUE, STOPPED, Verification
from ..result import EigenResult
from ..sizes import choose_options
from ..stages.combine import one_after_other
from ..stages.dense import formed
from ..stages.run import solve
from .operators import AugmentedInverse, Inverse, TriangularInverse
from .task import FEW_STEPS, GRAM_ROUNDING, TIGHTER, Task, Triplets, triplets_of

MORE_STEPS = 32  # Lanczos steps that tell whether A^H A is far from singular: 16 told less often
RESOLVED = 4.0  # limits of residuals of A^H A above which its values are no rounding errors
SEARCH_TOLERANCE = 1e-4  # relative, of the next value
EQUAL_TOLERANCE = 1e-10  # the same where that is about the last one
INVERSE_RESTARTS = 20  # of a stage by factors, whose solves may not permit its own limits
DENSE_WORK = 1_500_000  # m n^2 on the host up to which LAPACK takes less time than A^H A: 100 to 3000 rows
DENSE_ENTRIES = 1 << 20  # elements of A that is formed for the LAPACK of a GPU because that takes less time
DENSE_BYTES = 1 << 30  # bytes of A that is formed for its smallest values
SVD_S = 2e-9  # s per cubed row, of dense LAPACK of a GPU for all triplets of a square matrix
LEAST_RESTARTS = 4  # with A^H A in the time of a triangular factor, which they may make needless
QR_S = 5e-11  # s per m n^2, of a triangular factor (one core, 600 to 4000 rows)
PASSES, OVERSAMPLING = 4, 10  # of solver="randomized": products with A and A^H, and further columns
PROBES = 10  # random vectors that bound the error of an approximation: with the probability 1 - 10^-PROBES
SMALLEST_WORK = 5_000_000  # m n^2 on the host up to which LAPACK takes less time for the smallest values
# Entries of `info` of dense LAPACK, and of the problems that a method solves beside that of the call.
DIRECT: dict[str, Any] = {
    "stopped": "converged",
    "verification": "not needed: dense LAPACK finds everything",
    "block_size": None,
    "ncv": None,
    "stages": 1,
    "verification_columns": 0,
    "restarts": 0,
    "missing": 0,
}
INNER = dict.fromkeys(("start", "callback", "maxiter", "ncv", "block_size")) | {"verify": "never"}


# --- the choice of a method -------------------------------------------------------------------------------


def solved(task: Task) -> tuple[Plan, Triplets]:
    """Choose a method, and run it."""
    name, why = choose(task)
    made, run = plan(task, name, why), {"dense": dense, "randomized": randomized, "inverse": inverse}
    found = run.get(name, smallest if task.which == "SM" else largest)(task)
    found.info = DIRECT | {"method": name, "why": why} | found.info
    return made, found


def choose(task: Task) -> tuple[str, str]:
    """Choose the method, and give the reason."""
    (m, n), k, op = task.pair.shape, task.k, task.pair.forward
    is_whole, fits = op.layout is None, _fits(task)
    if task.method in ("dense", "randomized"):
        return task.method, "asked for"
    if task.which == "SM":
        if _has_factors(task):
            return "inverse", "A is square, and its factors take seconds"
        if _has_triangle(task) and m * n * n > SMALLEST_WORK:
            return "inverse", f"a triangular factor of {m} x {n} elements takes seconds"
        if fits:
            return "dense", f"min(m, n) = {n} is at most {FEW_ROWS}, and nothing is squared"
        return "lanczos", "A has too many columns for dense LAPACK, and no factors"
    if op.device == "cpu":
        is_small = m * n * n <= DENSE_WORK
    else:
        is_small = m * n <= DENSE_ENTRIES and n <= dense_rows("end", op.device, k)
    if is_whole and is_small and task.method == "auto" and task.start is None:
        return "dense", f"A has {m} x {n} elements"
    if k * DENSE_SHARE > n and fits:
        return "dense", f"k = {k} is more than 1/{DENSE_SHARE} of min(m, n) = {n}"
    return "lanczos", "the largest values are at an end of the spectrum of A^H A"


def _fits(task: Task) -> bool:
    """Check whether dense LAPACK takes seconds."""
    (m, n), op = task.pair.shape, task.pair.forward
    return op.layout is None and m * n * op.dtype.itemsize <= DENSE_BYTES and n <= FEW_ROWS


def _has_triangle(task: Task) -> bool:
    """Check whether a triangular factor of A takes seconds on the host."""
    (m, n), op = task.pair.shape, task.pair.forward
    if op.layout is not None or op.device != "cpu" or m * n * op.dtype.itemsize > DENSE_BYTES:
        return False
    return n <= FEW_ROWS or (is_explicit(task.A) and QR_S * m * n * n <= AFFORDABLE_S)


def _has_factors(task: Task) -> bool:
    """Check whether A is a square, sparse matrix that has factors in less time than a triangular one."""
    (m, n), op = task.pair.shape, task.pair.forward
    is_sparse = is_explicit(task.A) and hasattr(task.A, "nnz") and not task.pair.is_centred
    if m != n or not is_sparse or n <= dense_rows("factors", op.device, task.k):
        return False
    K = task.pair.augmented(task.A, 1.0)
    cost_s, most_s = factor_s(K, op.device, 0.0), QR_S * n**3
    if op.device != "cpu":
        cost_s, most_s = shift_invert_s(K, op), SVD_S * n**3
    return can_factorise(as_operator(K) if op.device == "cpu" else op, K, None) and (
        n > FEW_ROWS or cost_s < most_s
    )


def plan(task: Task, name: str, why: str) -> Plan:
    """Describe what a method will do."""
    (m, n), op = task.pair.shape, task.pair.forward
    form = {"dense": "by A itself", "inverse": "as those of (A^H A)^-1"}.get(name, "of A^H A")
    stages = [Stage("iterate", "lanczos", why)]
    if name == "dense":
        stages = [Stage("dense", name, why, nbytes=3 * m * n * op.dtype.itemsize)]
    elif name != "inverse":
        gram = task.problem(task.pair.gram(), "SA" if task.which == "SM" else "LA", task.k)
        stages = iteration_stages(gram, choose_options(gram))
    if name == "lanczos":
        when = "values are left that squares do not resolve"
        stages.append(replace(stages[0], when=when, why="they are all that is left"))
    return Plan(n, task.k, op.device, None, form, tuple(stages))


# --- iterations -------------------------------------------------------------------------------------------


def largest(task: Task) -> Triplets:
    """Compute the largest values in stages, the first one with A^H A as a matrix if that is small."""
    task = task.with_rounding(gram := task.pair.gram())
    found = _in_stages(task, gram, "LA", first=task.pair.explicit_gram())
    if found.info["stopped"] == "stagnated" and found.settled == task.k:
        found.info["stopped"] = "converged"
    if task.searches and not found.verification.is_decided and found.info["stopped"] == "converged":
        _search(task, gram, found, float(found.s[0] + found.limits[0]) ** 2)  # A^H A could not tell
    return found


def inverse(task: Task) -> Triplets:
    """Compute the smallest values by factors, a triangular one, or dense LAPACK: the first that settles them.

    Errors of solves mix vectors of small values, so that iterations may stagnate before their own limits, but
    not before those of A.
    """
    pair = task.pair
    norm = max(math.sqrt(sketch_of(pair.gram(), FEW_STEPS).norm), pair.offset)
    found = _by_products(task, norm) if _has_triangle(task) else None
    if not _is_final(task, found) and _has_factors(task):
        unverified = replace(task, limits={**task.limits, "verify": "never"})
        found = _by_inverse(unverified, AugmentedInverse(pair, task.A, norm), norm, None, task.searches)
    if _has_triangle(task) and not _is_final(task, found):
        factors = TriangularInverse(pair, norm, task.rng)
        zeros = factors.find_zeros(pair, task.k, norm, task.rng)
        found = _by_inverse(task, factors, norm, zeros, task.searches)
    if found is not None and _is_final(task, found):
        return found
    return dense(task) if _fits(task) else smallest(task) if found is None else found


def _by_products(task: Task, norm: float) -> Triplets | None:
    """Compute the smallest values by A^H A, within the time of a triangular factor.

    Returns None where that is short or A^H A may be singular.
    """
    (m, n), gram = task.pair.shape, task.pair.gram()
    problem = task.problem(gram, "SA", task.k)
    cycle_s = iteration_stages(problem, choose_options(problem))[0].seconds
    most = 0 if cycle_s is None else int(QR_S * m * n * n / cycle_s)
    if most < LEAST_RESTARTS or task.limits["maxiter"] is not None or sketch_of(gram, MORE_STEPS).low <= 0:
        return None
    limited = replace(task, tighter=TIGHTER**2, limits={**task.limits, "maxiter": most})
    found = _in_stages(limited, gram, "SA", norm)
    if found.info["stopped"] == "maxiter":
        found.info["stopped"] = "stagnated"
    return found


def _is_final(task: Task, found: Triplets | None) -> bool:
    """Check that a method has settled all triplets and whether there are others, or was stopped."""
    if found is None or found.info["stopped"] in STOPPED:
        return found is not None
    is_right = bool((found.residuals <= found.limits).all())
    return is_right and (found.verification.is_decided or not task.searches)


def _by_inverse(
    task: Task, inverse: Inverse, norm: float, zeros: BlockVector | None, searches: bool
) -> Triplets | None:
    """Compute the smallest values by an inverse in the same stages, then search for others as small."""
    maxiter = task.limits["maxiter"]
    limits = {**task.limits, "maxiter": INVERSE_RESTARTS if maxiter is None else maxiter}
    try:
        if zeros is not None and zeros.n_cols == task.k:
            found = triplets_of(task, zeros, norm, inverse=inverse)
            found.info["stopped"] = "stagnated"
        else:
            limited = replace(task, limits=limits)
            found = _in_stages(limited, inverse.operator, "LA", norm, inverse, known=zeros)
    except BreakdownError:  # the inverse of a triangular factor is not finite
        return None
    if not (found.residuals <= found.limits).all():
        if maxiter is None and found.info["stopped"] == "maxiter":
            found.info["stopped"] = "stagnated"
        return found
    found.info["stopped"] = "converged"
    last = float(found.s[-1] - SAME_VALUE * found.limits[-1])
    if searches and last <= 0:
        found.verified(Verification.NOT_NEEDED, "not needed: all are zero to rounding")
    elif searches and not found.verification.is_decided:
        inverse.lock(found.U)
        _search(task, inverse.operator, found, 1 / last**2)
    return found


def _search(task: Task, operator: Operator, found: Triplets, most: float) -> None:
    """Look for an eigenvalue of an operator above a number in the complement of the right vectors."""
    if task.k == task.pair.shape[1]:
        found.verified(Verification.NOT_NEEDED, "not needed: these are all values")
        return
    following = _largest_eigenvalue(task, operator, found.V, SEARCH_TOLERANCE)
    if abs(following - most) <= SEARCH_TOLERANCE * most:  # one of equal values, or a more wanted one
        following = _largest_eigenvalue(task, operator, found.V, EQUAL_TOLERANCE)
    if following > most:
        found.verified(Verification.UNDECIDED, "found 1 more", 1)
    else:
        text = "passed: the next value is less wanted than the last one"
        found.verified(Verification.SEARCHED, text)


def smallest(task: Task) -> Triplets:
    """Compute the smallest values by A^H A, and those that squares do not resolve by Jacobi-Davidson.

    Each of these is corrected around its value as an eigenpair of the augmented operator, in the complement
    of those before.
    """
    squared = task.with_rounding(gram := task.pair.gram())
    norm = max(math.sqrt(_largest_eigenvalue(squared, gram)), task.pair.offset)
    found = _in_stages(squared, gram, "SA", norm)
    if (found.residuals <= found.limits).all() or found.info["stopped"] in (*STOPPED, "maxiter"):
        return found
    H, columns, locked = task.pair.augmented_operator(), 0, None
    xp = array_namespace(found.V.array)
    for j, s in enumerate(found.s.tolist()):
        u, v = (X[:, j : j + 1].copy() for X in (found.U, found.V))
        both = BlockVector(xp.concatenate([u.array, v.array]), layout=H.layout).scale(math.sqrt(0.5))
        if found.residuals[j] > found.limits[j]:
            changes = {**INNER, "target": s, "method": "jd", "start": both, "locked": locked, "norm": norm}
            part = solve(task.problem(H, "LM", 1, **changes))
            columns += part.info["operator_columns"]
            both = BlockVector(part.eigenvectors, copy=True)
        locked = cast(BlockVector, side_by_side(locked, both))
    assert locked is not None
    left, right = (half.copy() for half in task.pair.halves(locked.array))
    orthogonalize(right, rng=0)
    better = triplets_of(task, right, norm, left)
    better.verification, better.history = found.verification, found.history
    better.info = found.info | {"method": "jd", "stages": found.info["stages"] + 1}
    better.info["operator_columns"] += columns
    better.info["stopped"] = "converged" if better.settled == task.k else "stagnated"
    if found.s[0] ** 2 <= RESOLVED * FLOOR * task.unit * norm**2:
        text = "undecided: A^H A does not tell the smallest values from zero"
        better.verified(Verification.UNDECIDED, text, found.info["missing"])
    return better


def _largest_eigenvalue(
    task: Task, operator: Operator, locked: BlockVector | None = None, tol: float = 0.1
) -> float:
    """Estimate the largest eigenvalue of an operator of A, in the complement of locked columns."""
    changes = {**INNER, "locked": locked, "tolerance": task.tolerance(tol)}
    found = solve(task.problem(operator, "LA", 1, **changes))
    return max(float(to_host(found.eigenvalues)[0]), 0.0)


def _in_stages(
    task: Task,
    operator: Operator,
    which: str,
    norm: float | None = None,
    inverse: Inverse | None = None,
    first: Operator | None = None,
    known: BlockVector | None = None,
) -> Triplets:
    """Compute eigenvectors of an operator of A in stages, those that are settled first.

    `norm` is that of A, by default the largest value computed; `inverse` has the operator, and computes left
    vectors without the errors of products; `first` is the same operator in a form for the first stage;
    `known` has right vectors that are settled.
    """
    parts: list[EigenResult] = []
    k, start, rest = task.k, task.start, None if inverse is None else inverse.rest
    locked = known if known is not None and known.n_cols else None
    done = 0 if locked is None else locked.n_cols
    tolerance = task.tolerance(task.tol if inverse is None else 0.0)
    while True:
        changes = {"locked": locked, "start": start, "tolerance": tolerance, "norm": rest}
        if parts and _is_complete(parts[0]):
            changes["verify"] = "never"
        form, first = (operator if first is None else first), None
        part = solve(task.problem(form, which, k - done, **changes))
        parts.append(part)
        V: Any = side_by_side(BlockVector(part.eigenvectors), locked)
        found = triplets_of(task, V, norm, inverse=inverse)
        before, done = done, found.settled
        is_over = which == "SA" or part.info["stopped"] in STOPPED
        is_over |= part.info["stopped"] == "maxiter" and inverse is None
        if done == k or (done <= before and form is operator) or is_over:
            return _joined(task, found, parts)
        # The known ones, and the others as they are so far.
        cut, next_one = (done, done) if task.which == "SM" else (k - done, k - done - 1)
        halves = found.V[:, :cut].copy(), found.V[:, cut:].copy()
        locked, start = halves[:: 1 if task.which == "SM" else -1]
        error = task.unit * found.info["norm"]
        following = max(float(found.s[next_one]), error)
        rest = (following**2 or None) if inverse is None else following**-2
        if inverse is not None:
            inverse.lock(found.U[:, :cut])
        else:
            operator = task.pair.gram(locked)
            tolerance = replace(tolerance, rounding=GRAM_ROUNDING * error * following)


def _is_complete(first: EigenResult) -> bool:
    """Check that a search for missed copies in the first stage has told all values from rounding errors."""
    values = to_host(first.eigenvalues).astype(np.float64)
    return first.verification.is_decided and bool((values > RESOLVED * first.limits).all())


def _joined(task: Task, found: Triplets, parts: list[EigenResult]) -> Triplets:
    """Add up what stages have cost, and what became of their verification."""
    first, last = parts[0], parts[-1]
    joined: Any = functools.reduce(one_after_other, parts)
    checked = first if _is_complete(first) else last  # a search is one in the complement of all stages before
    found.verified(checked.verification, checked.info["verification"], joined.info["missing"])
    found.info |= {name: first.info[name] for name in ("why", "block_size", "ncv")}
    found.info |= {name: joined.info[name] for name in ("stopped", "restarts", "verification_columns")}
    found.info |= {"operator_columns": joined.info["operator_columns"] + task.k, "stages": len(parts)}
    found.history = joined.history
    if found.settled < task.k and last.info["stopped"] == "converged":
        found.info["stopped"] = "stagnated"
    return found


def randomized(task: Task) -> Triplets:
    """Approximate the largest triplets by a block Krylov space of a few passes.

    Products with random normal vectors bound the error ||A - U S V^H||_2.
    """
    n, k = task.pair.shape[1], task.k
    width = min(k + task.options.get("oversampling", OVERSAMPLING), n)
    passes = task.options.get("passes", PASSES)
    sizes = {"block_size": width, "ncv": min(width * passes, n), "maxiter": 1}
    gram = task.pair.gram()
    part = solve(task.problem(gram, "LA", k, **sizes, start=None, verify="never", method="lanczos"))
    found = _joined(task, triplets_of(task, BlockVector(part.eigenvectors)), [part])
    where: Any = {"device": gram.device, "layout": gram.layout, "rng": task.rng}
    probes = BlockVector.random(n, PROBES, gram.dtype, distribution="normal", **where)
    U, V, rest = found.U, found.V, task.pair.forward.apply(probes)
    U.combine(small_matrix(found.s[:, None] * to_host(V.dot(probes)), U), out=rest, alpha=-1, beta=1)
    error = 10 * math.sqrt(2 / math.pi) * float(to_host(rest.norms()).max())
    found.verified(Verification.SKIPPED, "skipped: an approximation")
    found.info["operator_columns"] += PROBES
    found.info |= {"why": f"{passes} passes with {width} columns", "stopped": "converged"}
    found.info |= {"error": error, "error_probability": 10.0**-PROBES}
    return found


def dense(task: Task) -> Triplets:
    """Compute all triplets by dense LAPACK, and return those that are wanted."""
    pair, (m, n), op = task.pair, task.pair.shape, task.pair.forward
    require_memory(op, 3 * m * n * op.dtype.itemsize, f"a dense matrix of {m} x {n}", "use solver='lanczos'")
    A = formed(op, empty_block(pair.adjoint))
    xp = array_namespace(A)
    if not bool(xp.isfinite(A).all()):
        raise BreakdownError("svds: A holds NaN or Inf; check its entries.")
    left, s, right = map(xp.asarray, xp.linalg.svd(A, full_matrices=False))
    ends = slice(n - task.k, n) if task.which == "SM" else slice(task.k)
    norm = max(float(s[0]), pair.offset)
    U, V = (BlockVector(xp.ascontiguousarray(X)) for X in (left[:, ends], right[ends].conj().T))
    found = triplets_of(task, V, norm, U)
    if found.settled < task.k:  # LAPACK's sums of many equal terms: the same by A V = Q R, with all of V
        found = triplets_of(task, BlockVector(xp.ascontiguousarray(right[::-1].conj().T)), norm)
    found.info["operator_columns"] += 0 if hasattr(op, "matrix") else n
    return found
