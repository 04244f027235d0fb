"""The progress of a solve: a bar, messages of the logger ``blockvec``, and Ctrl-C at the end of a step."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

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


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C within a block; yield a function that tells whether it was pressed.

    A second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread, or if a program has its own
    handler, signals are handled as before.
    """
    pending: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        if pending:
            raise KeyboardInterrupt
        pending.append(signum)

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield functools.partial(bool, pending)
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield functools.partial(bool, pending)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
