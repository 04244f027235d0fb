"""Values around a shift that is an eigenvalue, or very near to one: that one first, then the others.

Of an eigenvalue at a distance of 1e-10 from sigma, theta = 1 / (lambda - sigma) is 1e10. Rounding errors of
that size hide the digits of the others, but its vectors converge in a few steps. They are projected out of
the operator then, in whose range the others have the digits that a shift further away would leave them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blockvec import BlockVector, Operator, as_operator

from ..blocks import Array, to_host
from ..combine import concatenated, one_after_other
from ..drivers import solve
from ..problem import Problem
from ..result import EigenResult
from .standard_form import StandardForm

NEAR = 1e-6  # distance of an eigenvalue from sigma, relative to ||A - sigma M||: closer ones are deflated
FEW, MORE = 4, 4  # pairs that are computed first, and times as many while all of them are at the shift


def solve_around(form: StandardForm, inside: Problem) -> EigenResult:
    """Solve a problem in its standard form, without the eigenvalues at the shift once these are known.

    They are computed a few at a time, in the complement of those before, until others are among them.
    """
    if not _has_values_at_the_shift(form, inside):
        return solve(inside)
    at_shift: list[EigenResult] = []
    done, near, rest, asked, least = None, None, inside, FEW, 0.0
    while True:
        asked, is_last = min(asked, rest.k), asked >= rest.k
        part = solve(rest if is_last else replace(rest, k=asked, callback=None, verify="never"))
        part = done = part if done is None else one_after_other(done, part)
        stopped, theta = part.info["stopped"], np.abs(to_host(part.eigenvalues))
        if near is None and form.factors is not None:
            least = max(least, float(theta.max()) * form.factors.nearest / NEAR)
        # As accurate as A and M ask for, whatever the norm of the operator is.
        limits = inside.tolerance.limits(to_host(part.eigenvalues).astype(np.float64), 0.0)
        is_near = (part.residuals <= limits) & (theta > least) & (stopped == "converged")
        found = int(is_near.sum())
        is_over = stopped == "interrupted" or (stopped == "costly" and inside.may_be_dense)
        if is_over or (is_last and found in (0, asked)):
            if near is None:
                return part
            joined = concatenated([*at_shift, part], part.with_info(k=inside.k))
            vectors = np.ascontiguousarray(np.concatenate([near, part.eigenvectors], axis=1))
            return replace(joined, eigenvectors=vectors)  # those at the shift as they were projected out
        asked = asked * MORE if found == asked else inside.k
        if found:
            at_shift.append(part.part(np.flatnonzero(is_near)))
            # One more step of inverse iteration: errors of their vectors would be amplified as they are.
            Y = rest.operator.apply(BlockVector(at_shift[-1].eigenvectors)).array
            near = np.linalg.qr(Y if near is None else np.concatenate([near, Y], axis=1))[0]
            rest = replace(inside, operator=_without(form.operator, near), k=inside.k - near.shape[1])


def _has_values_at_the_shift(form: StandardForm, inside: Problem) -> bool:
    """Check whether an eigenvalue is near enough to the shift to spoil others that are wanted."""
    if form.factors is None or form.factors.nearest > NEAR or form.A.device != "cpu":
        return False
    is_free = inside.start is None and inside.locked is None and inside.checkpoint is None
    is_usual = inside.which == "LM" and inside.blocks is BlockVector and not inside.asks_for_corrections
    return is_free and is_usual and inside.k > 1 and inside.method in ("auto", "lanczos")


def _without(operator: Operator, Y: Array) -> Operator:
    """Project orthonormal columns out of an operator, whose other eigenpairs stay as they are."""
    adjoint = Y.conj().T

    def apply(X: Array) -> Array:
        X = np.asfortranarray(X - Y @ (adjoint @ X))
        Z = np.empty_like(X)
        operator.apply_columns(X, Z)
        Z -= Y @ (adjoint @ Z)
        return Z

    return as_operator(apply, shape=operator.shape, dtype=operator.dtype, order="A")
