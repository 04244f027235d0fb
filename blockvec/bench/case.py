"""One operation ready to be measured: calls of blockvec and its peers that rotate among sets of operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ..backends import Array, Backend
from ..blockvector import BlockVector
from ..dispatch import accepts, choose
from ..kernels.problem import Problem
from ..system.frozen import frozen

Call = Callable[[], object]


@frozen
class Case:
    """One operation on operands of one shape."""

    operation: str  # its name in the interface
    problem: Problem
    kernel: str  # that dispatch selects
    calls: dict[str, Call]  # "blockvec" first, then the peers; each call advances to the next set of operands
    config: str  # of the kernel
    matrix: str | None  # name of the sparse matrix, for apply


def turns(function: Callable[..., object], *operands: Sequence[Any]) -> Call:
    """Bind the function to operands; each call uses the next set, and each list cycles at its own length."""
    sets = zip(*map(itertools.cycle, operands), strict=True)
    return lambda: function(*next(sets))


def arrays(blocks: Sequence[BlockVector]) -> list[Array]:
    """Return the arrays of the blocks."""
    return [block.array for block in blocks]


def case(
    operation: str,
    problem: Problem,
    backend: Backend,
    calls: dict[str, Call],
    *,
    apart: str,
    matrix: str | None = None,
) -> Case:
    """Create a case with the kernel that dispatch selects; without a fused kernel it is named `apart`."""
    if not accepts(problem, backend):
        return Case(operation, problem, apart, calls, "", matrix)
    chosen = choose(problem, backend)
    return Case(operation, problem, chosen.name, calls, chosen.configuration(), matrix)
