"""Rehearsals: operations on blocks make their kernels ready, many side by side, and compute nothing.

Kernels are compiled the first time they run, a few tenths of a second each, and a solver meets dozens of them
one after the other. One that knows which operations will come goes through them in a rehearsal first: as many
threads as there are cores compile, while it begins with its work.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .config import options

__all__ = ["prepare", "rehearsal", "rehearsing"]

_active: contextvars.ContextVar[bool] = contextvars.ContextVar("blockvec_rehearsal", default=False)


def rehearsing() -> bool:
    """Whether operations only make their kernels ready."""
    return _active.get()


@contextlib.contextmanager
def rehearsal() -> Iterator[None]:
    """Make ready what the operations inside the ``with`` block would run on these operands.

    Blocks and small matrices keep what they hold, and those that operations return hold anything. On the host
    there is nothing to make ready. Nothing is waited for: an operation whose kernel is being compiled waits
    when it runs.

    Examples
    --------
    >>> import blockvec
    >>> V = blockvec.BlockVector.random(1000, 4, rng=0)
    >>> with blockvec.rehearsal():
    ...     G = V.gram()
    >>> G.shape
    (4, 4)
    """
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)


def prepare(call: Callable[..., object], *operands: Any) -> None:
    """Call from a thread of its own; what goes wrong there will go wrong again where it matters."""
    _threads(options().threads).submit(contextvars.copy_context().run, call, *operands)


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="blockvec-rehearsal")
