"""Rows whose diagonal elements are far larger than everything else: penalties, hard walls, springs.

An element p on the diagonal that fixes a degree of freedom is often 1e10 times as large as the stiffness.
Rounding errors of products, of factors and of tridiagonal forms are u p, and so is a limit of residuals
relative to ||A||: larger than the wanted values. These belong to the other rows, in which A is accurate. With
a diagonal D of powers of two, which are one but in the rows of penalties,

    (D A D) y = lambda (D M D) y,    x = D y,

is the same problem: a congruence changes neither eigenvalues nor inertia, and powers of two cause no rounding
errors. Its norm is that of the other rows. Without a shift its standard form would have the penalties again,
so that all is done with factors of D A D - sigma D M D.

There are as many eigenvalues of about the size of the penalties as there are such rows, which need no D. A
request for some of these and of the others, as for both ends of the spectrum, is one for each group.

References
----------
Barlow, Demmel, SIAM J. Numer. Anal. 27 (1990) 762 (eigenvalues of scaled diagonally dominant matrices).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from blockvec import array_namespace
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..arguments import device_of, on_host
from ..blocks import Array, RealArray, is_explicit, to_host
from ..costs import is_affordable
from ..problem import FLOOR, STOPPED, Selection
from ..result import ConvergenceWarning, EigenResult, refuse_more
from .scaling import FAR

if TYPE_CHECKING:
    from ..call import Call

# Share of the norm of most rows: a limit of rounding above it leaves eigenvalues few digits.
LOST = 1e-3
NEAR = 1e2  # the same ratio, of other rows that are scaled where there are penalties: the norm is theirs then
STEPS = 2  # of Jacobi's method in the rows of penalties: each divides a residual by at least `NEAR`
ACCEPTED = 2.0  # times its limit: a residual that is measured again, where the first one was within it


@frozen
class Request:
    """Eigenvalues to compute: of one group, or those of a call."""

    k: int | None
    which: Selection
    sigma: float | None = None
    interval: tuple[float, float] | None = None


@frozen
class Penalties:
    """Matrices D A D and D M D of the host, and the D of a matrix with penalties."""

    A: Any
    M: Any
    factors: Array  # shape (n,): the diagonal of D
    given: tuple[Any, Any]  # A and M
    low: int  # rows of negative penalties
    high: int  # rows of positive ones
    least: float  # magnitude of a penalty

    @classmethod
    def of(cls, A: Any, M: Any) -> Penalties | None:
        """Look for penalties where `may_have_penalties`; None without one, or if factors take too long."""
        from ..factorization.gram import congruent

        if not (M is None or is_explicit(M)):
            return None
        A, M = on_host(A), on_host(M)
        diagonal, others = _rows(A)
        sizes, n = np.abs(diagonal), len(diagonal)
        compared = np.maximum(others, np.median(sizes + others))
        far = diagonal[sizes >= FAR * compared]
        if not (others.any() and compared.min()) or not len(far):
            return None
        if M is None:
            M = sp.eye_array(n, dtype=A.dtype, format="csr")
        if not is_affordable(A, M):
            return None
        factors = np.ones(n)
        ratios = sizes / compared
        factors[ratios > NEAR] = 2.0 ** -np.rint(np.log2(ratios[ratios > NEAR]) / 2)
        scaled = congruent(A, factors), congruent(M, factors)
        low, high = int((far < 0).sum()), int((far > 0).sum())
        return cls(*scaled, factors, (A, M), low, high, float(np.abs(far).min()))

    def requests(self, request: Request) -> list[Request] | None:
        """Divide a request into those for values of one group, ascending; None where that cannot be done.

        An interval with an infinite end includes all penalties of its sign. Values inside are those nearest
        to a shift between them and the penalties.
        """
        free, k, which = len(self.factors) - self.low - self.high, request.k, request.which
        if request.interval is not None:
            low, high = request.interval
            below, above = self.low * math.isinf(low), self.high * math.isinf(high)
            first = self.shift_beyond("SA") if below else low
            last = self.shift_beyond("LA") if above else high
            if first is None or last is None or not self.are_below(first, last):
                return None
            inside = [Request(None, "LM", interval=(first, last))] if first <= last else []
            if not (below or above):
                return [request]
        else:
            assert k is not None
            if request.sigma is not None or which == "LM":
                is_possible = self.are_far(request) or (k <= free and self.are_below(request.sigma))
                return [request] if is_possible else None
            from_low = {"SA": k, "LA": 0, "BE": k // 2}[which]
            lows = np.diff(np.minimum(np.cumsum([0, self.low, free, self.high]), from_low)).tolist()
            highs = np.diff(np.minimum(np.cumsum([0, self.high, free, self.low]), k - from_low)).tolist()
            above, below = lows[2] + highs[0], lows[0] + highs[2]
            if (lows[2] and above < self.high) or (highs[2] and below < self.low):
                return None  # some of one group from its inner end
            if lows[1] + highs[1] == free:
                lows[1], highs[1] = (free, 0) if self.low == 0 else (0, free)
            wanted = {"SA": lows[1], "LA": highs[1]}
            inside = [Request(k, "LM", self.shift_beyond(end)) for end, k in wanted.items() if k]
            if not self.are_below(*(part.sigma for part in inside)):
                return None
        return [part for part in (Request(below, "SA"), *inside, Request(above, "LA")) if part.k != 0]

    def are_below(self, *values: float | None) -> bool:
        """Check that finite values are far below all penalties; None, for the largest magnitude, is not."""
        mass = float(abs(self.M).max())
        return all(
            value is not None and (math.isinf(value) or NEAR * abs(value) * mass <= self.least)
            for value in values
        )

    def are_far(self, request: Request) -> bool:
        """Check that only eigenvalues of about the size of the penalties are wanted."""
        if request.sigma is not None or request.interval is not None or request.k is None:
            return False
        k, half, low, high = request.k, request.k // 2, self.low, self.high
        is_beside = {"SA": k <= low, "LA": k <= high, "LM": k <= low + high}
        return is_beside.get(request.which, half <= low and k - half <= high)

    def shift_beyond(self, end: str) -> float | None:
        """Find a shift between the penalties of one end and the other eigenvalues by inertia.

        It is zero where these have one sign; the values nearest to it are then those of the end. None if no
        factorisation counts.
        """
        from blockvec import Factorization

        from ..factorization.inertia import shift_outside

        factors = Factorization(self.A.astype(np.promote_types(self.A.dtype, np.float64)), self.M)
        mass = abs(self.M.diagonal())[self.factors == 1]
        norm = float(np.asarray(abs(self.A) @ np.ones(len(self.factors))).max() / mass[mass > 0].min())
        known = np.repeat([-self.least, self.least], [self.low, self.high]) / float(mass.max())
        inside = np.full(1, np.finfo(np.float64).tiny if end == "SA" else -np.finfo(np.float64).tiny)
        return shift_outside(factors, inside, norm, cast(Selection, end), may_be_zero=True, deflated=known)

    def result(self, result: EigenResult) -> EigenResult:
        """Return the result for A and M, with its residuals.

        In the rows of penalties, errors of D A D are many times as large in A: the components in these follow
        from the others.
        """
        given = result.eigenvectors
        X = (given * self.factors[:, None]).astype(np.promote_types(given.dtype, np.float64))
        A, M = map(sp.csr_array, self.given)
        theta = np.asarray(result.eigenvalues, np.float64)
        diagonal, others = _rows(A)
        moved = float(np.abs(theta).max(initial=0.0)) * np.asarray(abs(M).sum(axis=1), np.float64)
        held = np.flatnonzero((self.factors < 1) & (np.abs(diagonal) > NEAR * (others + moved)))
        pivots = diagonal[held, None] - np.real(M.diagonal())[held, None] * theta
        for _ in range(STEPS):
            X[held] -= (A[held] @ X - M[held] @ X * theta) / pivots
        return _measured(replace(result, eigenvectors=X.astype(given.dtype)), A, M)


def taken_apart(call: Call, solve: Callable[[Call], EigenResult]) -> EigenResult | None:
    """Scale the rows of penalties of a call, or solve several in its place; None where it remains one."""
    request = Request(call.k, call.which, call.sigma, call.interval)
    penalties, requests = _divided(call, request)
    if penalties is None:
        return None
    if requests == [request]:
        device = device_of(call.A, call.device)
        call.home = None if device == "cpu" else device
        call.A, call.M, call.applied, call.device = penalties.A, penalties.M, None, None
        call.penalties = penalties
        return None
    path, parts = call.options["checkpoint"], list[EigenResult]()
    for number, part in enumerate(requests, 1):
        asked = {name: getattr(part, name) for name in ("k", "which", "sigma", "interval")}
        asked["checkpoint"] = None if path is None else f"{path}.part{number}"
        parts.append(solve(type(call)({**call.options, **asked}, call.begin_s)))
        if parts[-1].info["stopped"] in STOPPED:
            break
    return _joined(request, requests, parts, *penalties.given).with_info(**call.own)


def _divided(call: Call, request: Request) -> tuple[Penalties | None, list[Request]]:
    """Look for penalties in the matrix of a problem that factors may solve, and divide what is asked for.

    Where some remain that leave few digits of wanted values, this is a warning, and an error for an interval
    if they leave none: its values would be counted by their errors.
    """
    penalties, options = Penalties.of(call.A, call.M), call.options
    if penalties is not None and penalties.are_far(request):
        return None, [request]
    others = "OPinv", "preconditioner", "orthogonal_to", "Minv", "jd_options", "norm", "comm"
    is_usual = call.has_none(*others) and options["precision"] != "mixed" and call.mode == "normal"
    is_usual &= options["method"] in ("auto", "lanczos")
    is_usual &= request.sigma is None or request.which == "LM"
    if penalties is not None and is_usual and (requests := penalties.requests(request)) is not None:
        return penalties, requests
    if penalties is None and request == Request(request.k, "LM"):
        return None, [request]
    # Values near which eigenvalues are wanted, infinite ones for the ends of the spectrum.
    wanted: tuple[float, ...] = (-math.inf, math.inf)
    if request.interval is not None:
        wanted = request.interval
    elif request.sigma is not None and (request.which, call.mode) == ("LM", "normal"):
        wanted = (request.sigma,)
    elif request.sigma is None and request.which in ("SA", "LA"):
        wanted = wanted[:1] if request.which == "SA" else wanted[1:]
    if (text := lost_digits(call.A, wanted, LOST if penalties is None else 0.0)) is not None:
        if request.interval is not None and lost_digits(call.A, wanted, LOST):
            raise OptionError(f"interval: {text}.")
        warnings.warn(f"eigsh: {text}.", ConvergenceWarning, stacklevel=6)
    return None, [request]


def _joined(whole: Request, requests: list[Request], parts: list[EigenResult], A: Any, M: Any) -> EigenResult:
    """Join the results for groups of eigenvalues, ascending, as far as they were solved for."""
    interval = whole.interval
    ends = np.cumsum([0] + [len(part.residuals) for part in parts])
    inside_first = sorted(range(len(parts)), key=lambda i: requests[i].which != "LM")
    groups = [np.arange(ends[i], ends[i + 1]) for i in inside_first]
    result = _orthogonal(functools.reduce(_above, parts), groups, A, M)
    if interval is None:
        return result.with_info(k=whole.k, interval=None, counted=None, count_error=None)
    counted, is_whole = result.info["k"], len(parts) == len(requests)
    refuse_more(counted, whole.k)
    return result.with_info(
        which="interval",
        interval=[end if math.isfinite(end) else None for end in interval],
        counted=float(counted) if is_whole else None,
        count_error=0.0 if is_whole else None,
        missing=result.info["missing"] + (not is_whole),
    )


def _orthogonal(result: EigenResult, groups: list[NDArray[np.intp]], A: Any, M: Any) -> EigenResult:
    """Make groups of vectors orthogonal to those before: those of penalties, less accurate, come last."""
    A, M, given = sp.csr_array(A), sp.csr_array(M), result.eigenvectors
    X, known = to_host(given).astype(np.promote_types(given.dtype, np.float64)), np.zeros(0, np.intp)
    for group in groups:
        Y, basis = X[:, group], X[:, known]
        Y -= basis @ (basis.conj().T @ (M @ Y))
        X[:, group] = Y / np.sqrt((Y.conj() * (M @ Y)).real.sum(axis=0))
        known = np.append(known, group)
    measured = _measured(replace(result, eigenvectors=X.astype(given.dtype)), A, M)
    return replace(measured, eigenvectors=array_namespace(given).asarray(measured.eigenvectors))


def _measured(result: EigenResult, A: Any, M: Any) -> EigenResult:
    """Measure the residuals of a result, whose vectors are on the host, in the place of others."""
    theta, X = to_host(result.eigenvalues).astype(np.float64), result.eigenvectors
    residuals = np.linalg.norm(A @ X - M @ X * theta, axis=0).astype(np.float64)
    is_close = result.converged & (residuals <= ACCEPTED * result.limits)
    limits = np.where(is_close, np.maximum(result.limits, residuals), result.limits)
    return replace(result, residuals=residuals, limits=limits, converged=residuals <= limits)


def _above(low: EigenResult, high: EigenResult) -> EigenResult:
    """Join the results for two groups; values of the lower one that reach the other may be the same ones."""
    from ..stages.combine import are_apart, beside

    both = beside(low, high, k=low.info["k"] + high.info["k"])
    may_be_same = len(low.eigenvalues) > 0 and not are_apart(low, high)
    return both.with_info(missing=both.info["missing"] + may_be_same)


def lost_digits(A: Any, wanted: tuple[float, ...], share: float) -> str | None:
    """Describe rounding errors of the largest rows where they exceed a share of the norm of most others."""
    A = on_host(A)
    diagonal, others = _rows(A)
    far = diagonal[np.argmax(np.abs(diagonal))]
    if share > 0 and set(wanted) == {math.copysign(math.inf, far)}:
        return None  # the values of these rows themselves
    rows = np.abs(diagonal) + others
    largest, most = float(rows.max()), float(np.median(rows[rows > 0]))  # others have no digits to lose
    rounding = FLOOR * float(np.finfo(np.promote_types(A.dtype, np.float32)).eps) / 2 * largest
    if rounding <= share * most:
        return None
    return (
        f"the largest row of A has the norm {largest:.1g}, and limits of residuals are relative to it: "
        f"errors of eigenvalues may be {rounding:.1g}, while most rows have a norm of {most:.1g}: digits of "
        "eigenvalues below that are lost. Eliminate the degrees of freedom of the largest elements, or "
        "reduce these"
    )


def _rows(A: Any) -> tuple[RealArray, RealArray]:
    """Return the diagonal of a matrix of the host, and the norms of the rows of what is beside it."""
    diagonal = np.real(A.diagonal()).astype(np.float64)
    return diagonal, np.asarray(abs(A) @ np.ones(len(diagonal)), np.float64) - np.abs(diagonal)
