"""Judge the answer to a drawn call: right, wrong in silence, wrong with a warning, or refused."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec.errors import BlockvecError
from solvers import ConvergenceWarning, NoConvergence, count_eigenvalues, eigsh
from tests.drawn.matrices import dense
from tests.drawn.problems import Draw, Problem, build

FLOOR = 100.0  # u (||A|| + |theta| ||M||): residuals that count as converged, as eigsh documents
SLACK = 4.0  # times the documented limit: norms are estimates
RESIDUAL = 1.5  # times the limit: residuals that are measured again
LOSS = {"d": 1e-10, "f": 1e-4}  # of orthonormality
ROUNDING = 8.0  # of a residual's own computation, in u |A| |x|
HALVINGS = 30  # of the logarithm of a range of errors
LAPACK_ROWS = 1500  # up to which a refused call is given to LAPACK


@dataclass(frozen=True)
class Verdict:
    """What became of a call.

    Attributes
    ----------
    outcome : str
        "right", "silent" (wrong without a warning or an exception), "warned" (wrong with one), "refused" (an
        exception, although SciPy or LAPACK solves it to the same limit), or "excused" (they do not, either).
    reason : str
    warning : str
        The warning of a right or wrong answer.
    time_s : float
        Of the processor, for the call alone.
    """

    outcome: str
    reason: str = ""
    warning: str = ""
    time_s: float = 0.0


def attempt(draw: Draw, device: str = "cpu") -> Verdict:
    """Make a drawn call, and judge its answer."""
    return judged(build(draw), device)


def judged(problem: Problem, device: str = "cpu", **options: Any) -> Verdict:
    """Make the call of a problem, and judge its answer."""
    begin_s = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer, error = _ask(problem, device, **options), None
        except Exception as raised:
            answer, error = None, raised
    time_s = time.process_time() - begin_s
    if error is not None:
        raw = "" if isinstance(error, BlockvecError) else "raw "
        outcome = "refused" if is_solved_elsewhere(problem) else "excused"
        if isinstance(error, NoConvergence) and not _is_true(problem, error):
            outcome = "silent"
        return Verdict(outcome, f"{raw}{type(error).__name__}: {error}", time_s=time_s)
    warning = "; ".join(str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning))
    reason = _judge(problem, answer)
    outcome = "right" if not reason else "warned" if warning else "silent"
    return Verdict(outcome, reason, warning, time_s)


def _is_true(problem: Problem, error: NoConvergence) -> bool:
    """Check that pairs which a refusal calls converged are within their limits."""
    w, X = (x.get() if hasattr(x, "get") else x for x in (error.eigenvalues, error.eigenvectors))
    limits = error.result.limits[error.result.converged]
    if X is None or not len(w):
        return True
    residuals = np.linalg.norm(problem.A @ X - (X if problem.M is None else problem.M @ X) * w, axis=0)
    rounding = ROUNDING * problem.unit * np.linalg.norm(_sizes(problem.A, problem.M, X, w), axis=0)
    return bool((residuals <= RESIDUAL * limits + rounding).all())


def is_accepted(draw: Draw, outcome: str) -> bool:
    """Check that an answer is right, or refused by a method that was named."""
    return outcome in ("right", "excused") or (draw.method != "auto" and outcome in ("refused", "warned"))


def _ask(problem: Problem, device: str, **options: Any) -> Any:
    draw = problem.draw
    on = {} if device == "cpu" else {"device": device}
    is_function = draw.form == "function" and device == "cpu"  # one of the host's arrays
    given = problem.given if is_function or draw.form != "function" else problem.A
    if draw.which == "count":
        assert problem.interval is not None
        return count_eigenvalues(given, *problem.interval, M=problem.M, rng=draw.seed, **on)
    how: dict[str, Any] = {"which": draw.which, "sigma": problem.sigma}
    if problem.interval is not None:
        how = {"interval": problem.interval}
    return eigsh(
        given,
        None if problem.interval else draw.k,
        M=problem.M,
        tol=draw.tol,
        convergence=draw.convergence,
        method=draw.method,
        verify=draw.verify,
        rng=draw.seed,
        return_info=True,
        **how,
        **on,
        **options,
    )


def _judge(problem: Problem, answer: Any) -> str:
    if problem.draw.which == "count":
        return judge_count(problem, int(answer), answer.is_exact)
    w, X = (x.get() if hasattr(x, "get") else x for x in (answer.eigenvalues, answer.eigenvectors))
    return judge(problem, w, X, answer.limits)


def judge_count(problem: Problem, number: int, is_exact: bool) -> str:
    """Say what is wrong with a number of eigenvalues; "" if nothing is, or it is an estimate."""
    first, last, least = _inside(problem)
    if not is_exact or least <= number <= last - first:
        return ""
    return f"counted {number}, right are {least} to {last - first}"


def judge(problem: Problem, w: Any, X: Any, given_limits: Any = None) -> str:
    """Say what is wrong with eigenpairs; "" if nothing is.

    `given_limits` are the residuals at which the pairs were called converged; what is documented bounds them.
    """
    unit = problem.unit
    X = np.asarray(X, dtype=np.promote_types(X.dtype, np.float64))
    w = np.asarray(w, dtype=np.float64)
    order = np.argsort(w, kind="stable")
    if not (np.isfinite(w).all() and np.isfinite(X).all()):
        return f"not finite: {w}"
    if (order != np.arange(len(w))).any():
        return f"not ascending: {w}"
    A, M = (
        None if Z is None else Z.astype(np.promote_types(Z.dtype, np.float64)) for Z in (problem.A, problem.M)
    )
    MX = X if M is None else M @ X
    loss = np.abs(X.conj().T @ MX - np.eye(len(w))).max(initial=0)
    if not loss <= LOSS["f" if unit > 1e-10 else "d"]:
        return f"loss of orthonormality {loss:.1e}"
    documented = documented_limits(problem, w, np.linalg.norm(X, axis=0), np.linalg.norm(MX, axis=0))
    given = documented if given_limits is None else given_limits
    residuals = np.linalg.norm(A @ X - MX * w, axis=0)
    rounding = ROUNDING * unit * np.linalg.norm(_sizes(A, M, X, w), axis=0)
    if not (residuals <= RESIDUAL * given + rounding).all():
        return f"residual {(residuals / given).max():.3g} times its limit"
    slack = 1.0 if given_limits is None else SLACK
    return _compared(problem, w, allowed_errors(problem, w, np.minimum(given, slack * documented)))


def _sizes(A: Any, M: Any, X: np.ndarray, w: np.ndarray) -> np.ndarray:
    size = np.abs(X)
    sizes: np.ndarray = abs(A) @ size + (size if M is None else abs(M) @ size) * np.abs(w)
    return sizes


def documented_limits(problem: Problem, w: np.ndarray, lengths: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Compute the limits of ||A x - theta M x|| for vectors x and M x of these lengths."""
    draw = problem.draw
    scale = problem.norm + np.abs(w) * problem.mass_norm
    asked = {"value": np.abs(w) * masses, "norm": scale * lengths}[draw.convergence]
    shifted = max(problem.norm, abs(problem.sigma or 0.0) * problem.mass_norm)
    floor = FLOOR * problem.unit * (shifted + np.abs(w) * problem.mass_norm) * lengths
    limits: np.ndarray = np.maximum(draw.tol * asked, floor)
    return limits


def allowed_errors(problem: Problem, w: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Compute how far from w the nearest eigenvalue may be, given the residuals of vectors of length one.

    Without M that is the residual. With M, r has the parts y^H r = (lambda - w) y^H M x, the sum of
    |y^H M x|^2 is 1, and |y^H r| <= ||y|| ||r||: the sum of (||y|| ||r|| / (lambda - w))^2 is at least 1.
    """
    if problem.M is None:
        return residuals
    values = problem.spectrum.values
    nearest = values[np.abs(np.subtract.outer(w, values)).argmin(axis=1)]
    apart = np.abs(np.subtract.outer(nearest, values))
    parts = np.multiply.outer(residuals, problem.spectrum.lengths)
    low, high = parts.min(axis=1), np.linalg.norm(parts, axis=1)
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        is_possible = np.linalg.norm(parts / np.maximum(apart, middle[:, None]), axis=1) >= 1
        low, high = np.where(is_possible, middle, low), np.where(is_possible, high, middle)
    return high


def _compared(problem: Problem, w: np.ndarray, allowed: np.ndarray) -> str:
    """Compare values with those that are wanted, in the order of the request."""
    spectrum, draw = problem.spectrum, problem.draw
    if problem.interval is not None:
        return _compared_inside(problem, w, allowed)
    if len(w) != draw.k:
        return f"{len(w)} values instead of {draw.k}"
    chosen = wanted(spectrum.values, draw.which, problem.sigma, draw.k)
    right, errors = spectrum.values[chosen], spectrum.errors[chosen]
    centre = problem.sigma or 0.0
    # Values at equal distances from the centre are equally wanted.
    by_distance = draw.which == "SM" or (draw.which == "LM")
    key = (lambda x: np.abs(x - centre)) if by_distance else (lambda x: x)
    ours, theirs = np.argsort(key(w), kind="stable"), np.argsort(key(right), kind="stable")
    away = np.abs(key(w)[ours] - key(right)[theirs])
    return _worst(away, (allowed[ours] + errors[theirs]), w, right)


def _worst(away: np.ndarray, allowed: np.ndarray, w: np.ndarray, right: np.ndarray) -> str:
    if (away <= allowed).all():
        return ""
    j = int(np.argmax(away / allowed))
    return f"value {j} off by {away[j]:.3g}, allowed {allowed[j]:.3g}: got {_few(w)}, right {_few(right)}"


def _few(values: np.ndarray) -> str:
    shown = " ".join(f"{value:.8g}" for value in values[:8])
    return f"[{shown}{' ...' if len(values) > 8 else ''}]"


def wanted(values: np.ndarray, which: str, sigma: float | None, k: int) -> np.ndarray:
    """Return the places of the wanted ones of all eigenvalues, ascending."""
    n = len(values)
    if sigma is None:
        key = {"LA": -values, "SA": values, "LM": -np.abs(values), "SM": np.abs(values), "BE": values}[which]
    else:
        with np.errstate(divide="ignore"):
            nu = 1 / (values - sigma)
        key = {"LA": -nu, "SA": nu, "LM": -np.abs(nu), "SM": np.abs(nu), "BE": nu}[which]
    order = np.argsort(key, kind="stable")
    return np.sort(np.r_[order[: k // 2], order[n - (k - k // 2) :]] if which == "BE" else order[:k])


def _inside(problem: Problem) -> tuple[int, int, int]:
    """Return the range of values that may be inside the interval, and how many are for sure."""
    assert problem.interval is not None
    values, errors = problem.spectrum.values, problem.spectrum.errors
    lengths = problem.spectrum.lengths
    floor = FLOOR * problem.unit * (problem.norm + np.abs(values) * problem.mass_norm) * lengths**2
    blur = SLACK * (floor + errors)
    low, high = problem.interval
    may_be = (values >= low - blur) & (values <= high + blur)
    must_be = (values >= low + blur) & (values <= high - blur)
    places = np.flatnonzero(may_be)
    first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    return first, last, int(must_be.sum())


def _compared_inside(problem: Problem, w: np.ndarray, allowed: np.ndarray) -> str:
    first, last, least = _inside(problem)
    if not least <= len(w) <= last - first:
        return f"{len(w)} values inside, right are {least} to {last - first}"
    reasons = []
    for begin in range(first, last - len(w) + 1):
        right, errors = (
            x[begin : begin + len(w)] for x in (problem.spectrum.values, problem.spectrum.errors)
        )
        reasons.append(_worst(np.abs(w - right), allowed + errors, w, right))
    return min(reasons, key=len)


def is_solved_elsewhere(problem: Problem) -> bool:
    """Check whether LAPACK or SciPy solves a problem to the documented limit."""
    draw = problem.draw
    if problem.interval is not None:
        return True  # LAPACK has counted the values of the spectrum
    if problem.A.shape[0] <= LAPACK_ROWS:
        try:
            values, Y = scipy.linalg.eigh(dense(problem.A), None if problem.M is None else dense(problem.M))
        except scipy.linalg.LinAlgError:
            pass  # M is singular
        else:
            chosen = wanted(values, draw.which, problem.sigma, draw.k)
            if not judge(problem, values[chosen], Y[:, chosen]):
                return True
    if draw.k >= problem.A.shape[0]:
        return False
    sigma, which = (0.0, "LM") if (draw.which, problem.sigma) == ("SM", None) else (problem.sigma, draw.which)
    start = np.random.default_rng(draw.seed).uniform(-1, 1, problem.A.shape[0]).astype(problem.A.dtype)
    try:
        w, X = scipy_eigsh(problem.A.tocsc(), draw.k, problem.M, sigma, which, v0=start, tol=draw.tol)
    except Exception:
        return False
    order = np.argsort(w)
    return not judge(problem, w[order], X[:, order])
