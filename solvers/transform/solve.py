"""Solving a problem in its standard form: to fewer digits at first, because coming back adds some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import array_namespace
from blockvec.errors import BreakdownError, ShapeError

from ..arguments import positive, preconditioner_for, tall_block, tolerance_for
from ..blocks import to_host
from ..combine import continued, totals
from ..linear.preconditioners import following
from ..problem import Options, solve_standard
from ..result import EigenResult
from .standard_form import StandardForm, restored

__all__ = ["solve_transformed"]

DIGITS = 0.7  # share of the digits asked of a transformed problem at first
SHARE = 0.1  # of a tolerance, where the transformation changes the norm of residuals
DOMINANT = 30.0  # times the least wanted magnitude, from which on one drowns the digits of that
POLISHING = 20  # restarts to get the last digits where those were not enough


def solve_transformed(form: StandardForm, k: int, options: Options) -> EigenResult:
    """Solve the standard problem that a generalised or shifted one has become, and come back.

    Parameters
    ----------
    form : StandardForm
    k : int
    options : Options
        For the user's problem.
    """
    A = form.A
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"A is {A.shape[0]} x {A.shape[1]}; eigenvalues need a square matrix.")
    if options.check_hermitian:
        A.check_hermitian(0)
    tolerance = tolerance_for(options.tol, options.convergence, A)
    norm = None if options.norm is None else positive("norm", options.norm)
    inside = _inside(form, options, float(tolerance.unit**DIGITS))
    try:
        inner = solve_standard(form.operator, k, inside)
        result = restored(form, inner, tolerance, norm)
        if not result.converged.all() and inner.info["stopped"] == "converged":
            again = restored(form, _polished(form, inner, inside), tolerance, norm)
            result = again if again.converged.sum() >= result.converged.sum() else result
    except BreakdownError as error:
        raise BreakdownError(f"A, M, or a solve with A - sigma M (OPinv): {error}") from error
    return result


def _inside(form: StandardForm, options: Options, tol: float) -> Options:
    """Return the options for the standard form."""
    blocks = {name: getattr(options, name) for name in ("v0", "orthogonal_to")}
    given: dict[str, Any] = {
        name: None if block is None else form.into(tall_block(name, block, form.A).array)
        for name, block in blocks.items()
    }
    if options.corrects and options.tol:
        given["tol"] = SHARE * options.tol
    else:  # the last solve, which takes the vectors back, is a step of inverse iteration more
        given |= {"tol": tol, "convergence": "value"}
    if options.preconditioner is not None:
        apply = preconditioner_for(options.preconditioner, form.A)
        given["preconditioner"] = following(form.preconditioner(apply), options.preconditioner)
    return replace(options, **given, norm=None, check_hermitian=False)


def _polished(form: StandardForm, inner: EigenResult, options: Options) -> EigenResult:
    """Go on from a result, in the complement of pairs so near to the shift that they drown the others."""
    saved = options.checkpoint
    options = replace(
        options,
        tol=0,
        verify="never",
        v0=inner.eigenvectors,
        maxiter=options.maxiter if options.corrects else POLISHING,
        checkpoint=None if saved is None else saved.stage("polished"),
    )
    k, theta = len(inner.eigenvalues), np.abs(to_host(inner.eigenvalues))
    near = np.flatnonzero(theta > DOMINANT * theta.min())
    if len(near) == 0 or options.corrects:
        return solve_standard(form.operator, k, options)
    xp = array_namespace(inner.eigenvectors)
    Y, W = (inner.eigenvectors[:, xp.asarray(part)] for part in (near, np.setdiff1d(np.arange(k), near)))
    locked = [Y] if options.orthogonal_to is None else [Y, options.orthogonal_to]
    norm = float(np.delete(theta, near).max())  # of the solves there, which lose nothing to what is locked
    options = replace(options, v0=xp.ascontiguousarray(W), orthogonal_to=xp.hstack(locked), norm=norm)
    rest = solve_standard(form.operator, k - len(near), options)
    return replace(
        rest,
        eigenvalues=xp.concatenate([inner.eigenvalues[xp.asarray(near)], rest.eigenvalues]),
        eigenvectors=xp.hstack([Y, rest.eigenvectors]),
        info=inner.info | totals(inner, rest) | {"stopped": rest.info["stopped"]},
        history=continued(inner, rest),
    )
