"""What is asked of `svds`, and singular triplets that are judged by their residuals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockvec import BlockVector, Operator
from blockvec.errors import BreakdownError

from ..blocks import RealArray, column_factors, columns_of, small_matrix, to_host
from ..costs import is_dense
from ..iterations.spectrum import sketch_of
from ..orthogonalization import orthogonalize
from ..problem import FLOOR, IterationState, Problem, Tolerance, Verification
from .operators import Inverse, Pair

TIGHTER = 4.0  # limits of triplets per limit of a stage, which settles values above a quarter of the largest
GRAM_ROUNDING = 40.0  # u ||A|| ||A x||: rounding errors of A^H A x
CENTRED_ROUNDING = 4.0  # the same of centred products, relative to what is subtracted
FEW_STEPS = 8  # of Lanczos, for a norm
# Elements of A from which on blocks take less time than single columns. On the host those of 2.5e5 to 1e6
# took 1.5 times as long in the mean of seven matrices drawn at random (one core), 1.15 times beyond.
BLOCK_ENTRIES = {"cpu": 1_000_000, "gpu": 250_000}
WIDE = 8  # columns of a block; on a GPU twice as many from MANY_PAIRS on
MANY_PAIRS = 32  # triplets
# Vectors of a basis beside those of a step: on a GPU one launch takes a step of 8 columns in double precision
# on a basis of 256. That basis and width for 50 triplets took 1.3 times as long as five vectors per triplet
# and 16 columns (three matrices of 2,000 to 40,000 columns).
BASIS, BASIS_PER_PAIR = 248, 5
MOST_ROWS = 1 << 20  # of such a basis, which takes 2 GB then


@dataclass(kw_only=True)
class Task:
    """The singular triplets that are asked for, and how to compute them."""

    pair: Pair
    A: Any  # the matrix of the caller, None if its rows are in several processes
    start: Any  # vectors of the shorter side, or None
    k: int
    which: str
    method: str  # "auto", "lanczos", "randomized" or "dense"
    tol: float
    unit: float  # unit roundoff of the caller's type
    rng: np.random.Generator
    options: Mapping[str, int]
    limits: Mapping[str, Any]  # fields of `Problem`: sizes, verify, callback, time_limit, begin_s
    tighter: float = TIGHTER  # limits of triplets per limit of an iteration
    rounding: float = 0.0  # of products with A^H A, if that is above the limits by its own norm

    def problem(self, operator: Operator, which: str, k: int, **changes: Any) -> Problem:
        """Make the eigenproblem of an operator of A."""
        fields: dict[str, Any] = {
            "tolerance": self.tolerance(self.tol),
            "rng": self.rng,
            "start": self.start,
            "method": "auto" if self.method == "auto" else "lanczos",
            **self.limits,
        }
        if fields["block_size"] is fields["ncv"] is None and (sizes := self._sizes(operator)) is not None:
            fields["block_size"], fields["ncv"] = sizes
        return Problem(**{**fields, "operator": operator, "k": k, "which": which, **changes})

    def tolerance(self, tol: float) -> Tolerance:
        """Form the limits of eigenpairs of A^H A."""
        return Tolerance(tol, "value", self.unit / self.tighter, self.rounding)

    def with_rounding(self, gram: Operator) -> Task:
        """Add the rounding errors of centred products, which are u times what has been subtracted.

        Where nothing but these is left, all vectors are as good.
        """
        if not (error := self.unit * self.pair.offset):
            return self
        norm = math.sqrt(sketch_of(gram, FEW_STEPS).norm)
        least = norm**2 if norm <= FLOOR * error else CENTRED_ROUNDING * norm * error
        return replace(self, rounding=max(least, GRAM_ROUNDING * error**2))

    def _sizes(self, operator: Operator) -> tuple[int, int] | None:
        """Choose wide blocks and a large basis where products take longer than all else; else None."""
        n, k = self.pair.shape[1], self.k
        least = BLOCK_ENTRIES["cpu" if operator.device == "cpu" else "gpu"]
        is_open = self.start is None and not is_dense(operator) and self.pair.entries >= least
        if not (is_open and BASIS < n <= MOST_ROWS):
            return None
        is_wide = operator.device != "cpu" and k >= MANY_PAIRS
        return WIDE * (1 + is_wide), min(max(BASIS, BASIS_PER_PAIR * k), n)

    @property
    def searches(self) -> bool:
        """Whether missing copies are looked for."""
        return bool(self.limits["verify"] != "never")


@dataclass
class Triplets:
    """The wanted singular triplets of a `Pair`, ascending, with true residuals.

    `info` has those entries of `SvdResult.info` that tell how they were computed.
    """

    U: BlockVector
    s: RealArray
    V: BlockVector
    residuals: RealArray  # the larger one of both
    limits: RealArray
    settled: int  # the number of triplets within their limits from the wanted end on
    info: dict[str, Any]
    verification: Verification = Verification.NOT_NEEDED
    history: Sequence[IterationState] = ()

    def verified(self, verification: Verification, text: str, missing: int = 0) -> None:
        """Note what became of the search for missing copies."""
        self.verification = verification
        self.info |= {"verification": text, "missing": missing}


def triplets_of(
    task: Task,
    V: BlockVector,
    norm: float | None = None,
    left: BlockVector | None = None,
    inverse: Inverse | None = None,
) -> Triplets:
    """Compute the wanted triplets of A on orthonormal columns V, and judge them by their true residuals.

    They are those of A V = Q R, so that small values do not suffer from squares. This needs the vectors of
    all larger values, without which rounding errors of A v along these would make ||A^H u - s v|| as large as
    u ||A||^2 / s. V is in the order of ascending values; the factorisation begins with the largest. `left`
    has left vectors without such errors, and is overwritten; triplets are then those of U^H A V. An `inverse`
    computes such vectors from right ones. The norm of A is by default the largest value.
    """
    if left is None:
        V = BlockVector(columns_of(V.array, np.arange(V.n_cols)[::-1]), layout=V.layout)
    W = task.pair.forward.apply(V)
    Q = W.copy() if left is None else left
    R = orthogonalize(Q, rng=0).R
    if left is not None:
        R = to_host(Q.dot(W))
    if not np.isfinite(R).all():
        raise BreakdownError("svds: A returned NaN or Inf for a finite block; check its entries.")
    X, s, Yh = np.linalg.svd(R)
    ends = slice(None, task.k) if task.which == "SM" else slice(-task.k, None)
    X, s, Y = X[:, ::-1][:, ends], s[::-1][ends].astype(np.float64), Yh[::-1][ends].conj().T
    V, W = (B.combine(small_matrix(Y, B)) for B in (V, W))
    if inverse is None:
        U = Q.combine(small_matrix(X, Q))
    else:
        U = inverse.left(V)
        orthogonalize(U, rng=0)
    both = W.axpy(column_factors(-s, U), U), task.pair.adjoint.apply(U).axpy(column_factors(-s, V), V)
    residuals = np.maximum(*(to_host(R.norms()).astype(np.float64) for R in both))
    norm = max(task.pair.offset, *s.tolist()) if norm is None else norm
    limits = np.maximum(task.tol * s, FLOOR * task.unit * (norm + s))
    asked = limits if inverse is None else limits / TIGHTER
    within = np.append((residuals <= asked)[:: 1 if task.which == "SM" else -1], False)
    info = {"norm": norm, "operator_columns": len(R)}
    return Triplets(U, s, V, residuals, limits, int(np.argmin(within)), info)
