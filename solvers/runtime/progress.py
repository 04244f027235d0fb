"""The progress of a solve: a bar, and messages of the logger ``blockvec``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import numpy as np

from ..problem import IterationState, excess

logger = logging.getLogger("blockvec")


def describe(state: IterationState) -> str:
    """Describe the state of an iteration in one line."""
    worst = float(np.max(excess(state.residuals, state.limits)))
    return (
        f"restart {state.restart + 1}, {state.operator_columns} columns: {state.converged} of "
        f"{len(state.eigenvalues)} converged, worst residual {worst:.1e} times its limit"
    )


@contextlib.contextmanager
def counted_bar(first: str) -> Iterator[Callable[[int, str, int], object]]:
    """Show a bar on stderr or in a notebook, at first with a text.

    Yields a function of the number that is done, a text, and the number of all.
    """
    from rich.console import Console  # takes longer to import than the solvers
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    console = Console(stderr=True)
    hidden = not (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(first, total=None)

        def update(done: int, text: str, total: int) -> None:
            progress.update(task, description=text, completed=done, total=total)

        yield update


@contextlib.contextmanager
def progress_bar(
    callback: Callable[[IterationState], object] | None,
) -> Iterator[Callable[[IterationState], object]]:
    """Show a bar on stderr or in a notebook; yield a callback that updates it and then calls `callback`."""
    with counted_bar("first restart") as update:

        def show(state: IterationState) -> object:
            total, text = len(state.eigenvalues), describe(state)
            if state.converged == total:
                text = f"{total} converged, checking for missed copies"
            update(state.converged, text, total)
            return None if callback is None else callback(state)

        yield show
