"""Compiling what a benchmark is about to run, in parallel processes, before it begins."""

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

__all__ = ["COMPILE_S", "compile_ahead", "sources"]

COMPILE_S = 60.0  # for one kernel, which takes a tenth to two of them


def sources(problems: Iterable[Problem], backend: Backend) -> Iterable[str]:
    """Yield the sources of the kernels that dispatch chooses."""
    return (choose(problem, backend).source() for problem in problems)


def compile_ahead(sources: Iterable[str], backend: Backend) -> None:
    """Compile sources into the cache; what the compiler has against one is said where it is run."""
    with Workers(os.cpu_count() or 1, COMPILE_S) as compilers:
        jobs = [
            compilers.submit(_build, source, backend.device.architecture, options().cache_dir)
            for source in dict.fromkeys(sources)
            if source
        ]
        concurrent.futures.wait(jobs)


def _build(source: str, architecture: str, cache_dir: Path) -> None:
    build(source, architecture, cache_dir=cache_dir)
