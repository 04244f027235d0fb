"""Log of the problems and the choice-free kernels that a run of block operations asks for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

__all__ = ["logged", "note"]

_log: contextvars.ContextVar[dict[int, Any] | None] = contextvars.ContextVar(
    "blockvec_requests", default=None
)


def note(request: Any) -> None:
    """Add a frozen description to the log in force, if there is one.

    Entries are found by identity, because hashing a description takes longer than a call should. The log
    keeps each object alive, so that its identity stays its own.
    """
    log = _log.get()
    if log is not None:
        log[id(request)] = request


@contextlib.contextmanager
def logged() -> Iterator[dict[int, Any]]:
    """Collect what operations inside the ``with`` block ask for, in their order."""
    log: dict[int, Any] = {}
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)
