"""Counts and times of the communication of one process, and of products with split rows."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

from ..backends import Array, backend_of, is_cupy
from ..kernels.measure import Stopwatch

# Of so many operations on a GPU one is timed, since that takes the host some 5 us: not the first ones, which
# compile kernels. The number is odd, since an exchange has two parts.
SAMPLED, FIRST_SAMPLED = 15, 4


@dataclass
class Traffic:
    """What one process has sent and waited for inside `recorded_traffic`.

    Times are those of the host: they do not include work of a GPU that has only been queued, which `gpu_s`
    estimates. Nothing counts what a CUDA graph repeats.

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
    _begun: Counter[str] = field(default_factory=Counter, repr=False)
    _watches: list[tuple[str, Stopwatch]] = field(default_factory=list, repr=False)

    @property
    def wait_s(self) -> float:
        """Seconds of waiting for other processes."""
        return self.exchange_s + self.reduction_s

    def add(self, other: Traffic) -> None:
        """Add the counts of a part."""
        for name in (entry.name for entry in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @contextlib.contextmanager
    def product(self, X: Array) -> Iterator[None]:
        """Count a product with a block inside the ``with`` block."""
        begin_s, waited_s = time.perf_counter(), self.wait_s
        stop = self.watch("product", X)
        yield
        stop()
        self.products += 1
        self.product_s += time.perf_counter() - begin_s - (self.wait_s - waited_s)

    def watch(self, kind: str, array: Array) -> Callable[[], object]:
        """Begin an operation on an array; call the function returned when it has been queued."""
        if is_cupy(array):
            self._begun[kind] += 1
            if self._begun[kind] % SAMPLED == FIRST_SAMPLED:
                backend = backend_of(array)
                if not backend.xp.cuda.get_current_stream().is_capturing():
                    self._watches.append((kind, backend.stopwatch()))
                    return self._watches[-1][1].stop
        return bool  # which does nothing

    def gpu_s(self, kind: str) -> float:
        """Estimate the seconds of all operations of a kind on a GPU: 0 without one; waits for it.

        Kinds are ``"product"``, with its exchange, ``"exchange"`` and ``"reduction"``.
        """
        seconds = [watch.seconds() for name, watch in self._watches if name == kind]
        return sum(seconds) / max(len(seconds), 1) * self._begun[kind]


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
