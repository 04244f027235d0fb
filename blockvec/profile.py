"""Profiles: calls, time and fraction of the measured roofline per kernel.

The ceilings of a device are measured once and stored in the user's cache under the device's fingerprint.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypedDict

from .backends import backend_for
from .backends.base import Backend
from .config import options
from .kernels.cache import load_json, store_json
from .kernels.measure import Stopwatch, measure_ceilings
from .kernels.problem import Problem
from .kernels.roofline import Ceilings, time_limit, traffic
from .traffic import Traffic, recorded_traffic

MAX_PENDING = 4096  # intervals not read yet; reading waits for the work, which for the oldest is complete


class ProfileRow(TypedDict):
    """Totals of one kernel; `fraction` is the time that the roofline allows over the time taken."""

    device: str
    operation: str
    dtype: str
    kernel: str
    calls: int
    time_s: float
    bytes_moved: int
    bandwidth_gb_s: float
    fraction: float


_Kernel: TypeAlias = tuple[Backend, str, str, str]  # with the operation, the type and the kernel's name


class Profile:
    """Times of the kernels that ran inside a ``with blockvec.profile()`` block.

    On a GPU a call records two events and does not wait; `rows` and `table` wait. If rows are split over
    processes, exchanges of halos and sums have rows of their own, with the time that this process waited and
    the bytes that it sent; their limit is one copy of these in memory, as within a computer.

    Attributes
    ----------
    traffic : Traffic
        Counts of the communication.
    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._pending: list[tuple[Backend, Problem, str, Stopwatch]] = []
        self._calls: dict[_Kernel, Counter[Problem]] = defaultdict(Counter)
        self._times_s: dict[_Kernel, float] = defaultdict(float)

    def record(self, backend: Backend, problem: Problem, kernel: str, watch: Stopwatch) -> None:
        """Record one call that has been queued, and stop its `watch`."""
        watch.stop()
        self._pending.append((backend, problem, kernel, watch))
        if len(self._pending) >= MAX_PENDING:
            self._settle(MAX_PENDING // 2)

    def _settle(self, count: int) -> None:
        settled, self._pending = self._pending[:count], self._pending[count:]
        for backend, problem, kernel, watch in settled:
            key = backend, problem.operation, problem.dtype, kernel
            self._calls[key][problem] += 1
            self._times_s[key] += watch.seconds()

    def rows(self) -> list[ProfileRow]:
        """List one row per kernel, the longest total time first."""
        self._settle(len(self._pending))
        rows = []
        for (backend, operation, dtype, kernel), time_s in self._times_s.items():
            limits, counts = ceilings(backend), self._calls[backend, operation, dtype, kernel]
            bytes_moved = sum(calls * traffic(problem).total_bytes for problem, calls in counts.items())
            limit_s = sum(calls * time_limit(problem, limits) for problem, calls in counts.items())
            row = ProfileRow(
                device=backend.name,
                operation=operation,
                dtype=dtype,
                kernel=kernel,
                calls=counts.total(),
                time_s=time_s,
                bytes_moved=bytes_moved,
                bandwidth_gb_s=bytes_moved / (time_s or math.inf) * 1e-9,
                fraction=limit_s / (time_s or math.inf),
            )
            rows.append(row)
        rows += self._communication()
        return sorted(rows, key=lambda row: -row["time_s"])

    def _communication(self) -> list[ProfileRow]:
        """List the exchanges and the sums, if there were any."""
        counted = self.traffic
        kinds = {
            "exchange": (counted.exchanges, counted.exchange_bytes, counted.exchange_s),
            "sum": (counted.reductions, counted.reduction_bytes, counted.reduction_s),
        }
        copy_gb_s = ceilings(backend_for("cpu")).copy_gb_s if any(kinds["sum"] + kinds["exchange"]) else 1.0
        return [
            ProfileRow(
                device="cpu",
                operation=operation,
                dtype="",
                kernel="processes",
                calls=calls,
                time_s=time_s,
                bytes_moved=sent,
                bandwidth_gb_s=sent / (time_s or math.inf) * 1e-9,
                fraction=2 * sent / copy_gb_s / (time_s or math.inf) * 1e-9,
            )
            for operation, (calls, sent, time_s) in kinds.items()
            if calls
        ]

    def table(self) -> str:
        """Format the rows as text."""
        head = (
            f"{'operation':12} {'type':10} {'kernel':20} {'calls':>7} {'time s':>9} {'GB/s':>8} {'limit':>8}"
        )
        lines = [
            f"{row['operation']:12} {row['dtype']:10} {row['kernel']:20} {row['calls']:7d} "
            f"{row['time_s']:9.3f} {row['bandwidth_gb_s']:8.1f} {row['fraction']:7.0%}"
            for row in self.rows()
        ]
        return "\n".join([head, *lines])


active_profile: contextvars.ContextVar[Profile | None] = contextvars.ContextVar(
    "blockvec_profile", default=None
)
"""The profile that calls are recorded in; None outside of `profile`."""


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Record every block operation inside the ``with`` block.

    Examples
    --------
    >>> import blockvec
    >>> V = blockvec.BlockVector.random(100000, 4, rng=0)
    >>> with blockvec.profile() as p:
    ...     G = V.gram()
    >>> [row["operation"] for row in p.rows()]
    ['gram']
    """
    current = Profile()
    token = active_profile.set(current)
    try:
        with recorded_traffic() as current.traffic:
            yield current
    finally:
        active_profile.reset(token)


known_ceilings: dict[str, Ceilings] = {}
"""Ceilings that this process has measured or read, by fingerprint of the device."""


def ceilings(
    backend: Backend, *, refresh: bool = False, before_each: Callable[[], object] | None = None
) -> Ceilings:
    """Look up the ceilings of a device in this process and the user's cache, or measure them.

    Measurements call `before_each` before each of them; `refresh` repeats them.
    """
    key = backend.device.fingerprint
    if key in known_ceilings and not refresh:
        return known_ceilings[key]
    path = options().cache_dir / "ceilings" / f"{key}.json"
    found = None if refresh else _parse_ceilings((load_json(path) or {}).get("ceilings"))
    if found is None:
        found = measure_ceilings(backend.ceiling_probes(), backend.stopwatch, before_each)
        device = dataclasses.asdict(backend.device)
        store_json(path, {"device": device, "ceilings": dataclasses.asdict(found)})
    known_ceilings[key] = found
    return found


def _parse_ceilings(record: Any) -> Ceilings | None:
    """Rebuild a stored record; None if it is incomplete, so that the ceilings are measured again."""
    try:
        rates = {str(name): float(rate) for name, rate in record["gflop_s"].items()}
        read, write, copy = (float(record[name]) for name in ("read_gb_s", "write_gb_s", "copy_gb_s"))
        l2 = float(record["l2_gb_s"])
        mixes = tuple((float(share), float(rate)) for share, rate in record["mixed_gb_s"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    positive = (read, write, copy, *rates.values(), *(rate for _, rate in mixes))
    usable = all(0 < rate < math.inf for rate in positive) and 0 <= l2 < math.inf
    usable = usable and all(0 <= share <= 1 for share, _ in mixes)
    return Ceilings(read, write, copy, rates, l2, mixes) if usable else None
