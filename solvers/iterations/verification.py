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
from typing import Any

import numpy as np
import scipy.linalg

from blockvec import Profile
from blockvec.system.frozen import frozen

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
from ..orthogonalization import orthogonalize
from ..problem import Counts, Verification
from .chebyshev import recorder_for
from .rayleigh_ritz import SAME_VALUE, Which, ranking_key, ritz_pairs
from .spectrum import GROUP, Recurrences, noise, recurrences

UNLUCKY = 1e-4  # probability that a random unit vector has a component below UNLUCKY / sqrt(n)
LEAST_STEPS = 12  # that show a value, as far as the following ratio is concerned
FURTHER = 1.25  # ratio of the steps that form the vector of a missed value to those that showed it
BETWEEN_LOOKS = 1.1  # ratio of the steps at successive looks at the polynomials
MOST_BUDGETS = 4  # budgets of a search, after which it is undecided
MOST_DEFLATIONS = 4  # times that copies of the last value are projected out, before a search is undecided
FILLED_BYTES = 1 << 28  # of a copy of found vectors that fills their number up for the kernels of a GPU


@frozen
class Found:
    """Computed eigenpairs of an iteration, the most wanted first.

    With locked columns the operator is restricted to their complement.
    """

    X: Block  # orthonormal, shape (n, k)
    theta: RealArray  # shape (k,)
    which: Which
    limits: RealArray  # by how much another value must be more wanted to displace one, shape (k,)
    locked: Block | None
    block_size: int  # copies of every value that have converged together; 0 where values may be left out

    @property
    def last(self) -> float:
        """Ranking key that another value must exceed to displace the last wanted one."""
        return float(ranking_key(self.theta[-1], self.which) + self.limits[-1])

    @property
    def doubtful(self) -> float | None:
        """Smallest ranking key of the values that can have further copies; None without such values."""
        if self.block_size == 0:
            return self.last
        return least_doubtful(self.theta, self.limits, self.which, self.block_size)


@frozen
class Verdict:
    """Outcome of a search."""

    missed: Block | None  # orthonormal vectors, orthogonal to X, with wanted Ritz values
    counts: Counts
    verification: Verification
    text: str  # outcome in words


def least_doubtful(theta: RealArray, limits: RealArray, which: Which, block_size: int) -> float | None:
    """Return the smallest ranking key of the values that can have more copies than were computed, or None.

    The Krylov space of b random columns contains min(b, multiplicity) copies of every eigenvalue, with
    probability one, and they converge together. Only an eigenvalue of which b copies or more were computed
    can have further ones. Further copies of the last wanted value do not change the result. Values, the
    wanted first, that differ by a few `limits`, those of `Found`, may be copies.

    Examples
    --------
    >>> import numpy as np
    >>> theta = np.array([3.0, 2.0, 2.0, 1.0])
    >>> [least_doubtful(theta, np.full(4, 1e-3), "LA", b) for b in (2, 3)]
    [1.99, None]
    """
    # Lists, because k is small and NumPy's calls take longer.
    values, widths = ranking_key(theta, which).tolist(), (SAME_VALUE * limits).tolist()
    if not values:
        return None
    last, least, begin = values[-1] + float(limits[-1]), math.inf, 0
    for end in range(1, len(values) + 1):
        if end < len(values) and abs(values[end] - values[end - 1]) <= max(widths[end - 1 : end + 1]):
            continue
        if end - begin >= block_size and values[begin] > last:
            least = min(least, *(values[j] - widths[j] for j in range(begin, end)))
        begin = end
    return max(least, last) if least < math.inf else None


class Search:
    """Search for eigenvalues in the complement of computed vectors.

    It looks for ranking keys from `value` on, ``found.last`` at least. `width` is the number of random
    vectors, and thus of missed copies that can be found. A search takes a few times the steps of its budget
    before it remains undecided; a true value of ``stop()`` aborts it.
    """

    def __init__(
        self,
        operator: Operator,
        found: Found,
        value: float,
        width: int,
        budget: int,
        rng: Any,
        stop: Callable[[], object],
    ) -> None:
        self.operator, self.found, self.stop, self.counts = operator, found, stop, Counts()
        self.value = value
        n = operator.shape[0] - found.X.shape[1] - (0 if found.locked is None else found.locked.shape[1])
        self.least, self.budget, self.most = n / UNLUCKY**2, budget, MOST_BUDGETS * budget
        self.deflations = 0  # times that copies of the last value have been projected out
        self.deflated = _filled_up(found.X)
        self.start = found.X.random_like(max(1, min(width, n)), rng)

    @Profile.timed("verification")
    def run(self) -> Verdict:
        """Take steps until it is decided whether there are eigenvalues from `value` on."""
        run = self._begun()
        ends = self._ends(self.value)
        look = GROUP if self.start.device != "cpu" else 1  # a look waits for a device
        while True:
            run.extend(look)
            if self.stop():
                return self._verdict(None, Verification.UNDECIDED, "cut short", run)
            least = self._follow(ends, run)
            is_resolved = all(end.is_resolved for end in ends)
            if is_resolved or any(end.is_exceeded for end in ends):
                if self._keys(run).max() > max(self.found.last, self.value - least):
                    return self._missed(run)
                if self._exclude(ends, self.value, run):
                    return self._passed(self.value, run)
            if is_resolved or run.steps >= self.most:
                return self._undecided(run)
            if run.steps >= self.budget:  # a value between the last one and `value` keeps polynomials small
                if self._keys(run).max() > self.found.last:
                    return self._missed(run)
                if self.deflations < MOST_DEFLATIONS and self._deflates_copies(run):
                    return self.run()
            look = min(max(math.ceil(BETWEEN_LOOKS * run.steps), run.steps + 1), self.most)

    def _begun(self) -> Recurrences:
        recorder = recorder_for(self.operator, self.start)
        return recurrences(self.operator, self.start.copy(), (self.found.locked, self.deflated), recorder)

    def _ends(self, value: float) -> list[_End]:
        """Return the polynomials at the points that a value has in the spectrum, of every vector."""
        which, columns = self.found.which, range(self.start.shape[1])
        signs = (1.0, -1.0) if which == "LM" else (-1.0 if which == "SA" else 1.0,)
        return [_End(sign * value, sign, column, self.least) for sign in signs for column in columns]

    def _follow(self, ends: list[_End], run: Recurrences) -> float:
        """Take the steps of a run at points of the spectrum; return the size of rounding errors there."""
        alphas, betas = run.coefficients()
        least = noise(alphas, betas, self.start.dtype)
        for end in ends:
            end.extend(alphas, betas, least)
        return least

    def _exclude(self, ends: list[_End], value: float, run: Recurrences) -> bool:
        """Check that the ends of a value exclude it; the remainder that ends a recurrence hides near ones."""
        if not all(end.is_resolved for end in ends):
            return False
        rest = max(end.remainder for end in ends)
        return rest == 0 or bool(self._keys(run).max() + rest < value)

    def _keys(self, run: Recurrences) -> RealArray:
        """Compute the ranking keys of all Ritz values."""
        theta = [scipy.linalg.eigvalsh_tridiagonal(*T) for T in run.projected()]
        keys: RealArray = ranking_key(np.concatenate(theta), self.found.which)
        return keys

    def _passed(self, value: float, run: Recurrences) -> Verdict:
        text = "passed: a random vector in the complement has no component beyond what was found"
        if value > self.found.last:
            sign = -1 if self.found.which == "SA" else 1
            text += f" (looked for values from {sign * value:.6g} on)"
        return self._verdict(None, Verification.SEARCHED, text, run)

    def _undecided(self, run: Recurrences) -> Verdict:
        found = self.found
        first = float(ranking_key(found.theta[0], found.which))
        doubtful = first if found.doubtful is None else found.doubtful
        if doubtful > self.value:
            ends = self._ends(doubtful)
            self._follow(ends, run)
            if self._exclude(ends, doubtful, run):
                return self._passed(doubtful, run)
        text = f"undecided after {run.steps} steps: a cluster surrounds the last value"
        return self._verdict(None, Verification.UNDECIDED, text, run)

    def _missed(self, run: Recurrences) -> Verdict:
        """Take some more steps, and form the vectors of missed values."""
        run.extend(math.ceil(FURTHER * max(run.steps, LEAST_STEPS)))
        missed = self._vectors_beyond(run, self.found.last)
        if missed is not None:
            return self._verdict(missed, Verification.UNDECIDED, f"found {missed.shape[1]} more", run)
        return self._verdict(None, Verification.UNDECIDED, "undecided: a value vanished", run)

    def _deflates_copies(self, run: Recurrences) -> bool:
        """Project out further copies of the last wanted value, near which polynomials hardly grow."""
        width = SAME_VALUE * float(self.found.limits[-1])
        near = self.found.last - width
        copies = self._vectors_beyond(run, near) if self._keys(run).max() > near else None
        if copies is None:
            return False
        R = project_out(self.found.locked, self.operator.apply(copies.copy()))
        theta = to_host(copies.column_dot(R)).real.astype(np.float64)
        R.axpy(column_factors(-theta, R), copies)
        self.counts.apply(copies.shape[1])
        if not (to_host(R.norms()) <= width).all():
            return False
        self._count(run)
        self.deflations += 1
        self.deflated = side_by_side(self.deflated, copies)
        return True

    def _vectors_beyond(self, run: Recurrences, key: float) -> Block | None:
        """Form the Ritz vectors with keys beyond one, by the same steps again; None if there are none."""
        parts = []
        for T in run.projected():
            theta, S = scipy.linalg.eigh_tridiagonal(*T)
            parts.append(np.pad(S, ((0, run.steps - len(S)), (0, 0))))
            parts[-1] = parts[-1][:, ranking_key(theta, self.found.which) > key]
        if not any(part.size for part in parts):
            return None
        coefficients = [scipy.linalg.block_diag(*(part[[j]] for part in parts)) for j in range(run.steps)]
        again = self._begun()
        Z = again.combined(np.array(coefficients))
        self._count(again)
        # Some of them may be the same.
        result = orthogonalize(Z, self.deflated, first=[(0, self.deflated.shape[1])])
        Z = Z[:, : Z.shape[1] - int(result.lost.sum())]
        AZ = project_out(self.found.locked, self.operator.apply(Z.copy()))
        self.counts.apply(Z.shape[1])
        self.counts.reductions += result.reductions + 1
        is_squared = self.found.which == "LM"  # two signs mix
        values, Y = ritz_pairs(to_host(AZ.gram() if is_squared else Z.dot(AZ)))
        keys = np.sqrt(np.abs(values)) if is_squared else ranking_key(values, self.found.which)
        Y = Y[:, keys > key]
        return Z.combine(small_matrix(Y, Z)) if Y.shape[1] else None

    def _count(self, run: Recurrences) -> None:
        self.counts.apply(self.start.shape[1], run.steps)
        self.counts.reductions += 3 * run.steps

    def _verdict(
        self, missed: Block | None, verification: Verification, text: str, run: Recurrences
    ) -> Verdict:
        self._count(run)
        return Verdict(missed, self.counts, verification, text)


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
    if width == count or X.shape[0] * width * X.dtype.itemsize > FILLED_BYTES:
        return X
    # Kernels of found vectors expect the columns of a wider block.
    filled = X.like(padded_width(width + 1, X))[:, :width]
    filled[:, :count] = X
    filled[:, count:] = 0
    return filled
