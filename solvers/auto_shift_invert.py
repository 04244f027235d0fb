"""Ends of a spectrum that an iteration does not reach soon: shift-invert from just outside, and a proof.

At the stiff lower end of a stiffness matrix wanted values are a millionth of ||A|| apart. Where the entries
of the matrix are at hand and a few factorisations take seconds, an iteration only has to say about where the
end is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator

from .blocks import RealArray, to_host
from .combine import both_ends, continued, staged, time_left, totals, within_time
from .drivers import Request, solve_iteratively
from .factorization.inertia import proof, shift_outside
from .iterations.rayleigh_ritz import Selection
from .problem import Options, solve
from .result import EigenResult
from .transform.solve import solve_transformed
from .transform.standard_form import StandardForm, standard_form

__all__ = ["is_factorable", "solve_or_factorise", "solve_pair"]

FACTOR_ROWS = 20_000  # up to here a few sparse factorisations take seconds, whatever their fill
FACTOR_ENTRIES = 2_000_000
# Restarts after which it has not converged soon; those of a filter take many applications, and are few.
SOON = {"lanczos": 40, "filter": 10}
SOON_SHIFTED = 10  # restarts of shift-invert that tell of a better shift
SHIFTS = 4


@dataclass(frozen=True)
class _End:
    """One end of the spectrum of an explicit matrix or pair on the host.

    Attributes
    ----------
    matrix, mass : sparse matrix, shape (n, n)
        `mass` is None for the identity.
    which : {"SA", "LA"}
    k : int
    options : Options
    deflated : array, shape (c,)
        Eigenvalues of the columns that `options.orthogonal_to` holds.
    """

    matrix: Any
    mass: Any
    which: Selection
    k: int
    options: Options
    deflated: RealArray = field(default_factory=lambda: np.zeros(0))


def is_factorable(A: Operator, which: str) -> bool:
    """Whether a factorisation of A - sigma M takes seconds, and serves what is asked for."""
    n = A.shape[0]
    small = n <= FACTOR_ROWS and getattr(A, "nnz", n * n) <= FACTOR_ENTRIES
    return A.device == "cpu" and small and which in ("SA", "LA")


def solve_or_factorise(request: Request, matrix: Any) -> EigenResult:
    """Iterate; where that does not converge soon, go on by shift-invert from just outside the spectrum.

    Parameters
    ----------
    request : Request
    matrix : sparse matrix or dense array, shape (n, n)
        What `request.operator` applies.
    """
    if request.method not in ("dense", "jd") and request.which == "BE":
        return both_ends(request, lambda end: solve_or_factorise(end, matrix))
    invariant = request.locked is None or len(request.deflated) > 0
    if request.method in ("dense", "jd") or not (
        invariant and is_factorable(request.operator, request.which)
    ):
        return solve(request)
    first = solve_iteratively(replace(staged(request, "begun"), maxiter=SOON[request.method]))
    if first.info["stopped"] != "maxiter":
        return first
    rest = within_time(staged(request, "factorised"))
    options = Options(
        which="LM",
        rng=rest.rng,
        begin_s=rest.begin_s,
        tol=rest.tolerance.tol,
        convergence=rest.tolerance.convergence,
        norm=rest.norm,
        callback=rest.callback,
        time_limit=rest.time_limit,
        verify=rest.verify,
        orthogonal_to=rest.locked,
        checkpoint=rest.checkpoint,
        check_hermitian=False,
    )
    explicit = sp.csc_array(matrix).astype(request.operator.dtype)
    result = _by_shift_invert(first, _End(explicit, None, rest.which, rest.k, options, rest.deflated))
    if result is None:
        request = replace(request, start=BlockVector(first.eigenvectors))
        result = solve_iteratively(within_time(staged(request, "continued")))
    return result


def solve_pair(form: StandardForm, A: Any, M: Any, k: int, options: Options) -> EigenResult:
    """Do the same for a pair: iterate on its standard form, then go on by shift-invert.

    Parameters
    ----------
    form : StandardForm
        Without a shift.
    A, M : sparse matrices or dense arrays, shape (n, n)
    k : int
    options : Options
    """

    def part(name: str, **changes: Any) -> Options:
        saved = options.checkpoint
        return replace(
            options,
            time_limit=time_left(options.time_limit, options.begin_s),
            checkpoint=None if saved is None else saved.stage(name),
            **changes,
        )

    first = solve_transformed(form, k, part("begun", maxiter=SOON["lanczos"]))
    if first.converged.all() or first.info["stopped"] not in ("maxiter", "converged"):
        return first
    A, M = (sp.csc_array(matrix).astype(form.operator.dtype) for matrix in (A, M))
    again = part("factorised", which="LM", method="lanczos", check_hermitian=False)
    result = _by_shift_invert(first, _End(A, M, options.which, k, again))
    if result is None:
        result = solve_transformed(form, k, part("continued", v0=first.eigenvectors))
    return result


def _by_shift_invert(first: EigenResult, end: _End) -> EigenResult | None:
    """Go on from a first result by shift-invert; None where no shift outside the spectrum is found.

    The first result may be far off, and the shift with it. What soon comes out tells of a better one.
    """
    result, why = first, ""
    saved, begin_s = end.options.checkpoint, end.options.begin_s
    for attempt in range(SHIFTS):
        theta = to_host(result.eigenvalues).astype(np.float64)
        scale = first.info["norm"] if end.mass is None else first.info["norm"] / float(abs(end.mass).max())
        sigma = shift_outside(end.matrix, theta, scale, end.which, end.mass)
        if sigma is None:
            return None if attempt == 0 else result
        form = standard_form(end.matrix, end.mass, sigma, None, "normal", None)
        options = replace(
            end.options,
            method="lanczos",
            v0=result.eigenvectors,
            ncv=None,
            block_size=None,
            maxiter=SOON_SHIFTED if attempt < SHIFTS - 1 else None,
            time_limit=time_left(end.options.time_limit, begin_s),
            checkpoint=None if saved is None else saved.stage(f"shift{attempt + 1}"),
        )
        latest = solve_transformed(form, end.k, options)
        info = latest.info | totals(result, latest)
        result, why = replace(latest, info=info, history=continued(result, latest)), form.why
        if latest.info["stopped"] != "maxiter":
            break
    values = to_host(result.eigenvalues)
    text, missing = proof(end.matrix, values, result.limits, end.which, end.deflated, end.mass)
    before = f"{first.info['method']} had not converged after {first.info['restarts']} restarts"
    info = {
        "method": "shift-invert",
        "why": f"{before}; {why}",
        "which": end.which,
        "verification": text,
        "missing": missing,
        "time_s": time.perf_counter() - begin_s,
    }
    return replace(result, info=result.info | info)
