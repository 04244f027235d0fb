"""Spectrum slicing: all eigenpairs between two shifts, collected by shift-invert from shifts inside.

The factors of A - sigma M count the eigenvalues below sigma (inertia). Two counts tell how many eigenvalues
lie in between. A range with many of them is divided at a shift inside, and so is one whose values all lie on
one side of it. A range with c values is solved from its middle: they are the c nearest ones. One more is
asked for, which tells whether the counts are right. Where values are missing, as copies of one, those found
are locked, and others are looked for from next to their median, and in both halves where that finds none.
Pairs of a range are made orthogonal to those of all others. The result is complete if as many are found as
were counted: orthonormal vectors with small residuals cannot be more than there are.

References
----------
Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228 (shifts and counts); Campos, Roman, Numer.
Algorithms 60 (2012) 279 (locking between slices). Deviation: ranges follow from counts, not from a model of
the spectrum.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector
from blockvec.errors import BreakdownError

from ..blocks import Block, RealArray, applied, assign, columns_of, empty_block, padded_width, pick, to_host
from ..factorization.inertia import CLOSE, Cut, Pencil, shift_outside, uncertain
from ..factorization.shifted import MOVES
from ..iterations.base import Run, fingerprint
from ..problem import STOPPED, Problem, Which
from ..result import EigenResult, InfiniteError
from ..runtime.checkpoint import probe
from ..sizes import FEW_RESTARTS
from ..transform.solution import measured_pairs, solve_transformed
from ..transform.standard_form import StandardForm, standard_form
from .combine import COUNTED

# Values that a shift looks for, up to half as many more. More make a basis costly, fewer the factorisations.
PER_SHIFT = 64
FRUITLESS = 3  # shifts in succession that find nothing, after which a run ends
# Empty sides are cut off so many times in succession, if so many values lie on the other one: from a shift
# far from values that crowd at an end, solves lose digits. Without that, three such intervals took 3 to 6
# times as long, and 40 others as long. Many copies lie on one side of every shift.
HALVINGS, MANY = 5, 8
NUDGE = 0.031  # distance of such places, in shares of the range
# Solves lose most digits where an eigenvalue is nearer to the shift than u to this power, in units of ||A||.
NEAREST = 0.75
NARROW = 0.1  # length of a range without room for a shift, in u^(NEAREST - 1) rounding errors of a value


class Slicing(Run):
    """The eigenpairs found so far between the first and the last of a list of cuts; a shift is a restart."""

    PROGRESS = ("theta", "residuals", "limits", "fruitless", "halvings")

    def __init__(
        self, problem: Problem, pencil: Pencil, low: Cut, high: Cut, interrupted: Callable[[], bool]
    ) -> None:
        super().__init__(problem, interrupted)
        self.pencil, self.cuts = pencil, [low, high]
        self.wanted = high.below - low.below
        self.fruitless = 0  # shifts in succession that found nothing
        self.halvings = 0  # cuts in succession with nothing on one side
        like = empty_block(problem.operator)
        self.X: Block = like.like(padded_width(self.wanted, like))
        self.X[:, :] = 0  # products on a GPU are with columns in a few numbers
        self.theta, self.residuals, self.limits = np.zeros(0), np.zeros(0), np.zeros(0)
        self.sizes: dict[str, Any] = {"block_size": None, "ncv": None}  # of the last basis
        self._form: StandardForm | None = None

    @property
    def found(self) -> int:
        """Number of pairs found."""
        return len(self.theta)

    def run(self) -> str:
        """Collect until as many pairs are found as were counted; return that or another reason to stop."""
        if self.problem.checkpoint is not None:
            ends, sizes = [[cut.sigma, cut.below] for cut in self.cuts], self.problem.block_size
            own = fingerprint(self.problem, interval=ends, block_size=sizes)
            self.problem.checkpoint.problem = own
            self.problem.checkpoint.image = probe(self.pencil.A, self.X, None)
            self._resumed()
        if self.wanted and not self.problem.is_late():
            self.cuts[0] = finite_end(self.pencil, self.cuts[0], self.cuts[-1].sigma, "SA")
            self.cuts[-1] = finite_end(self.pencil, self.cuts[-1], self.cuts[0].sigma, "LA")
        while True:
            gap = next((gap for gap in itertools.pairwise(self.cuts) if self._missing(*gap) > 0), None)
            if gap is None:
                return "converged"
            reason = self._stopped() or ("stagnated" if self.fruitless >= FRUITLESS else self._slice(*gap))
            self._save(reason)
            if reason:
                return reason

    def _between(self, left: Cut, right: Cut) -> NDArray[np.intp]:
        return np.flatnonzero((self.theta > left.sigma) & (self.theta < right.sigma))

    def _missing(self, left: Cut, right: Cut) -> int:
        """Count the values between two cuts that have not been found."""
        missing = right.below - left.below - len(self._between(left, right))
        if missing < 0:
            raise BreakdownError(
                f"interval: {right.below - left.below} eigenvalues were counted in a part of it, but more "
                "were found: the pivots of the factorisations are too inaccurate; use method='filter'."
            )
        return missing

    def _slice(self, left: Cut, right: Cut) -> str:
        """Divide a range, or look for the pairs in it from a new shift; return a reason to stop."""
        known, parts = self._between(left, right), max(1, round(self._missing(left, right) / PER_SHIFT))
        sigma, cut = self._placed(left, right, max(1, parts // 2) / max(2, parts))
        if cut is not None:
            sides = self._missing(left, cut), self._missing(cut, right)
            is_far = 0 in sides and sum(sides) >= MANY and self.halvings < HALVINGS and not len(known)
            if is_far or (0 not in sides and parts > 1):
                self.halvings = self.halvings + 1 if is_far else 0
                bisect.insort(self.cuts, cut)
                return ""
        before, self.halvings = self.found, 0
        reason = self._collect(sigma, left, right)
        self.fruitless = 0 if self.found > before else self.fruitless + 1
        if self._missing(left, right) and self.fruitless and cut is not None:
            bisect.insort(self.cuts, cut)
        reason = self._report(*self._all_values(), reason)
        self.counts.restarts += 1
        return reason

    def _placed(self, left: Cut, right: Cut, place: float) -> tuple[float, Cut | None]:
        """Factorise for a shift near a place in a range, or next to it; return the cut there, if any.

        Where values are found, missing ones are copies of these: the shift is next to their median.
        """
        factors, width, known = self.pencil.factors, right.sigma - left.sigma, self._between(left, right)
        room = NARROW * self.problem.tolerance.unit ** (NEAREST - 1) * self.pencil.rounding(right.sigma)
        middle, is_next = left.sigma + place * width, len(known) > 0 and not self.fruitless
        if is_next:
            ends = left.sigma + 2 * NUDGE * width, right.sigma - 2 * NUDGE * width
            middle = float(np.clip(np.median(self.theta[known]), *ends))
        for nudge in range(is_next, MOVES if width >= room else 0):
            sigma = middle + NUDGE * (-1) ** nudge * ((nudge + 1) // 2) * width
            below = self.pencil.count(sigma)
            if below is not None and left.below <= below <= right.below and self._is_comfortable():
                return sigma, Cut(sigma, below)
        for move in range(1, MOVES):  # as near a value with many copies
            sigma = right.sigma + move * (1 + self.fruitless) * room
            factors.refactorize(sigma)
            if self._is_comfortable():
                return sigma, None
        raise uncertain(right.sigma)

    def _is_comfortable(self) -> bool:
        """Check whether no eigenvalue is so near the shift that solves lose most digits."""
        factors = self.pencil.factors
        return not factors.is_singular and factors.nearest > self.problem.tolerance.unit**NEAREST

    def _collect(self, sigma: float, left: Cut, right: Cut) -> str:
        """Add the pairs around a shift that lie between two cuts; return a reason to stop."""
        pencil, known = self.pencil, self._between(left, right)
        missing = min(self._missing(left, right), PER_SHIFT + PER_SHIFT // 2)
        if self._form is None:
            self._form = standard_form(pencil.A, *pencil.matrices, sigma, factors=pencil.factors, k=PER_SHIFT)
        form = self._form = self._form.moved(sigma)
        asked = missing + 1
        asked = padded_width(min(asked, PER_SHIFT) if len(known) else asked, self.X)
        part = replace(
            self.problem,
            k=min(asked, pencil.rank - len(known)),
            which="LM",
            norm=pencil.norms.A,
            locked=pick(self.X, known) if len(known) else None,
            deflated=self.theta[known],
            method="lanczos",
            block_size=min(missing, PER_SHIFT) if len(known) else self.problem.block_size,
            maxiter=FEW_RESTARTS,
            verify="never",
            callback=None,
            checkpoint=None,
        )
        try:
            result = solve_transformed(form, part)
        except (BreakdownError, InfiniteError):  # beyond the missing ones may be penalties and infinite ones
            if part.k <= missing:
                raise
            result = solve_transformed(form, replace(part, k=missing))
        info: Any = result.info
        for name in set(COUNTED) - {"restarts"}:
            setattr(self.counts, name, getattr(self.counts, name) + info[name])
        self.sizes = {name: info[name] for name in self.sizes}
        values = to_host(result.eigenvalues).astype(np.float64)
        is_inside = (result.converged | (self.fruitless > 1)) & (left.sigma < values) & (values < right.sigma)
        # Those outside come last, which others have found, and change none of the others.
        order = np.argsort(~is_inside, kind="stable")
        X: Block = BlockVector(columns_of(result.eigenvectors, order))
        if self.found:
            others = self.X[:, : padded_width(self.found, self.X)]
            for _ in range(2):
                X = others.combine(others.dot(applied(pencil.M, X)), out=X, alpha=-1, beta=1)
        norms = replace(pencil.norms, shift=abs(form.map.sigma or 0.0) * pencil.norms.M)
        pairs = measured_pairs(form, values[order], X.array, self.problem, norms, result)
        self.counts.apply(X.shape[1])
        good = np.flatnonzero(pairs.converged | (self.fruitless > 1))
        self._add(pairs.part(good[good < is_inside.sum()]))
        stopped = result.info["stopped"]
        return stopped if stopped in STOPPED else ""

    def _add(self, pairs: EigenResult) -> None:
        begin, end = self.found, self.found + len(pairs.residuals)
        if end <= self.wanted:  # otherwise counts are wrong, which is found below
            self.X[:, begin:end] = BlockVector(pairs.eigenvectors)
        self.theta = np.append(self.theta, to_host(pairs.eigenvalues))
        self.residuals = np.append(self.residuals, pairs.residuals)
        self.limits = np.append(self.limits, pairs.limits)

    def _all_values(self) -> tuple[RealArray, RealArray, RealArray]:
        """Return values, residuals and limits: values not found are at an end, with the residual ||A||."""
        unknown, norm = np.full(self.wanted - self.found, self.cuts[0].sigma), self.pencil.norms.A
        limits = np.append(self.limits, self.problem.tolerance.limits(unknown, norm))
        residuals = np.append(self.residuals, np.full(len(unknown), norm))
        return np.append(self.theta, unknown), residuals, limits

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {
            "X": to_host(self.X[:, : self.found].array),
            "cuts": [list(cut) for cut in self.cuts],
        }

    def resume(self, saved: dict[str, Any]) -> None:
        super().resume(saved)
        if self.found:
            assign(self.X[:, : self.found], saved["X"])
        self.cuts[:] = [Cut(*cut) for cut in saved["cuts"]]


def finite_end(pencil: Pencil, cut: Cut, other: float, end: Which) -> Cut:
    """Replace an infinite end by a shift beyond all values, zero of a definite matrix.

    `other` is the other end.
    """
    if math.isfinite(cut.sigma):
        return cut
    norm = pencil.norms.A / pencil.norms.M
    spread = np.array([0.0, CLOSE * norm] if end == "SA" else [-CLOSE * norm, 0.0])
    inside = spread + (other if math.isfinite(other) else 0.0)
    sigma = shift_outside(pencil.factors, inside, norm, end, may_be_zero=True, total=pencil.rank)
    if sigma is None:
        raise uncertain(cut.sigma)
    return Cut(sigma, cut.below)
