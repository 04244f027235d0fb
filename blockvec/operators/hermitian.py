"""The check that an operator is Hermitian, by products with two random vectors."""

from __future__ import annotations

import math
from typing import Any

from ..blocks.blockvector import BlockVector
from ..errors import BreakdownError, ShapeError

MOST = 1e4  # difference of the two products in units of eps; rounding errors were below 1.3


def measure(A: Any, rng: Any, name: str) -> tuple[float, float]:
    """Return a lower bound of ||A|| and how far it is from Hermitian; see `Operator.hermitian_defect`."""
    n_rows, n_cols = A.shape
    if n_rows != n_cols:
        raise ShapeError(f"{name} is {n_rows} x {n_cols}; a Hermitian operator is square.")
    if n_rows == 0:
        return 0.0, 0.0
    like = BlockVector.empty(n_cols, 0, A.dtype, device=A.device, layout=A.layout)
    Z = like.like(4)  # two vectors and their products
    Z[:, :2] = X = like.random_like(2, rng)
    A.apply(X, out=Z[:, 2:])
    products = A.backend.to_host(Z.gram())
    G = products.tolist()  # a few numbers: NumPy takes longer
    *norms, image, other = (math.sqrt(max(G[j][j].real, 0.0)) for j in range(4))
    images = (image, other)
    scales = {(i, j): max(norms[i] * images[j], norms[j] * images[i]) for i, j in ((0, 0), (0, 1), (1, 1))}
    if not all(map(math.isfinite, scales.values())):
        raise BreakdownError(
            f"{name} returned NaN or Inf for a finite block, or numbers whose squares overflow; check "
            "its entries."
        )
    difference = max(
        abs(G[i][2 + j] - G[j][2 + i].conjugate()) / (scale or 1.0) for (i, j), scale in scales.items()
    )
    return max(image / norms[0], other / norms[1]), difference
