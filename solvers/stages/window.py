"""Interior eigenvalues by a polynomial filter, without a factorisation.

The eigenvalues of A nearest to sigma are the lowest of (A - sigma I)^2. A Chebyshev polynomial of degree d of
that square is a polynomial of degree 2 d of A, large in a window around sigma and small on both sides; it is
optimal for a window in the middle of the spectrum. The filtered iteration therefore computes them as an end
of a spectrum, including the checks of its bounds and the search for missed copies.

A Rayleigh-Ritz step with A on the computed vectors repairs two losses of squaring. Eigenvalues at equal
distances on both sides of sigma become copies of one: for a mixture x of their vectors, the missing partner
is in (A - sigma I) x. And a residual r of the square is one of about r/delta in A, for the distance delta of
the furthest wanted value: the tolerance of the square is set accordingly, and rounding keeps residuals of A
above about 100 u ||A||^2 / delta.

References
----------
Wang, Zunger, J. Chem. Phys. 100 (1994) 2394 (folding); Pieper et al., J. Comput. Phys. 325 (2016) 226
(windows by filters). Deviation: no window is given; the number of wanted pairs determines it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from blockvec import BlockVector
from blockvec.system.frozen import frozen

from ..blocks import Block, RealArray, pick, round_up, side_by_side, to_host
from ..iterations.chebyshev import SEPARATED, FoldedOperator
from ..orthogonalization import orthogonalize
from ..problem import IterationOptions, Problem, Tolerance, staged
from ..result import EigenResult
from ..runtime.processes import delivered
from ..transform.spectral_map import SpectralMap, norm_of
from .combine import one_after_other, ritz_pairs_of

SPARE = 2  # pairs beyond the wanted ones: the last ones converge slowest
SHARE = 0.3  # limit on residuals of the square, in those that the estimate allows, and factor per round
ROUNDS = 3  # solves for the square, at most


@frozen
class SquaredTolerance(Tolerance):
    """Limits on residuals of (A - sigma I)^2 for which those of A count as converged."""

    sigma: float = 0.0
    share: float = SHARE  # of the residual that the estimate allows
    norm: float = 0.0  # ||A||

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        distance = np.sqrt(np.abs(theta))
        nearest = np.abs(abs(self.sigma) - distance)  # lower bound of abs(lambda)
        wanted = Tolerance.limits(self, nearest, self.norm)
        limits: RealArray = np.maximum(
            self.share * wanted * distance.max(initial=0.0), self.floor(theta, norm)
        )
        return limits


def solve_window(
    problem: Problem, options: IterationOptions, solve: Callable[[Problem, IterationOptions], EigenResult]
) -> EigenResult:
    """Compute the k eigenpairs nearest to ``problem.target``, as the lower end of the square by `solve`.

    Callbacks and the history see eigenvalues and residuals of (A - sigma I)^2.
    """
    assert problem.target is not None
    room, b, asked = problem.n - problem.n_locked, options.block_size, problem.tolerance
    limits = asked.tol, asked.convergence, asked.unit, asked.rounding
    # The norm of the square is far off where sigma is in the middle of the spectrum.
    norm = norm_of(problem.operator) if problem.norm is None else problem.norm
    tolerance = SquaredTolerance(*limits, problem.target, norm=norm)
    folded = replace(
        problem,
        operator=FoldedOperator(problem.operator, problem.target, problem.locked),
        which="SA",
        target=None,
        norm=None,
        exponent=2 * problem.exponent,
    )
    extra, result = SPARE, None
    for turn in range(ROUNDS):
        k = min(problem.k + extra, room)
        part = replace(staged(folded, f"window {turn}"), k=k, tolerance=tolerance)
        ncv = min(round_up(max(options.ncv, k + b) + extra, b), room)  # whole blocks, as elsewhere
        square = solve(part, replace(options, ncv=ncv, degree=max(2, options.degree // 2)))
        found = _unfolded(problem, square, norm)
        if result is not None:
            searched = {name: result.info[name] for name in ("verification", "missing")}
            found = replace(found, verification=result.verification)
            found = one_after_other(result, found, problem.which, SpectralMap(problem.target), **searched)
        result = found
        if result.converged.all() or square.info["stopped"] != "converged":
            break
        extra += b  # rounding hurts less where the furthest value is not at sigma
        tolerance = replace(tolerance, share=SHARE * tolerance.share)
        folded = replace(folded, start=BlockVector(square.eigenvectors), verify="never")
    assert result is not None
    return result


def _unfolded(problem: Problem, square: EigenResult, norm: float) -> EigenResult:
    """Turn eigenpairs of the square into the k pairs of A nearest to sigma, ascending."""
    assert problem.target is not None
    sigma, costs, asked = problem.target, square.info, problem.tolerance
    X: Block = problem.blocks(square.eigenvectors)
    told = square.with_info(
        k=problem.k,
        which="LM",
        sigma=sigma,
        norm=norm,
        tol=asked.tol,
        convergence=asked.convergence,
        # Each application of the square is two of A.
        operator_columns=2 * costs["operator_columns"],
        block_applications=2 * costs["block_applications"],
        degree=2 * costs["degree"],
    )

    def distances(found: EigenResult) -> RealArray:
        # ||(A - sigma I) x||: a mixture of values on both sides is no nearer than they are.
        return np.hypot(to_host(found.eigenvalues).astype(np.float64) - sigma, found.residuals)

    found, R = ritz_pairs_of(problem, X, told)
    known = side_by_side(X, problem.locked)
    failed = found.residuals > np.maximum(SEPARATED * distances(found), found.limits)
    mixed = np.flatnonzero(failed)[: problem.n - known.shape[1]]
    if len(mixed):
        partners = pick(R, mixed)
        orthogonalize(partners, known)
        X = side_by_side(X, partners)
        found = ritz_pairs_of(problem, X, found)[0]
    found = found.part(np.sort(np.argsort(distances(found), kind="stable")[: problem.k]))
    return replace(found, eigenvectors=delivered(found.eigenvectors, problem.operator.layout))
