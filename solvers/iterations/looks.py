"""When to look for convergence within a cycle: where that takes less time than the steps it may save."""

from __future__ import annotations

import math

# The next look for convergence comes after this share of the steps that the rate since the last one predicts,
# and before the basis has grown by this share.
EAGERNESS, PATIENCE = 0.8, 0.5
CHEAP = 0.25  # steps that take as long as a look, up to which every step is followed by one


def steps_to_look(cost: float, digits: float, pace: float, most: float, left: int, *, again: bool) -> int:
    """Choose the number of steps until the next look in a cycle.

    Parameters
    ----------
    cost : float
        Steps that take as long as a look.
    digits, pace : float
        Digits of residuals above their limits, and those by which they fall in a step. The pace is zero where
        it is unknown.
    most : float
        Steps after which to look whatever the pace predicts.
    left : int
        Steps up to the end of the cycle, which is followed by a look anyway.
    again : bool
        Whether a look in this cycle came too early already: the next one is at least its cost later.

    Returns
    -------
    int
        More than `left` if no look pays.

    Examples
    --------
    >>> [steps_to_look(cost, 5, 0.5, 20, left, again=False) for cost, left in ((0.1, 20), (2, 20), (9, 12))]
    [1, 10, 13]
    """
    if cost < CHEAP:
        return 1
    eagerness = EAGERNESS if cost < 1 else 1.0
    steps = eagerness * digits / pace if pace > 0 else math.inf
    steps = max(min(steps, most), cost if again else 1)
    return math.ceil(steps) if steps + cost < left else left + 1
