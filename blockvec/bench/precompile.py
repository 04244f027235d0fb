"""Parallel compilation of the kernels of a benchmark before it begins."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Iterable
from pathlib import Path

from ..backends import Backend
from ..config import options
from ..dispatch import choose
from ..kernels.compile import build
from ..kernels.problem import Problem
from .workers import Workers

COMPILE_S = 60.0  # per kernel; 0.1 to 2 s are usual


def sources(problems: Iterable[Problem], backend: Backend) -> Iterable[str]:
    """Yield the sources of the kernels that dispatch selects."""
    return (choose(problem, backend).source() for problem in problems)


def compile_ahead(sources: Iterable[str], backend: Backend) -> None:
    """Compile sources into the cache; compiler errors are ignored here, the launch raises them."""
    with Workers(os.cpu_count() or 1, COMPILE_S) as compilers:
        jobs = [
            compilers.submit(_build, source, backend.device.architecture, options().cache_dir)
            for source in dict.fromkeys(sources)
            if source
        ]
        concurrent.futures.wait(jobs)


def _build(source: str, architecture: str, cache_dir: Path) -> None:
    build(source, architecture, cache_dir=cache_dir)
