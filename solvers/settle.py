"""The end of a call: whether a result may be returned, and what is said about it."""

from __future__ import annotations

import warnings

import numpy as np

from .problem import Stop, Verification, Verify, excess
from .result import ConvergenceWarning, EigenResult, Interrupted, NoConvergence, counted, not_symmetric

# What ended a solve before all pairs had converged, and the remedy, by `info["stopped"]`.
CAUSES: dict[Stop, str] = {
    "maxiter": "after {restarts}: raise maxiter or ncv, or loosen tol",
    "time_limit": "in {time_s:.3g} s: raise time_limit",
    "callback": "when the callback stopped the iteration",
    "costly": "in {operator_columns} applications of A to a column, which took far longer than dense LAPACK "
    "does: use method='auto' or 'dense', or give maxiter",
    "stagnated": "before the residuals ceased to fall: raise ncv or block_size, give a preconditioner, or "
    "loosen tol",
    "inexact": "by an OPinv that is not accurate enough, whose solves cannot be refined, as `why` of the "
    "result tells: solve with smaller residuals, or loosen tol",
    "converged": "to their limit in working precision: loosen tol",
}
# How to decide whether copies are missing, by what ended the solve before it was; otherwise as below.
LIMITS: dict[Stop, str] = {
    "maxiter": "raise maxiter",
    "time_limit": "raise time_limit",
    "callback": "let the callback stop later",
    "costly": "use method='auto' or 'dense', or without an interval give maxiter",
}
DECIDE = "give method='dense', sigma or an interval, whose factors count eigenvalues, or another k"


def is_complete(result: EigenResult, verify: Verify) -> bool:
    """Check that all pairs have converged and, unless nobody asks for that, that no copy may be missing."""
    has_converged = int(result.converged.sum()) == result.info["k"] and not result.info["missing"]
    return has_converged and (verify == "never" or result.verification.is_decided)


def settle(result: EigenResult, verify: Verify, on_unconverged: str, transformed: str = "LM") -> None:
    """Raise or warn if a result must not, or not silently, be returned as the answer of a call.

    An interrupted solve always raises `Interrupted`, with the pairs that it has. Pairs that have not
    converged and copies that are known to be missing follow `on_unconverged`. Copies that may be missing are
    warned of, also with ``on_unconverged="return"``, since no flag of a pair tells of them; with
    ``verify="always"`` they are refused as pairs that have not converged are. `transformed` is the selection
    of transformed values, "LM" without a shift.
    """
    info, count = result.info, int(result.converged.sum())
    if info["stopped"] == "interrupted":
        message = f"interrupted: {count} of {info['k']} pairs had converged; see the exception's result."
        raise Interrupted(message, result)
    if is_complete(result, verify):
        return
    if message := doubt(result, verify):
        is_refused = verify == "always" and on_unconverged == "raise"
    else:
        message, is_refused = _unconverged(result, count, transformed), on_unconverged == "raise"
        if on_unconverged == "return":
            return
    if is_refused:
        raise NoConvergence(message, result)
    warnings.warn(message, ConvergenceWarning, stacklevel=4)


def doubt(result: EigenResult, verify: Verify) -> str:
    """Say that copies may be missing although all pairs converged, and how to decide it; or nothing."""
    info = result.info
    if is_complete(result, verify) or not is_complete(result, "never"):
        return ""
    is_skipped = result.verification is Verification.SKIPPED
    return (
        f"All {info['k']} pairs converged, but copies of multiple eigenvalues may be missing: the search for "
        f"them was {'skipped' if is_skipped else 'not decided'} ({info['verification']}). To decide it, "
        f"{LIMITS.get(info['stopped'], DECIDE)}; verify='never' does without."
    )


def _unconverged(result: EigenResult, count: int, transformed: str) -> str:
    info = result.info
    cause = CAUSES[info["stopped"]].format(**info | {"restarts": counted(info["restarts"], "restart")})
    if info["stopped"] in ("converged", "stagnated") and "asymmetry" in info:
        cause = f"to their limit: {not_symmetric(info['asymmetry'])}"
    worst = float(np.max(excess(result.residuals, result.limits), initial=0.0))
    message = (
        f"{count} of {info['k']} pairs converged {cause} (largest residual {worst:.2g} times its limit)."
    )
    if count == info["k"]:  # others are wanted more
        message = f"All {count} pairs converged."
    if info["missing"]:
        copies = "1 copy of a wanted value is" if info["missing"] == 1 else f"{info['missing']} copies are"
        message += f" At least {copies} known to be missing."
    if count == info["k"]:
        message += f" To find what is missing, {LIMITS.get(info['stopped'], DECIDE)}."
    if transformed != "LM":
        message += (
            f" With sigma, which={transformed!r} selects transformed eigenvalues, 1 / (lambda - sigma) in "
            "mode 'normal'; the values nearest to sigma are which='LM'."
        )
    return message
