"""The choice of a kernel for a problem on a backend under the current options."""

from __future__ import annotations

import functools
from typing import Any

from ..backends.base import Backend, Candidate
from ..errors import OptionError
from ..kernels.problem import Problem
from ..system.config import Options, options
from .profile import active_profile


def run(problem: Problem, backend: Backend, *operands: Any) -> None:
    """Run a problem on its operands with the kernel chosen for it; see `Candidate.run` for their order."""
    chosen = choose(problem, backend)
    profile = active_profile.get()
    if profile is None:
        chosen.run(problem, *operands)
        return
    watch = backend.stopwatch()
    chosen.run(problem, *operands)
    profile.record(backend, problem, chosen.name, watch)


MAX_RECENT = 4096
_recent: dict[int, tuple[Problem, Backend, Options, Candidate]] = {}


def choose(problem: Problem, backend: Backend) -> Candidate:
    """Choose the first candidate of the backend that accepts the problem.

    Choices are cached by the identity of the problem, since hashing a problem takes longer than a launch.
    """
    current = options()
    known = _recent.get(id(problem))
    if known is not None and known[0] is problem and known[1] is backend and known[2] is current:
        return known[3]
    chosen = preferred(problem, backend)
    if chosen is None:
        raise OptionError(f"{problem.operation}: no kernel on {backend.name} for {problem}.")
    if len(_recent) >= MAX_RECENT:
        _recent.clear()
    _recent[id(problem)] = problem, backend, current, chosen
    return chosen


def forget() -> None:
    """Clear the cached choices."""
    _recent.clear()
    _choose.cache_clear()


def accepts(problem: Problem, backend: Backend) -> bool:
    """Check whether a backend has a kernel for a problem."""
    known = _recent.get(id(problem))
    if known is not None and known[0] is problem and known[1] is backend:
        return True
    return preferred(problem, backend) is not None


def preferred(problem: Problem, backend: Backend) -> Candidate | None:
    """Choose a candidate under the current options; None if none accepts the problem."""
    return _choose(problem, backend, options())


@functools.lru_cache(maxsize=4096)
def _choose(problem: Problem, backend: Backend, current: Options) -> Candidate | None:
    allowed = (c for c in backend.candidates(problem) if current.three_m or not c.three_m)
    return next((c for c in allowed if not c.refusal), None)
