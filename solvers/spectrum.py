"""A sketch of a spectrum: bounds on both ends, and how many eigenvalues lie beyond a value.

A few dozen steps of the plain Lanczos recurrence, one for each of a few random vectors at a time, cost
little more than applying the operator: nothing is orthogonalised against more than the last two vectors,
and nothing is asked of the device before the end. Their Ritz values are nodes, and the squares of the first
components of the eigenvectors weights, of a quadrature for the density of eigenvalues.

References
----------
Zhou, Li, Numer. Linear Algebra Appl. 18 (2011) 107 (bounds); Lin, Saad, Yang, SIAM Review 58 (2016) 34,
section 3.2 (density of states by Lanczos). Deviation: the vectors run side by side, as columns of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import array_namespace
from blockvec.errors import BreakdownError

from .rayleigh_ritz import Which, desire, to_host

__all__ = ["Sketch", "sketch_spectrum"]

Block = Any
RealArray = NDArray[np.float64]

BROKEN_DOWN = 1e3  # a remainder below so many u ||A|| is rounding, and ends a recurrence


@dataclass(frozen=True, slots=True)
class Sketch:
    """Nodes and weights of a quadrature over a spectrum.

    Attributes
    ----------
    theta : array, shape (q,)
        Ritz values of all vectors.
    counts : array, shape (q,)
        Eigenvalues that each of them stands for; they sum up to the dimension.
    low, high : float
        Bounds of the spectrum, but for luck.
    columns, applications, reductions : int
        What it has cost.
    """

    theta: RealArray
    counts: RealArray
    low: float
    high: float
    columns: int
    applications: int
    reductions: int

    @property
    def norm(self) -> float:
        """The largest magnitude of a Ritz value: ||A|| from below."""
        return float(np.abs(self.theta).max(initial=0.0))

    def least(self, which: Which) -> float:
        """Return `desire` of the far end."""
        return self.low if which == "LA" else -self.high if which == "SA" else 0.0

    def beyond(self, count: float, which: Which, below: float = np.inf) -> float:
        """Return `desire` of the most wanted node beyond which at least `count` eigenvalues seem to lie.

        Parameters
        ----------
        count : float
        which : {"LA", "SA", "LM"}
        below : float
            A bound that the node must be less wanted than, if there is such a node.

        Examples
        --------
        >>> import numpy as np
        >>> sketch = Sketch(np.array([0.0, 1.0, 2.0]), np.array([5.0, 3.0, 2.0]), 0.0, 2.0, 0, 0, 0)
        >>> sketch.beyond(2, "LA"), sketch.beyond(3, "LA"), sketch.beyond(1, "LA", below=1.0)
        (1.0, 0.0, 0.0)
        """
        values = desire(self.theta, which)
        order = np.argsort(-values, kind="stable")
        before = np.cumsum(self.counts[order]) - self.counts[order]
        fitting = np.flatnonzero((before >= count) & (values[order] < below))
        return float(values[order[fitting[0] if len(fitting) else -1]])


def sketch_spectrum(
    operator: Any, like: Block, width: int, steps: int, rng: Any, locked: Block | None
) -> Sketch:
    """Run `steps` steps of Lanczos from each of `width` random vectors at once.

    Parameters
    ----------
    operator : Operator
    like : BlockVector, shape (n, any)
        Says size, type and device.
    width, steps : int
    rng : numpy.random.Generator
    locked : BlockVector, shape (n, c), optional
        Columns whose complement the operator is restricted to.

    Raises
    ------
    BreakdownError
        Where the operator returns NaN or Inf.
    """
    n = int(like.shape[0]) - (0 if locked is None else int(locked.shape[1]))
    steps = min(steps, n)
    alphas, betas = _recurrences(operator, like, width, steps, rng, locked)
    if not (np.isfinite(alphas).all() and np.isfinite(betas).all()):
        raise BreakdownError("the operator returned NaN or Inf for a finite block; check its entries.")
    noise = BROKEN_DOWN * float(np.finfo(like.dtype).eps) * float(np.abs(alphas).max() + betas.max())
    nodes, counts, low, high = [], [], np.inf, -np.inf
    for column in range(width):
        alpha, beta = alphas[:, column], betas[:, column]
        small = np.flatnonzero(beta <= noise)
        length = int(small[0]) + 1 if len(small) else steps
        T = np.diag(alpha[:length]) + np.diag(beta[: length - 1], 1) + np.diag(beta[: length - 1], -1)
        theta, S = np.linalg.eigh(T)
        rest = beta[length - 1] * np.abs(S[-1])
        nodes.append(theta)
        counts.append(n / width * S[0] ** 2)
        low, high = min(low, theta[0] - rest[0]), max(high, theta[-1] + rest[-1])
    projections = 0 if locked is None else steps + 1
    return Sketch(
        theta=np.concatenate(nodes),
        counts=np.concatenate(counts),
        low=float(low),
        high=float(high),
        columns=width * steps,
        applications=steps,
        reductions=1 + 2 * steps + projections,
    )


def _recurrences(
    operator: Any, like: Block, width: int, steps: int, rng: Any, locked: Block | None
) -> tuple[RealArray, RealArray]:
    """Return diagonals and subdiagonals, a column a vector; waits for the device once."""
    V = type(like).random(like.shape[0], width, like.dtype, device=like.device, rng=rng)
    xp = array_namespace(V.array)
    tiny = np.finfo(V.dtype).tiny

    def project(block: Block) -> None:
        if locked is not None:
            locked.combine(locked.dot(block), out=block, alpha=-1, beta=1)

    project(V)
    V.scale(1 / xp.maximum(V.norms(), tiny))
    previous, W = V.like(), V.like()
    alphas: list[Any] = []
    betas: list[Any] = []
    for step in range(steps):
        operator.apply(V, out=W)
        project(W)
        if step:
            W.axpy(-betas[-1], previous)
        alphas.append(V.column_dot(W).real)
        W.axpy(-alphas[-1], V)
        betas.append(W.norms())
        W.scale(1 / xp.maximum(betas[-1], tiny))
        previous, V, W = V, W, previous
    values = to_host(xp.stack([*alphas, *betas])).astype(np.float64)
    return values[:steps], values[steps:]
