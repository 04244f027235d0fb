"""Search for eigenvalues that an iteration has missed, by Lanczos recurrences in the complement.

A Krylov space contains at most as many copies of a multiple eigenvalue as its start block has columns;
further copies enter through rounding errors, late or never. Before a result is returned, a recurrence
therefore runs from a random vector z in the complement of the computed vectors, without a basis. Its
coefficients define polynomials p_j, orthonormal for the weights ``|u_i^H z|^2`` of the eigenvectors there. No
measure with the same 2d - 1 moments has more weight at x than 1 / sum_(j<d) p_j(x)^2 (Christoffel). Once that
is less than a random vector has along any direction but with a small probability, there is no eigenvalue at
x; and none beyond x, where the polynomials are larger still. If there is one, a Ritz value moves beyond x
instead: p_j(x) changes its sign, and the recurrence runs again to form the vector of that value. No bounds of
the spectrum are needed.

References
----------
Szegő, Orthogonal Polynomials (1939), theorem 3.41.1; Kuczynski, Wozniakowski, SIAM J. Matrix Anal. Appl. 13
(1992) 1094 (random starts).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy.linalg

from blockvec import Profile

from ..blocks import (
    Block,
    Operator,
    RealArray,
    column_factors,
    padded_width,
    project_out,
    side_by_side,
    small_matrix,
    to_host,
)
from ..costs import SMALL_BYTES
from ..orthogonalization import orthogonalize
from ..problem import SAME_VALUE, Counts, Verification, Which, ranking_key
from ..small_matrices import clusters, ritz_pairs
from .spectrum import GROUP, Recurrences, noise, recurrences

MIN_SEARCH = 200  # steps that are always allowed
UNLUCKY = 1e-4  # probability that a random unit vector has a component below UNLUCKY / sqrt(n)
LEAST_STEPS = {"host": GROUP, "gpu": 2 * GROUP}  # before the first look: shifts need 6 to 8 steps
# Ratio of the steps at successive looks at the polynomials, and of those that form the vector of a missed
# value to those that showed it; with 1.25 for either, 80 problems take as long.
FURTHER = 1.1
# Budgets of a search after which it is undecided, and times that copies of the last value are projected out.
MOST_BUDGETS = 4


class Search:
    """Search for eigenvalues in the complement of computed vectors.

    Once it has run, `verification` and `text` are its outcome, and `missed` holds orthonormal vectors,
    orthogonal to those found, with wanted Ritz values, or None.

    Parameters
    ----------
    operator : Operator
        With locked columns restricted to their complement.
    X, theta : Block, shape (n, k), and array, shape (k,)
        The computed eigenpairs, orthonormal, the most wanted first.
    which : {"LA", "SA", "LM"}
    limits : array, shape (k,)
        By how much another value must be more wanted to displace one.
    locked : Block or None
    copies : int
        Copies of every value that have converged together; 0 where values may be left out.
    budget : int
        Steps after which doubtful values are taken for copies of the last one; a few times as many leave the
        search undecided.
    """

    def __init__(
        self,
        operator: Operator,
        X: Block,
        theta: RealArray,
        which: Which,
        limits: RealArray,
        locked: Block | None,
        copies: int,
        budget: int = MIN_SEARCH,
    ) -> None:
        self.operator, self.X, self.which, self.locked = operator, X, which, locked
        self.copies, self.budget, self.counts = copies, budget, Counts()
        keys, widths = ranking_key(theta, which), SAME_VALUE * limits
        # Ranking key that another value must exceed to displace the last wanted one, the difference up to
        # which it may be a copy of that, and the key of the first one.
        self.last, self.same, self.leading = float(keys[-1] + limits[-1]), float(widths[-1]), float(keys[0])
        # Smallest ranking key of the values that can have more copies than were computed, or None: the Krylov
        # space of b random columns contains min(b, multiplicity) copies of every eigenvalue, with probability
        # one, and they converge together. Only an eigenvalue of which b copies or more were computed can have
        # further ones. Further copies of the last wanted value do not change the result.
        least = [
            float((keys - widths)[begin:end].min())
            for begin, end in clusters(keys, widths)
            if end - begin >= copies and keys[begin] > self.last
        ]
        self.doubtful = self.last if copies == 0 else max(min(least), self.last) if least else None
        self.value = self.last if self.doubtful is None else self.doubtful  # from which on it looks
        self.deflations = 0  # times that copies of the last value have been projected out
        self.missed: Block | None = None
        self.verification, self.text = Verification.UNDECIDED, ""

    @Profile.timed("verification")
    def run(self, width: int, rng: Any, stop: Callable[[], object]) -> Self:
        """Take steps until it is decided whether there are eigenvalues from `value` on.

        `width` is the number of random vectors, and thus of missed copies that can be found; a true value of
        `stop()` aborts the search.
        """
        n = self.operator.shape[0] - self.X.shape[1] - (0 if self.locked is None else self.locked.shape[1])
        self.least, self.most = n / UNLUCKY**2, MOST_BUDGETS * self.budget
        self.deflated = _filled_up(self.X)
        self.start = self.X.random_like(max(1, min(width, n)), rng)
        while not self.text:
            self._look(stop)
        return self

    def _look(self, stop: Callable[[], object]) -> None:
        """Run recurrences in the complement of what is found, until they decide, or it has grown."""
        run, value = self._begun(), self.value
        look = LEAST_STEPS["host" if self.operator.device == "cpu" else "gpu"]
        ends, deflations = self._ends(value), self.deflations
        while not self.text and self.deflations == deflations:
            run.extend(look)
            least = self._follow(ends, run)
            is_resolved = all(end.is_resolved for end in ends)
            is_exceeded = is_resolved or any(end.is_exceeded for end in ends)
            if stop():
                self.text = "cut short"
            elif is_exceeded and self._first(run) > max(self.last, value - least):
                self._form_missed(run)
            elif self._excludes(ends, value, run):
                self._pass(value)
            elif is_resolved or run.steps >= self.most:
                self._give_up(run)
            elif run.steps >= self.budget:  # a value between the last one and `value` keeps polynomials small
                if self._first(run) > self.last:
                    self._form_missed(run)
                elif self.deflations < MOST_BUDGETS:
                    self._deflate_copies(run)
            look = min(max(math.ceil(FURTHER * run.steps), run.steps + 1), self.most)
        self._count(run)

    def _begun(self) -> Recurrences:
        return recurrences(self.operator, self.start.copy(), (self.locked, self.deflated))

    def _ends(self, value: float) -> list[_End]:
        """Return the polynomials at the points that a value has in the spectrum, of every vector."""
        which, columns = self.which, range(self.start.shape[1])
        signs = (1.0, -1.0) if which == "LM" else (-1.0 if which == "SA" else 1.0,)
        return [_End(sign * value, sign, column, self.least) for sign in signs for column in columns]

    def _follow(self, ends: list[_End], run: Recurrences) -> float:
        """Take the steps of a run at points of the spectrum; return the size of rounding errors there."""
        alphas, betas = run.coefficients()
        least = noise(alphas, betas, self.start.dtype)
        for end in ends:
            end.extend(alphas, betas, least)
        return least

    def _excludes(self, ends: list[_End], value: float, run: Recurrences) -> bool:
        """Check that all ends exclude a value; the remainder that ends a recurrence hides near ones."""
        if not all(end.is_resolved for end in ends):
            return False
        rest = max(end.remainder for end in ends)
        return rest == 0 or self._first(run) + rest < value

    def _first(self, run: Recurrences) -> float:
        """Compute the largest ranking key of a Ritz value."""
        theta = [scipy.linalg.eigvalsh_tridiagonal(*T) for T in run.projected()]
        return float(ranking_key(np.concatenate(theta), self.which).max())

    def _pass(self, value: float) -> None:
        self.verification = Verification.SEARCHED
        self.text = "passed: a random vector in the complement has no component beyond what was found"
        if value > self.last:
            sign = -1 if self.which == "SA" else 1
            self.text += f" (looked for values from {sign * value:.6g} on)"

    def _give_up(self, run: Recurrences) -> None:
        """Exclude further copies of the first doubtful value at least, or leave the search undecided."""
        doubtful = self.leading if self.doubtful is None else self.doubtful
        ends = self._ends(doubtful)
        self._follow(ends, run)
        if doubtful > self.value and self._excludes(ends, doubtful, run):
            self._pass(doubtful)
        else:
            self.text = f"undecided after {run.steps} steps: a cluster surrounds the last value"

    def _form_missed(self, run: Recurrences) -> None:
        """Take some more steps, and form the vectors of missed values."""
        run.extend(math.ceil(FURTHER * run.steps))
        missed = self.missed = self._vectors_beyond(run, self.last)
        self.text = "undecided: a value vanished" if missed is None else f"found {missed.shape[1]} more"

    def _deflate_copies(self, run: Recurrences) -> None:
        """Project out further copies of the last wanted value, near which polynomials hardly grow."""
        near = self.last - self.same
        copies = self._vectors_beyond(run, near) if self._first(run) > near else None
        if copies is None:
            return
        R = project_out(self.locked, self.operator.apply(copies.copy()))
        theta = to_host(copies.column_dot(R)).real.astype(np.float64)
        R.axpy(column_factors(-theta, R), copies)
        self.counts.apply(copies.shape[1])
        if (to_host(R.norms()) <= self.same).all():
            self.deflations += 1
            self.deflated = side_by_side(self.deflated, copies)

    def _vectors_beyond(self, run: Recurrences, key: float) -> Block | None:
        """Form the Ritz vectors with keys beyond one, by the same steps again; None if there are none."""
        parts = []
        for T in run.projected():
            theta, S = scipy.linalg.eigh_tridiagonal(*T)
            parts.append(np.pad(S, ((0, run.steps - len(S)), (0, 0))))
            parts[-1] = parts[-1][:, ranking_key(theta, self.which) > key]
        if not any(part.size for part in parts):
            return None
        C, end = np.zeros((run.steps, len(parts), sum(part.shape[1] for part in parts))), 0
        for column, part in enumerate(parts):
            begin, end = end, end + part.shape[1]
            C[:, column, begin:end] = part
        again = self._begun()
        Z = again.combined(C)
        self._count(again)
        # Some of them may be the same, and more than there is room for.
        taken = self.deflated.shape[1]
        result = orthogonalize(Z, self.deflated, first=[(0, taken)], max_rank=max(Z.n_global - taken, 0))
        Z = Z[:, : Z.shape[1] - int(result.lost.sum())]
        AZ = project_out(self.locked, self.operator.apply(Z.copy()))
        self.counts.apply(Z.shape[1])
        self.counts.reductions += result.reductions + 1
        is_squared = self.which == "LM"  # two signs mix
        values, Y = ritz_pairs(to_host(AZ.gram() if is_squared else Z.dot(AZ)))
        keys = np.sqrt(np.abs(values)) if is_squared else ranking_key(values, self.which)
        Y = Y[:, keys > key]
        return Z.combine(small_matrix(Y, Z)) if Y.shape[1] else None

    def _count(self, run: Recurrences) -> None:
        self.counts.apply(self.start.shape[1], run.steps)
        self.counts.reductions += 3 * run.steps


class _End:
    """The polynomials p_j of one vector at a point of the spectrum, and the sum of their squares."""

    def __init__(self, point: float, sign: float, column: int, least: float) -> None:
        self.point, self.sign, self.column, self.least = point, sign, column, least
        self.steps = 0
        self._now, self._before, self._sum, self._beta = 1.0, 0.0, 1.0, 0.0
        self.is_exceeded = False  # whether a Ritz value lies beyond the point
        self.is_resolved = False  # whether there is no eigenvalue there, unless it is exceeded
        self.remainder = 0.0  # that the recurrence ended with

    def extend(self, alphas: RealArray, betas: RealArray, noise: float) -> None:
        """Take the steps of their recurrence whose coefficients are new."""
        part = slice(self.steps, None), self.column
        for alpha, beta in zip(alphas[part].tolist(), betas[part].tolist(), strict=True):
            if self.is_resolved:
                return
            self.steps += 1
            if not beta > noise:  # the space of the vector is invariant but for this
                self.is_resolved, self.remainder = True, beta
                return
            following = ((self.point - alpha) * self._now - self._beta * self._before) / beta
            self.is_exceeded = self.is_exceeded or following * self._now * self.sign <= 0
            self._now, self._before, self._beta = following, self._now, beta
            self._sum += following * following
            self.is_resolved = self._sum > self.least


def _filled_up(X: Block) -> Block:
    """Return the vectors found, with zeros to a width that other blocks have if there is memory."""
    count, width = X.shape[1], padded_width(X.shape[1], X)
    if width == count or X.shape[0] * width * X.dtype.itemsize > SMALL_BYTES:
        return X
    # Kernels of found vectors expect the columns of a wider block.
    filled = X.like(padded_width(width + 1, X))[:, :width]
    filled[:, :count] = X
    filled[:, count:] = 0
    return filled
