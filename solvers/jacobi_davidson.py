"""Block Jacobi-Davidson: a search space, grown by solving for what its best vectors lack.

For each of a few approximate pairs (theta, x) with residual r = A x - theta x, a few steps of MINRES or GMRES
on the correction equation

    (I - Q Q^H) (A - theta I) (I - Q Q^H) t = -r,    Q = [converged vectors, the block of x],

give directions t to add to the space. This needs no factorisation inside a spectrum, takes a preconditioner
anywhere, and keeps few vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import array_namespace

from .checkpoint import Checkpoint
from .correction import Linear, Preconditioner, block_gmres, block_minres
from .iteration import Iteration, IterationState, LanczosOptions, LanczosResult
from .rayleigh_ritz import desire, to_host
from .search_space import Extracted, SearchSpace
from .verification import Found, look_for_missed, may_have_missed

__all__ = ["FoldedOperator", "JacobiDavidsonOptions", "jacobi_davidson", "least_basis"]

Array = Any
Block = Any
RealArray = NDArray[np.float64]

INNER_BASE = 0.1  # a pair's correction is solved to INNER_BASE^j of its residual the j-th time
KEPT_SHARE = 0.4  # of the basis beyond the wanted vectors survives a restart
STALLED = 240  # corrections without a gain after which the space is made anew, and then given up
GAIN = 0.1  # decades of all residuals together that count as a gain
RESTARTS_BETWEEN_CLEANING = 10  # loses at most this many u of orthogonality
MIN_SEARCH = 200  # degree that a search for missed values may always have
MAX_SEARCH_WIDTH = 8


@dataclass(frozen=True, slots=True)
class JacobiDavidsonOptions(LanczosOptions):
    """What the iteration is asked for, beyond `LanczosOptions`; `maxiter` counts outer iterations.

    Attributes
    ----------
    target : float or None
        Wanted are the eigenvalues nearest to it; then `which` is "LM", as of (A - target)^-1.
    preconditioner : callable or None
        Maps a block to a new one: about (A - target)^-1.
    inner_steps : int
        Steps of MINRES or GMRES at most for a correction.
    """

    target: float | None = None
    preconditioner: Preconditioner | None = None
    inner_steps: int = 20


def least_basis(k: int, ncv: int, block_size: int) -> int:
    """Return how many vectors survive a restart."""
    return max(k, min(k + int(KEPT_SHARE * (ncv - k)), ncv - block_size))


def jacobi_davidson(
    operator: Any,
    start: Block,
    options: JacobiDavidsonOptions,
    *,
    locked: Block | None = None,
    random_start: bool = True,
    callback: Callable[[IterationState], object] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    checkpoint: Checkpoint | None = None,
    rng: Any = 0,
) -> LanczosResult:
    """Compute wanted eigenpairs of a Hermitian operator by block Jacobi-Davidson.

    Parameters
    ----------
    operator : Operator
        Hermitian, with ``apply(X, out, alpha, beta, shift)``.
    start : BlockVector, shape (n, s)
        Start vectors; overwritten.
    options : JacobiDavidsonOptions
    locked : BlockVector, shape (n, c), optional
        Orthonormal columns to stay orthogonal to.
    random_start : bool
        Whether `start` is random. Where it is given and has k columns or more, no Lanczos steps are taken.
    callback : callable, optional
        Called with an `IterationState` in every outer iteration; stops by returning True.
    interrupted : callable, optional
        Asked between outer iterations whether to stop.
    checkpoint : Checkpoint, optional
        Where to go on from, and to write to.
    rng : Generator or int

    Returns
    -------
    LanczosResult
        With ``reason="stagnated"`` where the residuals had stopped falling.

    References
    ----------
    Sleijpen, van der Vorst, SIAM J. Matrix Anal. Appl. 17 (1996) 401; Roehrig-Zoellner, Thies, Kreutzer,
    Alvermann, Pieper, Basermann, Hager, Wellein, Fehske, SIAM J. Sci. Comput. 37 (2015) C697 (block form).
    """
    return _JacobiDavidson(
        operator, start, options, locked, random_start, callback, interrupted, checkpoint, rng
    ).run()


class FoldedOperator:
    """(A - tau I)^2: eigenvalues around a target become those at the lower end.

    Parameters
    ----------
    operator : Operator
    tau : float
    locked : BlockVector, shape (n, c), optional
        Columns to whose complement A is restricted.
    """

    def __init__(self, operator: Any, tau: float, locked: Block | None = None) -> None:
        self.operator, self.tau, self.locked = operator, tau, locked
        self.shape, self.dtype, self.device = operator.shape, operator.dtype, operator.device

    def apply(
        self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> Block:
        """Return ``alpha ((A - tau I)^2 - shift I) X + beta out``; two applications of A."""
        inner = self.operator.apply(X, shift=self.tau)
        if self.locked is not None:
            self.locked.combine(self.locked.dot(inner), out=inner, alpha=-1, beta=1)
        if out is None:
            out = self.operator.apply(inner, alpha=alpha, shift=self.tau)
        else:
            self.operator.apply(inner, out=out, alpha=alpha, beta=beta, shift=self.tau)
        return out.axpy(-alpha * shift, X) if shift else out


class _JacobiDavidson(Iteration):
    """One run of `jacobi_davidson`."""

    PROGRESS = (*Iteration.PROGRESS, "attempts", "shrunk", "best", "best_at", "refreshed")
    options: JacobiDavidsonOptions

    def __init__(
        self,
        operator: Any,
        start: Block,
        options: JacobiDavidsonOptions,
        locked: Block | None,
        random_start: bool,
        callback: Callable[[IterationState], object] | None,
        interrupted: Callable[[], bool],
        checkpoint: Checkpoint | None,
        rng: Any,
    ) -> None:
        super().__init__(options, callback, interrupted, checkpoint, rng)
        self.operator, self.start, self.random_start = operator, start, random_start
        n_locked = 0 if locked is None else locked.shape[1]
        capacity = min(options.ncv, start.shape[0] - n_locked)
        buffer = start.like(n_locked + capacity)
        if locked is not None:
            buffer[:, :n_locked] = locked
        self.space = SearchSpace(
            operator, buffer, n_locked, options.which, options.target, self.rng, self.counts
        )
        self.kept = least_basis(options.k, capacity, options.block_size)
        self.attempts = np.zeros(options.k, np.intp)
        self.solve = block_minres
        self.least = 0.0
        self.shrunk = 0
        self.best, self.best_at, self.refreshed = np.inf, 0, False
        self.true: RealArray | None = None  # true residuals, of X as it is

    def run(self) -> LanczosResult:
        """Iterate until everything wanted has converged and nothing is missed, or something stops it."""
        if not self._resumed():
            self._begin()
        while True:
            state = self._extract()
            self.history.append(state)
            reason = self._stopped()
            if self.callback is not None and self.callback(state) is True:
                reason = reason or "callback"
            if not reason and state.converged == self.options.k and self._settled(state):
                reason = self._stopped() or "converged"
            if not reason and self.space.room == 0 and not self.missing:
                reason = "converged"  # the basis spans the space: nothing can be added to what it says
            reason = reason or self._stalled(state)
            if not reason and state.converged < self.options.k:
                self._grow(state)
            self.counts.restarts += 1
            if not reason and self.counts.restarts >= self.options.maxiter:
                reason = "maxiter"
            self._save(reason)
            if reason:
                return self._result(state, reason)

    def snapshot(self) -> dict[str, Any]:
        """Return the state between two outer iterations."""
        return super().snapshot() | self.space.snapshot() | {"solve": self.solve.__name__}

    def resume(self, saved: dict[str, Any]) -> None:
        """Take up a state that `snapshot` has returned."""
        super().resume(saved)
        self.space.resume(saved)
        self.solve = block_minres if saved["solve"] == block_minres.__name__ else block_gmres

    # --- start ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take block Lanczos steps until the basis is as large as after a restart."""
        space, b = self.space, self.options.block_size
        space.extend(self.start)
        if space.m < b:
            space.extend(self._random(b - space.m))
        wanted = self.kept if self.random_start else self.options.k
        while space.m < wanted:
            space.extend(space.images(min(b, space.m)))
        if not self.random_start:
            self._estimate_norm()

    def _random(self, width: int) -> Block:
        buffer = self.space.buffer
        return type(buffer).random(buffer.shape[0], width, buffer.dtype, device=buffer.device, rng=self.rng)

    def _estimate_norm(self) -> None:
        """Raise the estimate of ||A|| by ||A z||, z random: given vectors may know one corner of it only."""
        z = self._random(1)
        norms = [float(to_host(block.norms())[0]) for block in (z, self.operator.apply(z))]
        self.counts.apply(1)
        self.counts.reductions += 2
        self.space.norm = max(self.space.norm, norms[1] / norms[0])

    # --- one outer iteration --------------------------------------------------------------------

    def _norm(self) -> float:
        return self.space.norm if self.options.norm is None else self.options.norm

    def _extract(self) -> IterationState:
        """Extract the wanted pairs and their residuals."""
        k = self.options.k
        self.extracted: Extracted = self.space.extract()
        theta, Y = self.extracted.theta[:k], self.extracted.Y[:, :k]
        self.X = self.space.vectors(Y)
        self.R = self.space.residuals(self.X, Y, theta)
        self.true = None
        residuals = to_host(self.R.norms()).astype(np.float64)
        self.counts.reductions += 1
        self._note_far_end()
        limits = np.broadcast_to(self.options.tolerance.limits(theta, self._norm()), (k,))
        return IterationState(
            self.counts.restarts,
            theta,
            residuals,
            limits,
            self.counts.operator_columns,
            self.elapsed_s,
        )

    def _note_far_end(self) -> None:
        """Remember the least wanted Ritz value that was seen: a search for missed values damps up to it."""
        values = self.extracted.theta if self.options.target is None else self.space.ritz_values()
        self.space.norm = max(self.space.norm, float(np.abs(values).max(initial=0)))
        least = float(self._wanted(values).min())
        self.least = least if not self.history else min(self.least, least)

    def _wanted(self, theta: RealArray) -> RealArray:
        """Return numbers that grow towards the wanted values; those of the folded operator at a target."""
        target = self.options.target
        values = desire(theta, self.options.which) if target is None else -((theta - target) ** 2)
        return np.asarray(values)

    def _grow(self, state: IterationState) -> None:
        """Solve for corrections to the first unconverged pairs and add them to the space."""
        space, b = self.space, self.options.block_size
        failing = np.flatnonzero(state.residuals > state.limits)[:b]
        T = self._corrections(state, failing).X
        whole = space.capacity == space.m + space.room  # it may grow until it spans everything
        if space.m + len(failing) > space.capacity and not whole:
            self._shrink()
        space.extend(T)

    def _shrink(self) -> None:
        """Restart from the best vectors; rotations accumulate rounding errors, which are cleaned away."""
        self.space.shrink(self.extracted.Y[:, : self.kept])
        self.shrunk += 1
        if self.shrunk % RESTARTS_BETWEEN_CLEANING == 0:
            self.space.reorthonormalize()

    def _corrections(self, state: IterationState, failing: NDArray[np.intp]) -> Linear:
        """Solve the correction equations of the pairs with these indices."""
        converged = np.flatnonzero(state.residuals <= state.limits)
        self.attempts[converged] = 0
        self.attempts[failing] += 1
        Q = self._projector(np.concatenate([converged, failing]))
        B = _pick(self.R, failing).scale(-1)
        while True:
            solved = self.solve(
                self.operator,
                B,
                shift=state.eigenvalues[failing],
                tol=INNER_BASE ** self.attempts[failing],
                maxiter=self.options.inner_steps,
                preconditioner=self.options.preconditioner,
                Q=Q,
            )
            counts = self.counts
            counts.operator_columns += solved.operator_columns
            counts.block_applications += solved.block_applications
            counts.reductions += solved.reductions
            if "indefinite preconditioner" not in solved.reasons:
                return solved
            self.solve = block_gmres

    def _projector(self, indices: NDArray[np.intp]) -> Block:
        """Return the locked columns and some of X side by side."""
        locked, c = self.space.locked, self.space.n_locked
        Q = self.X.like(c + len(indices))
        if locked is not None:
            Q[:, :c] = locked
        Q[:, c:] = _pick(self.X, indices)
        return Q

    # --- before the end -------------------------------------------------------------------------

    def _stalled(self, state: IterationState) -> str:
        """Say so where residuals no longer fall; before that, take drift out of the basis once."""
        excess = np.maximum(state.residuals, state.limits) / np.maximum(state.limits, np.finfo(float).tiny)
        measure = float(np.log10(excess).sum())
        if measure < self.best - GAIN:
            self.best, self.best_at, self.refreshed = measure, self.counts.restarts, False
        if (self.counts.restarts - self.best_at) * self.options.block_size < STALLED:
            return ""
        if self.refreshed:
            return "stagnated"
        self.space.refresh()
        self.refreshed, self.best_at = True, self.counts.restarts
        return ""

    def _settled(self, state: IterationState) -> bool:
        """Whether residuals are what they seemed and nothing was missed; if not, repair or extend."""
        self.true = self._true_residuals(state)
        if (self.true > state.limits).any():
            self.space.refresh()
            self._grow(replace(state, residuals=self.true))
            return False
        options, target = self.options, self.options.target
        if self.space.room == 0:
            self.verification = "not needed: the basis spans the space"
            self.missing = 0
            return True
        if options.verify == "never":
            self.verification = "switched off"
            return True
        if options.verify == "auto" and self.random_start and not self.found_missed and target is None:
            b = options.block_size
            if not may_have_missed(state.eigenvalues, state.limits, options.which, b):
                self.verification = (
                    f"not needed: no eigenvalue before the last has {b} copies, the block size"
                )
                return True
        return self._verified(state)

    def _true_residuals(self, state: IterationState) -> RealArray:
        """Make X orthonormal to rounding and return ||A x - theta x||, computed anew."""
        factor = np.linalg.cholesky(to_host(self.X.gram()).astype(self.extracted.Y.dtype)).conj().T
        self.X.combine(self.space.small(np.linalg.inv(factor)), out=self.X)
        norms = []
        for begin in range(0, len(state.eigenvalues), self.options.block_size):
            part = slice(begin, min(begin + self.options.block_size, len(state.eigenvalues)))
            X = self.X[:, part].copy()
            R = self.operator.apply(X)
            self.counts.apply(X.shape[1])
            theta = -state.eigenvalues[part]
            R.axpy(array_namespace(X.array).asarray(theta.astype(X.array.real.dtype)), X)
            locked = self.space.locked
            if locked is not None:
                locked.combine(locked.dot(R), out=R, alpha=-1, beta=1)
            norms.append(to_host(R.norms()))
        self.counts.reductions += 1 + len(norms)
        return np.concatenate(norms).astype(np.float64)

    def _found(self, state: IterationState) -> Found:
        """Say what was found; around a target, in terms of (A - tau I)^2."""
        theta, residuals, limits, norm = state.eigenvalues, state.residuals, state.limits, self._norm()
        which, target = self.options.which, self.options.target
        if target is not None:
            theta, which = (theta - target) ** 2, "SA"
            # ((A - tau)^2 - s^2) x = (A - tau + s) r, where s = theta - tau.
            norm = norm + abs(target)
            stretch = norm + np.sqrt(theta)
            residuals, limits, norm = residuals * stretch, limits * stretch, norm**2
        order = np.argsort(-desire(theta, which), kind="stable")
        return Found(
            X=_pick(self.X, order),
            theta=theta[order],
            residuals=residuals[order],
            k=self.options.k,
            which=which,
            limits=limits[order],
            norm=norm,
            least=self.least,
            locked=self.space.locked,
        )

    def _verified(self, state: IterationState) -> bool:
        """Look for missed values; extend the space by what is found."""
        target = self.options.target
        folded = self.operator if target is None else FoldedOperator(self.operator, target, self.space.locked)
        each = 1 if target is None else 2
        counts = self.counts
        verdict = look_for_missed(
            folded,
            self._found(state),
            self.search_width,
            max((counts.operator_columns - counts.verification_columns) // each, MIN_SEARCH),
            self.rng,
            self._stopped,
        )
        counts.operator_columns += each * verdict.columns
        counts.verification_columns += each * verdict.columns
        counts.block_applications += each * verdict.applications
        counts.reductions += verdict.reductions
        self.verification = verdict.text + ("" if target is None else ", by (A - sigma I)^2")
        self.missing = 0 if verdict.missed is None else verdict.missed.shape[1]
        if verdict.missed is None:
            return True
        self.found_missed += self.missing
        self.search_width = min(2 * self.search_width, MAX_SEARCH_WIDTH)
        if self.space.m + self.missing > self.space.capacity:
            self._shrink()
        self.space.extend(verdict.missed)
        self.best = np.inf
        return False

    def _result(self, state: IterationState, reason: str) -> LanczosResult:
        if reason != "converged" and self.verification == "not reached":
            self.verification = "skipped: the iteration ended before"
        return LanczosResult(
            theta=state.eigenvalues,
            X=self.X,
            residuals=self._true_residuals(state) if self.true is None else self.true,
            limits=state.limits,
            reason=reason,
            verification=self.verification,
            missing=self.missing,
            norm=self._norm(),
            degree=1,
            counts=self.counts,
            history=self.history,
        )


def _pick(block: Block, indices: NDArray[np.intp]) -> Block:
    """Return a copy of some columns of a block."""
    picked = block.like(len(indices))
    for place, index in enumerate(indices):
        picked[:, place : place + 1] = block[:, int(index) : int(index) + 1]
    return picked
