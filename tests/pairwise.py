"""Examples that hold every pair of values of any two parameters, in place of their whole product."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

__all__ = ["pairwise"]


def pairwise(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one value of each parameter: the next has the most pairs that are new.

    Cohen, Dalal, Fredman and Patton, The AETG system, IEEE Trans. Softw. Eng. 23 (1997), with all candidates.
    """
    lists = [list(values) for values in parameters]
    candidates = list(itertools.product(*(range(len(values)) for values in lists)))
    left = {pair for chosen in candidates for pair in itertools.combinations(enumerate(chosen), 2)}
    result = []
    while left:
        best = max(candidates, key=lambda chosen: len(left & _pairs(chosen)))
        left -= _pairs(best)
        result.append(tuple(values[i] for values, i in zip(lists, best, strict=True)))
    return result


def _pairs(chosen: tuple[int, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(chosen), 2))
