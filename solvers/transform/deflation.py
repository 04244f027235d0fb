"""Values around a shift that is an eigenvalue, or very near to one: that one first, then the others.

Of an eigenvalue at a distance of 1e-10 from sigma, theta = 1 / (lambda - sigma) is 1e10. Rounding errors of
that size hide the digits of the others, but its vectors converge in a few steps. They are projected out of
the operator then, in whose range the others have the digits that a shift further away would leave them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector, Operator, as_operator

from ..blocks import Array, columns_of, to_host
from ..combine import continued, totals
from ..drivers import solve
from ..problem import Problem
from ..result import EigenResult
from .standard_form import StandardForm

NEAR = 1e-6  # distance of an eigenvalue from sigma, relative to ||A - sigma M||: closer ones are deflated
FEW = 4  # pairs that are computed first


def solve_around(form: StandardForm, inside: Problem) -> EigenResult:
    """Solve a problem in its standard form, without the eigenvalues at the shift once these are known.

    Where these are as many as the first pairs, or more, they have copies for all that are wanted, or there
    are too many to be projected out: all are computed together.
    """
    if not _has_values_at_the_shift(form, inside):
        return solve(inside)
    first = solve(replace(inside, k=FEW, callback=None))
    stopped, done = first.info["stopped"], np.flatnonzero(is_exact(first, inside))
    if stopped == "interrupted" or (stopped == "costly" and inside.may_be_dense):
        return first
    if stopped != "converged" or not 0 < len(done) < FEW:
        rest = solve(inside)
        return rest.with_info(**totals(first, rest), history=continued(first, rest))
    # One more step of inverse iteration: errors of their vectors would be amplified as they are.
    Y = form.operator.apply(BlockVector(columns_of(first.eigenvectors, done)))
    near = np.linalg.qr(Y.array)[0]
    rest = solve(replace(inside, operator=_without(form.operator, near), k=inside.k - len(done)))
    theta, residuals, limits = (
        np.concatenate([to_host(values)[done], to_host(others)])
        for values, others in (
            (first.eigenvalues, rest.eigenvalues),
            (first.residuals, rest.residuals),
            (first.limits, rest.limits),
        )
    )
    info: Any = rest.info | totals(first, rest) | {"k": inside.k}
    vectors = np.concatenate([near, rest.eigenvectors], axis=1)
    pairs = theta, vectors, residuals, limits
    return EigenResult.from_pairs(*pairs, rest.verification, info, continued(first, rest))


def is_exact(result: EigenResult, inside: Problem) -> NDArray[np.bool_]:
    """Find the pairs that are as accurate as A and M ask for, whatever the norm of the operator is."""
    limits = inside.tolerance.limits(to_host(result.eigenvalues).astype(np.float64), 0.0)
    exact: NDArray[np.bool_] = result.residuals <= limits
    return exact


def _has_values_at_the_shift(form: StandardForm, inside: Problem) -> bool:
    """Check whether an eigenvalue is near enough to the shift to spoil others that are wanted."""
    if form.factors is None or form.factors.nearest > NEAR or form.A.device != "cpu":
        return False
    is_free = inside.start is None and inside.locked is None and inside.checkpoint is None
    is_usual = inside.which == "LM" and inside.blocks is BlockVector and not inside.asks_for_corrections
    return is_free and is_usual and inside.k > FEW and inside.method in ("auto", "lanczos")


def _without(operator: Operator, Y: Array) -> Operator:
    """Project orthonormal columns out of an operator, whose other eigenpairs stay as they are."""
    adjoint = Y.conj().T

    def apply(X: Array) -> Array:
        X = np.asfortranarray(X - Y @ (adjoint @ X))
        Z = np.zeros_like(X)
        operator.add_product(X, Z)
        Z -= Y @ (adjoint @ Z)
        return Z

    return as_operator(apply, shape=operator.shape, dtype=operator.dtype, order="A")
