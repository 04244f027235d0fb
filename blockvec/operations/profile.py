"""Profiles: calls, time and fraction of the measured roofline per kernel and per part of a solve.

The ceilings of a device are measured once and stored in the user's cache under the device's fingerprint.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

from ..backends import backend_for
from ..backends.base import Backend
from ..kernels.measure import Stopwatch, measure_ceilings
from ..kernels.problem import Problem, SpmmvProblem, StreamProblem
from ..kernels.records import load, store
from ..kernels.roofline import Ceilings, time_limit, traffic
from ..parallel.traffic import Traffic, current_traffic, recorded_traffic
from ..system.config import options

MAX_PENDING = 4096  # intervals not read yet; reading waits for the work, which for the oldest is complete

Function = TypeVar("Function", bound=Callable[..., Any])


class ProfileRow(TypedDict):
    """Totals of one kernel in one part of a solve.

    `fraction` is the time that the roofline allows over the time taken; 0 where no limit is known.
    """

    part: str
    device: str
    operation: str
    dtype: str
    kernel: str
    calls: int
    time_s: float
    bytes_moved: int
    bandwidth_gb_s: float
    fraction: float


class PartRow(TypedDict):
    """Totals of one part of a solve: a sum of rows, of which `fraction` is that of all their time."""

    part: str
    time_s: float
    fraction: float


_Kernel: TypeAlias = tuple[str, Backend, str, str, str]  # part, device, operation, type, name of the kernel


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
        self._begin_s, self._end_s = time.perf_counter(), math.nan
        self._part = "other blocks"  # that calls are recorded for, sparse products excepted
        self._is_on_host, self._host_s = True, 0.0  # whether all work was on the host, and its seconds so far
        self._pending: list[tuple[Backend, Problem, str, Stopwatch, str]] = []  # calls on GPUs
        self._calls: dict[_Kernel, Counter[Problem]] = defaultdict(Counter)
        self._times_s: dict[_Kernel, float] = defaultdict(float)

    def record(self, backend: Backend, problem: Problem, kernel: str, watch: Stopwatch) -> None:
        """Record one call that has been queued, and stop its `watch`."""
        watch.stop()
        part = "products" if isinstance(problem, SpmmvProblem) else self._part
        if backend.name == "cpu":
            self._host_s += watch.seconds()
            self._add(backend, problem, kernel, watch.seconds(), part)
            return
        self._is_on_host = False
        self._pending.append((backend, problem, kernel, watch, part))
        if len(self._pending) >= MAX_PENDING:
            self._settle(MAX_PENDING // 2)

    def _add(
        self, backend: Backend, problem: Problem, kernel: str, time_s: float, part: str | None = None
    ) -> None:
        key = part or self._part, backend, problem.operation, problem.dtype, kernel
        self._calls[key][problem] += 1
        self._times_s[key] += time_s

    def _settle(self, count: int) -> None:
        settled, self._pending = self._pending[:count], self._pending[count:]
        for backend, problem, kernel, watch, part in settled:
            self._add(backend, problem, kernel, watch.seconds(), part)

    @staticmethod
    def timed(
        part: str = "", moved: Callable[..., tuple[str, int, int]] = lambda *_, **__: ("float64", 0, 0)
    ) -> Callable[[Function], Function]:
        """Decorate a function of the host that does work of its own: profiles record it as a kernel.

        What is recorded inside of it is not counted twice. On a GPU, whose work the host only queues, nothing
        is recorded.

        Parameters
        ----------
        part : str
            Part of a solve that the function belongs to; default: that of its caller.
        moved : callable, optional
            Maps the arguments of the function to the name of a type, and the numbers of elements of it that
            the function must read and write.

        Examples
        --------
        >>> import blockvec
        >>> @blockvec.Profile.timed("statistics")
        ... def spread(V):
        ...     return float(V.norms().std())
        >>> with blockvec.profile() as p:
        ...     _ = spread(blockvec.BlockVector.random(1000, 4, rng=0))
        >>> [(row["part"], row["operation"]) for row in p.rows() if row["operation"] == "spread"]
        [('statistics', 'spread')]
        """

        def decorated(function: Function) -> Function:
            @functools.wraps(function)
            def watched(*arguments: Any, **options: Any) -> Any:
                profile = active_profile.get()
                if profile is None:
                    return function(*arguments, **options)
                work = function.__name__.lstrip("_"), 1, 1, *moved(*arguments, **options), 0
                outer, profile._part = profile._part, part or profile._part
                begin_s, known_s = time.perf_counter(), profile._host_s + current_traffic().wait_s
                try:
                    return function(*arguments, **options)
                finally:
                    inside_s = profile._host_s + current_traffic().wait_s - known_s
                    own_s = time.perf_counter() - begin_s - inside_s
                    if profile._is_on_host:
                        profile._add(backend_for("cpu"), StreamProblem(*work), "host", own_s)
                        profile._host_s += own_s
                    profile._part = outer

            return cast(Function, watched)

        return decorated

    @property
    def time_s(self) -> float:
        """Seconds of the ``with`` block, so far or in all."""
        return (time.perf_counter() if math.isnan(self._end_s) else self._end_s) - self._begin_s

    def rows(self) -> list[ProfileRow]:
        """List one row per kernel, the longest total time first."""
        self._settle(len(self._pending))
        rows = []
        for key, time_s in self._times_s.items():
            part, backend, *named = key
            limits, counts = ceilings(backend), self._calls[key]
            bytes_moved = sum(calls * traffic(problem).total_bytes for problem, calls in counts.items())
            limit_s = sum(calls * time_limit(problem, limits) for problem, calls in counts.items())
            rows.append(_row(part, backend.name, *named, counts.total(), time_s, bytes_moved, limit_s))
        counted = self.traffic
        for operation, calls, sent, time_s in (
            ("exchange", counted.exchanges, counted.exchange_bytes, counted.exchange_s),
            ("sum", counted.reductions, counted.reduction_bytes, counted.reduction_s),
        ):
            if calls:
                limit_s = 2e-9 * sent / ceilings(backend_for("cpu")).copy_gb_s
                named = [operation, "", "processes"]
                rows.append(_row("communication", "cpu", *named, calls, time_s, sent, limit_s))
        return sorted(rows, key=lambda row: -row["time_s"])

    def parts(self) -> list[PartRow]:
        """List the parts of the block and, as "rest" and "total", what is in none of them and all of it.

        The time of a GPU's kernels counts: the rest is what the host does while these do not run.
        """
        rows = self.rows()
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in rows:
            for name in (row["part"], "total"):
                totals[name][0] += row["time_s"]
                totals[name][1] += row["fraction"] * row["time_s"]
        known_s, limit_s = totals.pop("total", (0.0, 0.0))
        total_s = max(self.time_s, known_s)
        totals |= {"rest": [total_s - known_s, 0.0], "total": [total_s, limit_s]}
        return [PartRow(part=name, time_s=t, fraction=s / (t or math.inf)) for name, (t, s) in totals.items()]

    def table(self) -> str:
        """Format the rows and the parts as text."""
        head = f"{'part':17} {'operation':15} {'type':10} {'kernel':14} {'calls':>7}"
        lines = [f"{head} {'time s':>9} {'GB/s':>8} {'limit':>6}"]
        for row in self.rows():
            kernel = f"{row['operation']:15} {row['dtype']:10} {row['kernel']:14} {row['calls']:7d}"
            moved = f"{row['bandwidth_gb_s']:8.1f}" if row["bytes_moved"] else f"{'-':>8}"
            lines.append(f"{row['part']:17} {kernel} {row['time_s']:9.3f} {moved} {_percentage(row)}")
        parts = self.parts()
        lines += ["", f"{'part':{len(head)}} {'time s':>9} {'share':>8} {'limit':>6}"]
        for part in parts:
            share = part["time_s"] / (parts[-1]["time_s"] or math.inf)
            lines.append(f"{part['part']:{len(head)}} {part['time_s']:9.3f} {share:8.0%} {_percentage(part)}")
        return "\n".join([*lines, "", LEGEND])


def _row(*values: Any) -> ProfileRow:
    """Make a row of its fields up to `bytes_moved`, and the seconds that the roofline allows."""
    *first, time_s, bytes_moved, limit_s = values
    taken_s = time_s or math.inf
    rates = bytes_moved / taken_s * 1e-9, limit_s / taken_s
    named = zip(ProfileRow.__annotations__, (*first, time_s, bytes_moved, *rates), strict=True)
    return cast(ProfileRow, dict(named))


def _percentage(row: ProfileRow | PartRow) -> str:
    return f"{row['fraction']:6.0%}" if row["fraction"] else f"{'-':>6}"


LEGEND = """\
limit  the least time that the measured rates of memory and arithmetic permit, as a share of the time taken;
       more than 100% where operands stay in a cache, - where no limit is known
GB/s   bytes that have to be read and written, per time"""

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
        current._end_s = time.perf_counter()
        active_profile.reset(token)


known_ceilings: dict[str, Ceilings] = {}
"""Ceilings that this process has measured or read, by fingerprint of the device."""


def ceilings(backend: Backend, *, refresh: bool = False) -> Ceilings:
    """Look up the ceilings of a device in this process and the user's cache, or measure them.

    `refresh` measures them again.
    """
    key = backend.device.fingerprint
    if key in known_ceilings and not refresh:
        return known_ceilings[key]
    path = options().cache_dir / "ceilings" / key
    record = None if refresh else load(path, key)
    found = record and _rebuilt(record[0].get("ceilings"))
    if found is None:
        found = measure_ceilings(backend.ceiling_probes(), backend.stopwatch)
        device = dataclasses.asdict(backend.device)
        store(path, key, {"device": device, "ceilings": dataclasses.asdict(found)})
    known_ceilings[key] = found
    return found


def _rebuilt(stored: Any) -> Ceilings | None:
    """Rebuild ceilings from a record; None if another version wrote it, so that they are measured again."""
    names = {field.name for field in dataclasses.fields(Ceilings)}
    if not isinstance(stored, dict) or stored.keys() != names:
        return None
    return Ceilings(**stored | {"mixed_gb_s": tuple(map(tuple, stored["mixed_gb_s"]))})
