"""Counts and times of the communication of one process, and of products with split rows."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass
class Traffic:
    """What one process has sent and waited for inside `recorded_traffic`.

    Times are those of the host: they do not include work of a GPU that has only been queued, and nothing
    counts what a CUDA graph repeats.

    Attributes
    ----------
    products : int
        Products with operators whose rows are split.
    product_s : float
        Seconds in products, without those of waiting.
    exchanges, exchange_bytes, exchange_s : int, int, float
        Exchanges of halos: their number, the bytes sent, and the seconds spent waiting.
    reductions, reduction_bytes, reduction_s : int, int, float
        Sums and maxima over all processes, likewise; waiting includes that for slower processes.
    """

    products: int = 0
    product_s: float = 0.0
    exchanges: int = 0
    exchange_bytes: int = 0
    exchange_s: float = 0.0
    reductions: int = 0
    reduction_bytes: int = 0
    reduction_s: float = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds of waiting for other processes."""
        return self.exchange_s + self.reduction_s

    def add(self, other: Traffic) -> None:
        """Add the counts of a part."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @contextlib.contextmanager
    def product(self) -> Iterator[None]:
        """Count a product inside the ``with`` block."""
        begin_s, waited_s = time.perf_counter(), self.wait_s
        yield
        self.products += 1
        self.product_s += time.perf_counter() - begin_s - (self.wait_s - waited_s)


active_traffic: contextvars.ContextVar[Traffic] = contextvars.ContextVar("blockvec_traffic")
"""The counts of the innermost `recorded_traffic`."""


def current_traffic() -> Traffic:
    """Return the counts to add to; outside of `recorded_traffic` nobody reads them."""
    return active_traffic.get(None) or Traffic()


@contextlib.contextmanager
def recorded_traffic() -> Iterator[Traffic]:
    """Count communication inside the ``with`` block; an enclosing block counts it, too.

    Examples
    --------
    >>> from blockvec import BlockVector
    >>> from blockvec.parallel import recorded_traffic
    >>> with recorded_traffic() as traffic:
    ...     G = BlockVector.full(10, 2, 1).gram()
    >>> traffic.reductions  # one process sends nothing
    0
    """
    outer, traffic = active_traffic.get(None), Traffic()
    token = active_traffic.set(traffic)
    try:
        yield traffic
    finally:
        active_traffic.reset(token)
        if outer is not None:
            outer.add(traffic)
