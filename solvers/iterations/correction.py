"""Correction methods of Jacobi-Davidson, new directions for the search space, and its options.

For pairs (theta, x) with residuals r = A x - theta x, in order of increasing cost:

- davidson: t = K^-1 r;
- olsen: t = K^-1 r, projected obliquely with respect to the vectors x;
- minres, gmres: (I - Q Q^H) (A - theta I) (I - Q Q^H) t = -r, solved approximately, where Q consists of the
  converged vectors and the vectors x;

or a user's function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from blockvec.errors import BreakdownError, OptionError
from blockvec.system.frozen import frozen
from blockvec.system.scalars import plain

from ..blocks import Block, Operator, RealArray, to_host
from ..linear.gmres import block_gmres
from ..linear.minres import Recordings, block_minres
from ..linear.systems import Preconditioner, Progress, Projection, of_its_shape
from ..problem import Counts, Problem

Correction = Literal["auto", "davidson", "olsen", "minres", "gmres"]

# Options of version 0.2 that have left, and what replaces them.
REMOVED: MappingProxyType[str, str] = MappingProxyType(
    {
        "extraction": 'vectors are extracted by "refined" around sigma and by "ritz" elsewhere',
        "initial_shift": "give sigma, or a function as correction",
        "initial_shift_iterations": "give a function as correction",
        "inner_base": "give inner_steps, or a function as correction",
        "inner_stop": "give inner_steps, or a function as correction",
        "inner_together": "give a function as correction that calls block_minres(with_first=True)",
        "look_ahead": "give block_size: more pairs are corrected at a time",
        "retained": "give block_size: a restart retains as many previous vectors",
        "start": "give v0",
        "start_basis": "give min_basis, or v0",
    }
)


@frozen
class CorrectionProblem:
    """Arguments of a correction solver.

    Attributes
    ----------
    operator : Operator
        A, with its applications counted.
    X : BlockVector, shape (n, b)
        Orthonormal: the approximate eigenvectors.
    R : BlockVector, shape (n, b)
        Their residuals A x - theta x.
    shift : array, shape (b,)
        theta.
    tol : array, shape (b,)
        Tolerances of the linear systems, relative to the residuals: 0.1^j in the j-th correction of a pair.
    preconditioner : callable or None
    deflation : callable
        Returns the orthonormal `Q`: converged vectors, then X, and on a GPU zero columns for padding.
    """

    operator: Operator
    X: Block
    R: Block
    shift: RealArray
    tol: RealArray
    preconditioner: Preconditioner | None
    deflation: Callable[[], Block]

    @functools.cached_property
    def Q(self) -> Block:
        """Converged vectors, then X, orthonormal; formed once, on first use."""
        return self.deflation()


CorrectionSolver = Callable[[CorrectionProblem], Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobiDavidsonOptions:
    """Options of Jacobi-Davidson; the defaults are suitable without tuning.

    Attributes
    ----------
    correction : {"auto", "davidson", "olsen", "minres", "gmres"} or callable
        How corrections are computed. "davidson" applies the preconditioner to the residuals once, "olsen"
        projects that skew to the vectors, "minres" and "gmres" solve the correction equation; a callable
        maps a `CorrectionProblem` to a block. "auto" takes "minres"; with a preconditioner
        it begins with "davidson", and changes if that takes more than 40 corrections per pair.
    inner_steps : int, optional
        Maximum number of MINRES or GMRES steps; default 100 for MINRES, 30 for GMRES.
    min_basis : int, optional
        Number of vectors that a restart keeps; default k and two fifths of the rest of the basis.
    """

    correction: Correction | CorrectionSolver = "auto"
    inner_steps: int | None = None
    min_basis: int | None = None

    def __new__(cls, **options: Any) -> JacobiDavidsonOptions:
        """Refuse options of earlier versions."""
        for name in options.keys() & REMOVED.keys():
            raise OptionError(f"{name}: no longer an option of Jacobi-Davidson; {REMOVED[name]}.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Check values that do not depend on a problem; numbers of NumPy become Python's."""
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        names = get_args(Correction)
        if not (callable(self.correction) or self.correction in names):
            known = ", ".join(map(repr, names))
            raise OptionError(f"correction: got {self.correction!r}; give one of {known}, or a function.")
        if self.inner_steps is not None and self.inner_steps < 1:
            raise OptionError(f"inner_steps: got {self.inner_steps}; give at least 1.")

    def fingerprint(self) -> dict[str, Any]:
        """Return the options as plain values, functions by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"correction": getattr(self.correction, "__qualname__", self.correction)}

    def check(self, k: int, ncv: int, block_size: int) -> None:
        """Raise `OptionError` for options that do not fit a problem's sizes."""
        kept = self.min_basis
        if kept is not None and not k <= kept <= ncv - block_size:
            raise OptionError(
                f"min_basis: got {kept}; k = {k}, ncv = {ncv} and block_size = {block_size} need {k} to "
                f"{ncv - block_size}."
            )


MINRES_STEPS = 100  # steps of MINRES per correction, at most
GMRES_STEPS = 30  # steps of GMRES per correction, at most: one cycle
END_GAIN = 0.1  # ratio of residuals of a pair that ends a correction at an end; PRIMME's ETolerance
INSIDE_GAIN = 0.3  # the same inside a spectrum: with a tenth 14 solves took 1.1 times as long
PATIENCE = 40  # corrections per pair by K^-1 r, at most; good ones took 6 to 24, Jacobi's 48 to 114 (theory)


class AdaptiveStop:
    """Stop a correction when further steps reduce the linear residual but not that of the eigenpair.

    The residual of the pair after the correction, x + t, is computed from scalars of MINRES. It decreases
    with the residual of the linear system at first, and stagnates later. `norms` are the residual norms of
    the pairs, `direction` is 1 where large values are wanted, -1 where small ones are, 0 inside a spectrum.

    References
    ----------
    Stathopoulos, SIAM J. Sci. Comput. 29 (2007) 481, section 3; with the test on a tenth of the residual,
    a third inside a spectrum, it is JDQMR with "ETolerance" of McCombs and Stathopoulos' PRIMME.
    """

    def __init__(self, norms: RealArray, limits: RealArray, direction: NDArray[np.intp]) -> None:
        self.norms, self.limits, self.direction = norms, limits, direction
        self.step = 0
        self.value = np.zeros(len(norms))  # less theta
        self.linear = norms
        self.pair = np.full(len(norms), np.inf)

    def __call__(self, progress: Progress) -> NDArray[np.bool_]:
        """Return a mask of the systems to stop after this step."""
        self.step += 1
        linear = progress.residuals * self.norms
        scale = 1 + progress.xx
        value = (progress.quadratic - 2 * progress.xb) / scale  # the right-hand sides are -r
        square = (linear**2 + progress.xb**2) / scale - value**2
        pair = np.where(square > 0, np.sqrt(np.maximum(square, 0)), linear / np.sqrt(scale))
        extremal = self.direction != 0
        is_away = self.direction * (value - self.value) < 0
        worse = np.where(extremal, is_away, np.abs(value) > self.norms + pair)
        if self.step > 1:
            behind = (self.linear <= pair) | (self.pair <= linear)
            enough = pair <= np.where(extremal, END_GAIN, INSIDE_GAIN) * self.norms
            done = np.minimum(linear, pair) <= self.limits / 2
            worse |= behind | enough | done
        self.value, self.linear, self.pair = value, linear, pair
        return worse


class Corrector:
    """Compute corrections by one method and add their cost to `counts`."""

    def __init__(self, problem: Problem, how: JacobiDavidsonOptions, counts: Counts) -> None:
        operator = problem.operator
        self.operator, self.counts, self.preconditioner = operator, counts, problem.preconditioner
        counted = SimpleNamespace(shape=operator.shape, device=operator.device, apply=self._apply)
        self.counted: Any = counted  # for functions of a user
        self.minres_steps = how.inner_steps or MINRES_STEPS
        self.gmres_steps = how.inner_steps or GMRES_STEPS
        self.undecided = how.correction == "auto" and self.preconditioner is not None
        self.corrections = 0
        self._function = how.correction if callable(how.correction) else None
        chosen = "davidson" if self.undecided else "minres"
        self.method = chosen if how.correction == "auto" else "function" if self._function else how.correction
        self._recordings = None if operator.device == "cpu" else Recordings(operator)

    def _apply(self, X: Block, *arguments: Any, **options: Any) -> Block:
        self.counts.apply(X.shape[1])
        return self.operator.apply(X, *arguments, **options)

    def solve(self, problem: CorrectionProblem, stop: AdaptiveStop, converged: int) -> Block:
        """Compute a block of corrections, shape (n, b); `converged` is the number of converged pairs."""
        R = problem.R
        if self.undecided:  # change if single applications of the preconditioner make too little progress
            self.corrections += R.shape[1]
            if self.corrections > PATIENCE * (converged + R.shape[1]):
                self.undecided, self.method = False, "minres"
        if self.method in ("minres", "gmres"):
            return self._solved(problem, stop)
        if self._function is not None:
            T = of_its_shape("correction", self._function(problem), R)
        else:
            X = problem.X if self.method == "olsen" else None
            T = Projection(X, self.preconditioner, self.counts).precondition(R)
        if not np.isfinite(to_host(T.norms())).all():
            who = "correction" if self._function else "preconditioner"
            raise BreakdownError(f"{who}: returned NaN or Inf for finite residuals.")
        return T

    def _solved(self, problem: CorrectionProblem, stop: AdaptiveStop) -> Block:
        """Solve the correction equations by MINRES, or by GMRES if the preconditioner is indefinite."""
        projection = Projection(problem.Q, self.preconditioner, self.counts)
        B = problem.R.copy().scale(-1)
        options: dict[str, Any] = {"shift": problem.shift, "Q": projection}
        if self.method == "minres":
            how: Any = options | {"tol": 0.0, "maxiter": self.minres_steps, "stop": stop}
            solved = block_minres(self.operator, B, recordings=self._recordings, **how)
            if "indefinite preconditioner" not in solved.reasons:
                return cast(Block, solved.X)
            self.method = "gmres"
        solved = block_gmres(self.operator, B, tol=problem.tol, maxiter=self.gmres_steps, **options)
        return cast(Block, solved.X)
