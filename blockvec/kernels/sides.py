"""The two parts of a large GPU's L2, and which multiprocessors are beside each.

Each part is beside half of the memory and half of the multiprocessors. Whatever a multiprocessor reads from
the other half crosses between them, at a lower rate than L2 delivers, and takes room in both. No interface
tells which multiprocessor is where; the time of atomic operations does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Sides", "classify"]

CLEAR = 0.6  # of the variance of latencies: what one difference between two groups must explain
LEAST_SHARE = 0.25  # of the multiprocessors: fewer are no side


@dataclass(frozen=True, eq=False)
class Sides:
    """The two sides.

    Attributes
    ----------
    table : array of uint8, shape (multiprocessors,)
        0 or 1 for each, on the device.
    share : float
        Of the multiprocessors on side 0.
    """

    table: Any
    share: float


def classify(latencies: Any) -> Any | None:
    """Return a side, 0 or 1, for each row of latencies (multiprocessors by places), or None where L2 has one.

    What is left without the means of rows and columns has one large singular value if there are two groups,
    and the signs of its vector are the groups.
    """
    if not latencies.all():
        return None  # a multiprocessor did not take part
    rest = latencies - np.median(latencies, axis=0)
    rest -= rest.mean(axis=1, keepdims=True)
    rest -= rest.mean(axis=0)
    left, values, _ = np.linalg.svd(rest)
    if values[0] ** 2 <= CLEAR * np.sum(values**2):
        return None
    side = (left[:, 0] * np.sign(left[0, 0]) < 0).astype(np.uint8)
    return side if min(side.mean(), 1 - side.mean()) >= LEAST_SHARE else None
