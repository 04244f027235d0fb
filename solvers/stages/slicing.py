"""Spectrum slicing: all eigenpairs between two shifts, collected by shift-invert from shifts inside.

The factors of A - sigma M count the eigenvalues below sigma (inertia). Two counts tell how many
eigenvalues lie in between; a shift in between finds those around it by block Lanczos on (A - sigma M)^-1
M, and its own count tells on which side others are missing. The next shift lies in the middle of what no
shift has reached, or, where many values are missing there, so far from its end as a share of them
reaches. If all of many are on one side of it, that side is halved first. Every value that was found between
two shifts is locked, so that none is found twice, and the slices are orthogonal to each other. The result is
complete if as many are found as were counted: orthonormal vectors with small residuals cannot be more than
there are.

References
----------
Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228 (shifts and counts); Campos, Roman, Numer.
Algorithms 60 (2012) 279 (locking between slices). Deviations: shifts follow from counts, not from a model of
the spectrum; a shift ends with its basis, without restarts, and returns whatever has converged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from blockvec import BlockVector
from blockvec.errors import BreakdownError

from ..blocks import Block, RealArray, assign, ceil_div, column_factors, pick, round_up, small_matrix, to_host
from ..factorization.inertia import Cut, Pencil, uncertain
from ..iterations.base import Run, fingerprint
from ..iterations.krylov import BlockKrylov
from ..orthogonalization.factors import gram_root
from ..problem import IterationState, Problem
from ..runtime.checkpoint import probe
from ..transform.spectral_map import SpectralMap, TransformedTolerance, pair_limits

PER_SHIFT = 64  # values that one shift looks for: more make the basis costly, fewer the factorisations
COLUMNS = 2.5  # columns of a basis per value looked for, where there are more than that
LAST_COLUMNS = 4.0  # the same where all are wanted: values at the edge of the others converge last
SPARE_BLOCKS = 8  # blocks of a basis beyond these columns
FIRST_LOOK = 1.5  # columns per wanted value at the first Rayleigh-Ritz step
LOOKS = 1.15  # ratio of the columns at further ones
MAX_RESTARTS = 30  # restarts of a basis in which nothing has converged
FRUITLESS = 3  # shifts in succession that find nothing, after which a run ends
# Largest residuals of pairs that are kept; the whole limit after a shift that found nothing; after two, all
# are kept. Errors of those kept add up in others, which are orthogonal to them.
KEPT = 0.5  # of the limit
PLACE = 0.4877  # place of a shift in a range: not the middle, where symmetric spectra have values
# Solves lose most digits where an eigenvalue is nearer to the shift than u to this power, in units of ||A||.
NEAREST = 0.75
NARROW = 0.1  # length of a range without room for a shift, in u^(NEAREST - 1) rounding errors of a value
CLEAR = 1e-6  # share of a range next to its cuts where Ritz values are not compared with counts
GROUP = 32  # vectors that are orthonormalised together on a GPU, at most
MANY = 8  # missing values that rarely are all on one side of a shift amid them
HALVINGS = 12  # of a range with an empty side in succession: many copies are on one side of every shift
NUDGES = 6  # places that are tried for a shift whose factors do not count
NUDGE = 0.031  # distance of such places, in shares of the range


class Slicing(Run):
    """The eigenpairs found so far between the first and the last of a list of cuts; a shift is a restart."""

    PROGRESS = ("theta", "residuals", "limits", "fruitless", "halvings")

    def __init__(
        self, problem: Problem, pencil: Pencil, low: Cut, high: Cut, interrupted: Callable[[], bool]
    ) -> None:
        super().__init__(problem, interrupted)
        self.pencil = pencil
        self.block_size = problem.block_size or (4 if problem.operator.device == "cpu" else 8)
        self.wanted = high.below - low.below
        self._unit = float(np.finfo(pencil.A.dtype).eps) / 2
        self.cuts = [low, high]
        self.fruitless = 0  # shifts in succession that found nothing
        self.halvings = 0  # cuts in succession from which nothing was looked for
        like = BlockVector.empty(problem.n, 0, problem.operator.dtype, device=problem.operator.device)
        # On a GPU kernels belong to widths: only whole groups of vectors are taken, the last one with zeros.
        self._group = 1 if problem.operator.device == "cpu" else GROUP
        self.X: Block = like.like(round_up(self.wanted, self._group))
        if self._group > 1:
            self.X[:, :] = 0
        self.theta, self.residuals, self.limits = np.zeros(0), np.zeros(0), np.zeros(0)

    @property
    def found(self) -> int:
        """Number of pairs found."""
        return len(self.theta)

    def run(self) -> str:
        """Collect until as many pairs are found as were counted; return that or another reason to stop."""
        if self.problem.checkpoint is not None:
            ends = [[cut.sigma, cut.below] for cut in self.cuts]
            self.problem.checkpoint.problem = fingerprint(
                self.problem, interval=ends, block_size=self.block_size
            )
            self.problem.checkpoint.image = probe(self.pencil.A, self.X, None)
            self._resumed()
        while True:
            gap = next((gap for gap in itertools.pairwise(self.cuts) if self._missing(*gap) > 0), None)
            if gap is None:
                return "converged"
            reason = self._stopped() or ("stagnated" if self.fruitless >= FRUITLESS else self._slice(*gap))
            self._save(reason)
            if reason:
                return reason

    def _between(self, low: float, high: float) -> int:
        return int(((self.theta > low) & (self.theta < high)).sum())

    def _missing(self, left: Cut, right: Cut) -> int:
        """Count the values between two cuts that have not been found."""
        return right.below - left.below - self._between(left.sigma, right.sigma)

    def _slice(self, left: Cut, right: Cut) -> str:
        """Look for pairs between two cuts from a new shift, or halve their range; return a reason to stop."""
        sigma, cut = self._placed(left, right)
        if cut is not None and self.halvings < HALVINGS and self._has_empty_side(left, cut, right):
            self._insert(cut)
            self.halvings += 1
            return ""
        before, self.halvings = self.found, 0
        reason, reach = self._collect(sigma, left, right)
        if reason:
            return reason
        if cut is not None:
            self._insert(replace(cut, first=sigma - reach, last=sigma + reach))
        self.fruitless = 0 if self.found > before else self.fruitless + 1
        for gap in itertools.pairwise(self.cuts):
            self._compare_count(*gap)
        reason = self._report(self._all_values(), "")
        self.counts.restarts += 1
        return reason

    def _insert(self, cut: Cut) -> None:
        """Insert a cut in order, in place of the one at the same shift if there is one."""
        others = [each for each in self.cuts if each.sigma != cut.sigma]
        self.cuts[:] = sorted([*others, cut], key=lambda each: each.sigma)

    def _compare_count(self, left: Cut, right: Cut, ritz_values: RealArray | None = None) -> None:
        """Refuse to go on if more values were found between two cuts than were counted.

        There are at least as many eigenvalues as Ritz values (Cauchy), converged or not.
        """
        found = self._between(left.sigma, right.sigma)
        if ritz_values is not None:
            width = right.sigma - left.sigma
            margin = CLEAR * width if math.isfinite(width) else 0.0
            found += int(((ritz_values > left.sigma + margin) & (ritz_values < right.sigma - margin)).sum())
        if found > right.below - left.below:
            raise _contradiction(found, right.below - left.below)

    def _placed(self, left: Cut, right: Cut) -> tuple[float, Cut | None]:
        """Choose a shift and factorise for it; return the cut, if any, that has what the shift reaches."""
        first, last = left.last, right.first
        if last - first < self._least_room(first):  # all of it was reached, and values were missed
            first, last = left.sigma, right.sigma
        if math.isinf(first) and math.isinf(last):
            return self._tried(self._centre(), self.pencil.norms.A / self.pencil.norms.M, left, right)
        if math.isinf(first) or math.isinf(last):
            cut, side = (right, -1) if math.isinf(first) else (left, 1)
            reach = side * ((right.first if side < 0 else left.last) - cut.sigma)
            if reach <= 0:  # nothing inside: what was reached ends at a shift outside
                return self._outside(cut, -side), cut
            return self._tried(cut.sigma + 2 * side * reach, reach, left, right)
        if last - first < self._least_room(first):
            return self._outside(right, 1), None
        width = (last - first) / (1 if self.halvings else ceil_div(self._missing(left, right), PER_SHIFT))
        return self._tried(first + PLACE * width, width, left, right)

    def _has_empty_side(self, left: Cut, cut: Cut, right: Cut) -> bool:
        """Check whether no values are missing on one side of a new cut, of many.

        All are then on the other side, and as a rule far away, where another cut is: it takes a factorisation
        to halve that range, and many steps to find values from here.
        """
        is_new = cut.sigma not in (left.sigma, right.sigma) and math.isfinite(right.sigma - left.sigma)
        if not is_new or right.first - left.last < 2 * self._least_room(cut.sigma):
            return False
        sides = self._missing(left, cut), self._missing(cut, right)
        return sum(sides) >= MANY and 0 in sides

    def _outside(self, cut: Cut, side: int) -> float:
        """Choose a shift next to a cut, outside of the range, and factorise for it."""
        for move in range(1, NUDGES):
            sigma = cut.sigma + side * move * (1 + self.fruitless) * self._least_room(cut.sigma)
            self.pencil.factors.refactorize(sigma)
            if self._is_comfortable():
                return sigma
        raise uncertain(cut.sigma)

    def _tried(self, sigma: float, width: float, left: Cut, right: Cut) -> tuple[float, Cut | None]:
        """Factorise for a shift, moved a little in the range of this width where its factors do not count.

        Where none counts between two finite cuts, as near a value with many copies, one next to a cut serves,
        whose factors did count.
        """
        for nudge in range(NUDGES):
            moved = sigma + NUDGE * width * (-1) ** nudge * ((nudge + 1) // 2)
            if left.sigma < moved < right.sigma:
                below = self.pencil.count(moved)
                if below is not None and left.below <= below <= right.below and self._is_comfortable():
                    return moved, Cut(moved, below, moved, moved)
        if math.isinf(right.sigma - left.sigma):
            raise uncertain(sigma)
        return self._outside(right, 1), None

    def _least_room(self, value: float) -> float:
        """Compute the least length of a range near a value in which a shift is placed."""
        return float(NARROW * self._unit ** (NEAREST - 1)) * self.pencil.rounding(value)

    def _is_comfortable(self) -> bool:
        """Check whether no eigenvalue is so near the shift that solves lose most digits."""
        factors = self.pencil.factors
        return not factors.is_singular and factors.nearest > self._unit**NEAREST

    def _centre(self) -> float:
        """Compute the Rayleigh quotient of a random vector, which lies inside the spectrum."""
        x = self.X.random_like(1, self.problem.rng)
        quotients = [to_host(x.column_dot(Y)).real[0] for Y in (self.pencil.A.apply(x), self.pencil.mass(x))]
        self.counts.apply(1)
        return float(quotients[0] / quotients[1])

    def _collect(self, sigma: float, left: Cut, right: Cut) -> tuple[str, float]:
        """Add pairs around a shift, between two cuts; return a reason to stop, and how far all were found."""
        krylov = self._basis(sigma, left, right)
        asked, norms = self.problem.tolerance, self.pencil.norms
        limits = asked.tol, asked.convergence, asked.unit, asked.rounding
        shifted = replace(norms, shift=abs(sigma) * norms.M)
        tolerance = TransformedTolerance(*limits, SpectralMap(sigma), shifted)
        wanted = min(self._missing(left, right), PER_SHIFT)
        look = int(FIRST_LOOK * wanted)
        for _ in range(MAX_RESTARTS):
            while krylov.can_expand():
                krylov.expand()
                if reason := self._stopped():
                    return reason, 0.0
                if krylov.m >= look and krylov.can_expand():
                    look = int(LOOKS * krylov.m)
                    if len(self._converged(krylov, tolerance, left, right)[0]) >= wanted:
                        break
            inside, unseen = self._converged(krylov, tolerance, left, right)
            if len(inside) or krylov.complete:
                break
            ritz = krylov.ritz()
            order = np.argsort(-np.abs(ritz.theta), kind="stable")
            krylov.restart(ritz, order[: krylov.capacity // 2])
        values = tolerance.map.values(krylov.ritz().theta)
        self._compare_count(left, right, values)
        for part in self._parts(inside):
            unseen = min(unseen, self._accept(krylov, tolerance, part))
        if krylov.complete and math.isinf(unseen):
            return "", max(right.sigma - sigma, sigma - left.sigma)
        # Copies of the first value that is missing may have been found: what is reached ends before these, so
        # that the range of the next shift has them inside.
        distances = np.abs(values - sigma)
        nearer = distances < unseen - 2 * self._least_room(sigma)
        return "", float(distances[nearer].max(initial=0.0))

    def _basis(self, sigma: float, left: Cut, right: Cut) -> BlockKrylov:
        """Begin a basis for pairs around a shift, orthogonal to those found between two cuts.

        After a shift that found nothing it is to all as near as the cuts: these would fill the basis again.
        """
        b, pencil, rng = self.block_size, self.pencil, self.problem.rng
        first, last = left.sigma, right.sigma
        if self.fruitless:
            furthest = max(last - sigma, sigma - first)
            first, last = sigma - furthest, sigma + furthest
        locked = np.flatnonzero((self.theta > first) & (self.theta < last))
        room = pencil.rank - len(locked)
        capacity = min(basis_columns(self._missing(left, right), b), room)
        width = len(locked)
        if room - capacity >= 2 * b:  # whole blocks, filled up with zeros: few widths need kernels
            width, capacity = (round_up(columns, b) for columns in (width, capacity))
        buffer = self.X.like(width + capacity)
        if len(locked):
            buffer[:, : len(locked)] = pick(self.X, locked)
            buffer[:, len(locked) : width] = 0
        b = min(b, capacity)
        krylov = BlockKrylov(pencil, buffer, width, b, rng, self.counts, M=pencil.M, rank=pencil.rank)
        # One application removes components in the null space of a semidefinite M.
        krylov.append(pencil.apply(self.X.random_like(b, rng)), keep_random=True)
        self.counts.apply(b)
        return krylov

    def _parts(self, chosen: np.ndarray) -> list[np.ndarray]:
        """Split indices of Ritz pairs, on a GPU into parts of few different widths, powers of two."""
        count = len(chosen)
        if self._group == 1 or not count:
            return [chosen][:count]
        powers = (1 << bit for bit in reversed(range(GROUP.bit_length() - 1)))
        widths = [GROUP] * (count // GROUP) + [width for width in powers if count & width]
        return np.split(chosen, np.cumsum(widths[:-1]))

    def _converged(
        self, krylov: BlockKrylov, tolerance: TransformedTolerance, left: Cut, right: Cut
    ) -> tuple[np.ndarray, float]:
        """Return the indices of converged Ritz pairs between two cuts, and the first distance of others.

        It is infinite if all have converged.
        """
        ritz = krylov.ritz()
        values = tolerance.map.values(ritz.theta)
        has_converged = ritz.residuals <= tolerance.limits(ritz.theta, krylov.norm)
        distances = np.abs(values - (tolerance.map.sigma or 0.0))
        inside = np.flatnonzero(has_converged & (values > left.sigma) & (values < right.sigma))
        unseen = float(distances[~has_converged].min(initial=np.inf))
        return inside[np.argsort(distances[inside], kind="stable")], unseen

    def _accept(self, krylov: BlockKrylov, tolerance: TransformedTolerance, chosen: np.ndarray) -> float:
        """Add Ritz pairs to those found, orthonormal to all of them.

        The component in the pending columns is that of one more step of inverse iteration. Pairs that
        rounding errors keep from their limits, as where another value is very near the shift, are left to
        other shifts, unless these failed as well. Returns the distance of the first one.
        """
        pencil, ritz = self.pencil, krylov.ritz()
        theta = ritz.theta[chosen]
        C = np.vstack([ritz.Y[:, chosen], ritz.B[:, chosen] / theta])
        used = krylov.columns(0, krylov.m + krylov.w)
        X = used.combine(small_matrix(C, used))
        values, sigma = tolerance.map.values(theta), tolerance.map.sigma or 0.0
        for inverse in (False, True):  # by a solve where errors of solves near the shift mixed the vectors
            X = self._orthonormal(pencil.apply(X) if inverse else X)
            MX, R = pencil.mass(X), pencil.A.apply(X)
            self.counts.apply(X.shape[1], 1 + inverse)
            R.axpy(column_factors(-values, X), MX)
            residuals, lengths, masses = (to_host(B.norms()).astype(np.float64) for B in (R, X, MX))
            limits = pair_limits(self.problem.tolerance, values, tolerance.norms, lengths, masses)
            is_good = (residuals <= (1 if self.fruitless else KEPT) * limits) | (self.fruitless > 1)
            if is_good.all():
                break
        good = np.flatnonzero(is_good)
        begin, end = self.found, self.found + len(good)
        if end > self.wanted:
            raise _contradiction(end, self.wanted)
        self.X[:, begin:end] = pick(X, good)
        self.theta, self.residuals, self.limits = (
            np.append(old, new[good])
            for old, new in ((self.theta, values), (self.residuals, residuals), (self.limits, limits))
        )
        left_out = np.delete(np.abs(values - sigma), good)
        return float(left_out.min(initial=np.inf))

    def _orthonormal(self, X: Block) -> Block:
        """Orthonormalise columns against the vectors found and among each other, with few changes of each."""
        known = self.X[:, : round_up(self.found, self._group)]
        for _ in range(2):
            MX = self.pencil.mass(X)
            if self.found:
                X = known.combine(known.dot(MX), out=X, alpha=-1, beta=1)
                MX = self.pencil.mass(X)
            G = to_host(X.dot(MX))
            _, inverse = gram_root(G)
            X = X.combine(small_matrix(inverse, X))
            self.counts.reductions += 2
        return X

    def _all_values(self) -> IterationState:
        """Describe the state: values that have not been found are at an end, with the residual ||A||."""
        end = next((cut.sigma for cut in self.cuts if math.isfinite(cut.sigma)), 0.0)
        unknown, norm = np.full(self.wanted - self.found, end), self.pencil.norms.A
        limits = np.append(self.limits, self.problem.tolerance.limits(unknown, norm))
        residuals = np.append(self.residuals, np.full(len(unknown), norm))
        return self._state(np.append(self.theta, unknown), residuals, limits)

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {
            "X": to_host(self.X[:, : self.found].array),
            "cuts": [list(asdict(cut).values()) for cut in self.cuts],
        }

    def resume(self, saved: dict[str, Any]) -> None:
        super().resume(saved)
        if self.found:
            assign(self.X[:, : self.found], saved["X"])
        self.cuts[:] = [Cut(*cut) for cut in saved["cuts"]]


def basis_columns(missing: int, block_size: int = 8) -> int:
    """Choose the size of a basis, where so many values are missing."""
    columns = COLUMNS * PER_SHIFT if missing > PER_SHIFT else LAST_COLUMNS * missing
    return int(columns) + SPARE_BLOCKS * block_size


def _contradiction(found: int, counted: int) -> BreakdownError:
    return BreakdownError(
        f"interval: {counted} eigenvalues were counted in a part of it, but {found} were found: the pivots "
        "of the factorisations are too inaccurate; use method='filter'."
    )
