"""One operation ready to be measured: blockvec's call and its peers', each going round sets of operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends import Array, Backend
from ..blockvector import BlockVector
from ..dispatch import accepts, choose
from ..kernels.problem import Problem, SweepProblem

__all__ = ["Call", "Case", "arrays", "case", "rotate", "turns"]

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One operation on operands of one shape.

    Attributes
    ----------
    operation : str
        Its name in the interface.
    problem : Problem
        Its description.
    kernel : str
        What dispatch chooses for it.
    calls : dict of str to callable
        ``"blockvec"`` first, then the peers; each call goes on to the next set of operands.
    config : str
        What that kernel is run with.
    matrix : str or None
        Name of the sparse matrix of an apply.
    """

    operation: str
    problem: Problem
    kernel: str
    calls: dict[str, Call]
    config: str = ""
    matrix: str | None = None


def rotate(*operands: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Go round sets of operands for ever, each list at its own length."""
    return zip(*map(itertools.cycle, operands), strict=True)


def turns(function: Callable[..., object], *operands: Sequence[Any]) -> Call:
    """Return a call of the function on the next operands."""
    sets = rotate(*operands)
    return lambda: function(*next(sets))


def arrays(blocks: Sequence[BlockVector]) -> list[Array]:
    """Return what the blocks wrap."""
    return [block.array for block in blocks]


def case(
    operation: str, problem: Problem, backend: Backend, calls: dict[str, Call], matrix: str | None = None
) -> Case:
    """Return a case of what dispatch chooses; two products that no kernel makes together are two calls."""
    if isinstance(problem, SweepProblem) and not accepts(problem, backend):
        return Case(operation, problem, "two calls", calls, "", matrix)
    chosen = choose(problem, backend)
    return Case(operation, problem, chosen.name, calls, chosen.configuration(), matrix)
