"""One operation ready to be measured: calls of blockvec and its peers that rotate among sets of operands."""

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
        Name in the interface.
    problem : Problem
        Description of the operation.
    kernel : str
        Kernel that dispatch selects.
    calls : dict of str to callable
        ``"blockvec"`` first, then the peers; each call advances to the next set of operands.
    config : str
        Configuration of the kernel.
    matrix : str or None
        Name of the sparse matrix, for apply.
    """

    operation: str
    problem: Problem
    kernel: str
    calls: dict[str, Call]
    config: str = ""
    matrix: str | None = None


def rotate(*operands: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Cycle endlessly through sets of operands; each list cycles at its own length."""
    return zip(*map(itertools.cycle, operands), strict=True)


def turns(function: Callable[..., object], *operands: Sequence[Any]) -> Call:
    """Bind the function to operands; each call uses the next set."""
    sets = rotate(*operands)
    return lambda: function(*next(sets))


def arrays(blocks: Sequence[BlockVector]) -> list[Array]:
    """Return the arrays of the blocks."""
    return [block.array for block in blocks]


def case(
    operation: str, problem: Problem, backend: Backend, calls: dict[str, Call], matrix: str | None = None
) -> Case:
    """Create a case with the kernel that dispatch selects; a sweep without a fused kernel takes two calls."""
    if isinstance(problem, SweepProblem) and not accepts(problem, backend):
        return Case(operation, problem, "two calls", calls, "", matrix)
    chosen = choose(problem, backend)
    return Case(operation, problem, chosen.name, calls, chosen.configuration(), matrix)
