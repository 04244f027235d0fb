"""Values around a shift that is an eigenvalue, or very near to one: that one first, then the others.

Of an eigenvalue at a distance of 1e-10 from sigma, theta = 1 / (lambda - sigma) is 1e10. Rounding errors of
that size hide the digits of the others, but its vectors converge in a few steps. They are projected out of
the operator then, in whose range the others have the digits that a shift further away would leave them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector, Operator

from ..blocks import Array, Block, applied, column_factors, needs_threads, side_by_side, to_host
from ..problem import Problem, staged
from ..result import EigenResult
from ..sizes import WIDTH
from ..stages.combine import concatenated, one_after_other
from ..stages.run import solve
from .inner_product import orthonormal
from .spectral_map import TransformedTolerance
from .standard_form import StandardForm, operator_on

NEAR = 1e-6  # distance from sigma, relative to ||A|| / ||M|| + abs(sigma): closer values are deflated
APART = 100.0  # ratio of their transforms to those of others, below which they do no harm
SLACK = 10.0  # times its limit: a residual within the reach of errors of solves


def solve_around(form: StandardForm, inside: Problem) -> EigenResult:
    """Solve a problem in its standard form, without the eigenvalues at the shift once these are known.

    They are computed a few at a time, in the complement of those before, until others are among them.
    """
    factors = None if form.inverse is None else form.inverse.factors
    is_alone = inside.k == 1 and inside.which == "LM"  # which no other one spoils
    is_usual = inside.method in ("auto", "lanczos") and not inside.asks_for_corrections
    if factors is None or factors.nearest > NEAR or is_alone or not is_usual:
        return solve(inside)
    are_nearest, at_shift, done = inside.which == "LM", list[EigenResult](), None
    near: Block | None = None
    rest, room, asked, has_others, turn = inside, inside.n - inside.n_locked, WIDTH, False, 0
    looks: dict[str, Any] = {"which": "LM", "start": None, "callback": None, "verify": "never", "ncv": None}
    while True:
        is_last = has_others or asked >= (rest.k if are_nearest else room)
        turn += 1
        part = solve(staged(rest if is_last else replace(rest, k=asked, **looks), f"around{turn}"))
        part = done = part if done is None else one_after_other(done, part)
        is_near, has_others = _at_the_shift(form, part, inside)
        found, stopped = int(is_near.sum()), part.info["stopped"]
        is_over = stopped == "interrupted" or (stopped == "costly" and inside.may_be_dense)
        if is_over or (is_last and (found == 0 or not are_nearest)):
            part = part.with_info(k=inside.k)  # a look for values at the shift asks for few
            if near is None:
                return part
            vectors = side_by_side(near, BlockVector(part.eigenvectors)).array  # as they were projected out
            return replace(concatenated([*at_shift, part], part), eigenvectors=vectors)
        asked *= WIDTH  # while all of them are at the shift
        if found:
            at_shift.append(part.part(np.flatnonzero(is_near)))
            # One more step of inverse iteration: errors of their vectors would be amplified as they are.
            Y = BlockVector(rest.operator.apply(rest.blocks(at_shift[-1].eigenvectors)).array)
            Y.scale(column_factors(1 / to_host(Y.norms()), Y))
            near = orthonormal(side_by_side(near, Y), getattr(form.blocks, "inner", None))
            room = inside.n - inside.n_locked - near.shape[1]
            k = inside.k - near.shape[1] if are_nearest else min(inside.k, room)
            rest = replace(inside, operator=_without(form, near), k=k)


def _at_the_shift(form: StandardForm, part: EigenResult, inside: Problem) -> tuple[NDArray[np.bool_], bool]:
    """Find the values of a part that are at the shift, beside others; check whether there are others.

    They are as accurate as A and M ask for, whatever the norm of the operator is.
    """
    tolerance, theta = inside.tolerance, to_host(part.eigenvalues).astype(np.float64)
    assert isinstance(tolerance, TransformedTolerance)
    norms, sigma = tolerance.norms, cast(float, form.map.sigma)
    is_close = np.abs(form.map.values(theta) - sigma) <= NEAR * (norms.A / norms.M + abs(sigma))
    is_near = is_close & (np.abs(theta) > APART * np.abs(theta).min())
    is_settled = part.residuals <= SLACK * tolerance.limits(theta, 0.0)
    is_near &= is_settled & (part.info["stopped"] == "converged")
    return is_near, bool(is_near.any() or not is_close.all())


def _without(form: StandardForm, Y: Block) -> Operator:
    """Project vectors out of an operator that are orthonormal in its inner product: other pairs stay.

    Locked columns would have the digits of others hidden in a dense matrix of the operator, and in its norm.
    """
    metric = getattr(form.blocks, "inner", None)
    operator, image = cast(Any, form.operator), applied(metric, Y)

    def apply(X: Array) -> Array:
        B = form.blocks(X, copy=True)
        Z = operator.apply(Y.combine(image.dot(B), out=B, alpha=-1, beta=1))
        Y.combine(image.dot(Z), out=Z, alpha=-1, beta=1)
        projected: Array = Z.array
        return projected

    projected_out = operator_on(apply, Y.shape[0], operator.dtype, form.A, form.blocks)
    projected_out.needs_threads = needs_threads(operator)
    return cast(Operator, projected_out)
