"""Deferral of Ctrl-C to the end of a step, where the state is consistent."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C within a block; yield a function that tells whether it was pressed.

    A second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread, or if a program has its own
    handler, signals are handled as before.

    Examples
    --------
    >>> with deferred_interrupt() as interrupted:
    ...     interrupted()
    False
    """
    pending = False

    def remember(signum: int, frame: FrameType | None) -> None:
        nonlocal pending
        if pending:
            raise KeyboardInterrupt
        pending = True

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: pending
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
