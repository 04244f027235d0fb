"""The one place that chooses a kernel: (problem, backend, options) -> implementation, and the reason."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from .backends.base import Backend, Candidate
from .config import Options, options
from .errors import OptionError
from .kernels.problem import Problem
from .kernels.roofline import flops, gather_time, time_limit, traffic
from .precompile import prepare, rehearsing
from .profile import ceilings, running

__all__ = ["Explanation", "accepts", "choose", "explain_problem", "forget", "run"]


def run(problem: Problem, backend: Backend, *operands: Any) -> None:
    """Run a problem on its operands (see `Candidate.run` for their order) with the kernel chosen for it.

    In a rehearsal it is made ready instead.
    """
    chosen = choose(problem, backend, *operands)
    if rehearsing():
        prepare(chosen.prepare, problem, *operands)
        return
    profile = running()
    if profile is None:
        chosen.run(problem, *operands)
        return
    watch = backend.stopwatch()
    chosen.run(problem, *operands)
    profile.record(backend, problem, chosen.name, watch)


MAX_RECENT = 4096
_recent: dict[int, tuple[Problem, Backend, Options, Candidate]] = {}


def choose(problem: Problem, backend: Backend, *operands: Any) -> Candidate:
    """Return the first candidate of the backend that accepts the problem.

    What was chosen for this very object under these options is found without hashing them. The operands
    are what a sparse product is tuned on.
    """
    current = options()
    known = _recent.get(id(problem))
    if known is not None and known[0] is problem and known[1] is backend and known[2] is current:
        return known[3]
    if current.tune == "auto" and backend.can_tune(problem, *operands):
        backend.tune(problem, ceilings(backend), current.tune_budget_s, *operands)
        forget()
    chosen = _chosen(problem, backend, current)
    if chosen is None:
        raise OptionError(f"{problem.operation}: no kernel on {backend.name} for {problem}.")
    if len(_recent) >= MAX_RECENT:
        _recent.clear()
    _recent[id(problem)] = problem, backend, current, chosen
    return chosen


def forget() -> None:
    """Choose anew from now on, because something was tuned."""
    _recent.clear()
    _choose.cache_clear()


def accepts(problem: Problem, backend: Backend) -> bool:
    """Whether a backend has a kernel for a problem."""
    known = _recent.get(id(problem))
    if known is not None and known[0] is problem and known[1] is backend:
        return True
    return _chosen(problem, backend, options()) is not None


def _chosen(problem: Problem, backend: Backend, current: Options) -> Candidate | None:
    return _choose(problem, backend, current.vendor, current.threads, current.tune, current.cache_dir)


@functools.lru_cache(maxsize=4096)
def _choose(
    problem: Problem, backend: Backend, vendor: bool, _threads: int, _tune: str, _cache_dir: Path
) -> Candidate | None:
    accepted = [c for c in backend.candidates(problem) if not c.refusal]
    own = [c for c in accepted if not c.vendor]
    return next(iter(own if own and not vendor else accepted), None)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What runs a problem and why.

    Attributes
    ----------
    problem : Problem
        The description that the choice depends on.
    device : str
        Where it runs.
    kernel : str
        The implementation chosen.
    configuration : str
        What it is run with and where that choice came from; empty where there is nothing to choose.
    considered : tuple of (str, str)
        Every implementation in order of preference, with the reason it was passed over ("" for those usable).
    bytes_moved, flops : int
        The problem's compulsory traffic in bytes and its floating-point operations.
    time_limit_s : float
        The shortest time in seconds that the measured ceilings allow.
    gather_time_s : float or None
        Of a sparse product on a GPU, the time in which L2 delivers a row of X for every entry.
    """

    problem: Problem
    device: str
    kernel: str
    configuration: str
    considered: tuple[tuple[str, str], ...]
    bytes_moved: int
    flops: int
    time_limit_s: float
    gather_time_s: float | None = None

    def __str__(self) -> str:
        """Lay the explanation out as text."""
        lines = [
            f"{self.problem.operation} on {self.device}: {self.kernel}",
            f"  problem   {self.problem}",
            f"  roofline  {self.bytes_moved / 1e6:.3f} MB, {self.flops / 1e6:.3f} Mflop, "
            f"at least {self.time_limit_s * 1e6:.1f} us",
        ]
        if self.gather_time_s is not None:
            lines.append(f"  gathering {self.gather_time_s * 1e6:.1f} us where every row of X comes from L2")
        if self.configuration:
            lines.append(f"  run with  {self.configuration}")
        for name, refusal in self.considered:
            verdict = "chosen" if name == self.kernel else refusal or "usable, not preferred"
            lines.append(f"  {name:20} {verdict}")
        return "\n".join(lines)


def explain_problem(problem: Problem, backend: Backend) -> Explanation:
    """Say what would run a problem and why; measures the device's ceilings if nobody did."""
    chosen, limits = choose(problem, backend), ceilings(backend)
    return Explanation(
        problem=problem,
        device=f"{backend.name} ({backend.device.name})",
        kernel=chosen.name,
        configuration=chosen.configuration(),
        considered=tuple((c.name, c.refusal) for c in backend.candidates(problem)),
        bytes_moved=traffic(problem).total_bytes,
        flops=flops(problem),
        time_limit_s=time_limit(problem, limits),
        gather_time_s=gather_time(problem, limits),
    )
