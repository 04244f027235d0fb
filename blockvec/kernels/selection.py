"""Which configuration a kernel runs: that chosen before, the fastest measured on this device, or the model's.

Measurements (`tests/benchmarks/tune.py`) are one file per device in the user's cache folder. Whatever cannot
be read there counts as missing, and so does a configuration that is unknown to this version, or invalid.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from pathlib import Path
from typing import Any

from ..system.config import options
from ..system.frozen import frozen
from .device import DeviceInfo
from .families import CONFIGURED, config_from, is_valid
from .family import AnyFamily
from .problem import Problem, SpmmvProblem, TsmmProblem, TsmttsmProblem, in_class
from .records import load

VERSION = 4
"""Of the models and their lists: raised by hand when these change, so that measurements are repeated."""
ANY_PITCH = 0  # leading dimension that stands for all that exceed the width
MODEL = "the model's choice"


@frozen
class Selection:
    """A kernel, the configuration that it runs, and where the choice comes from."""

    kernel: str  # name of a family, or of a vendor's kernel
    config: Any  # the family's configuration; None for a vendor's kernel
    origin: str  # as text for `explain`


def choose(family: AnyFamily, problem: Problem, device: DeviceInfo) -> Selection:
    """Choose the configuration of a family for a problem that it supports."""
    current = options()
    return _chosen(family, problem, device, current.tune, current.cache_dir)


@functools.lru_cache(maxsize=4096)
def _chosen(family: AnyFamily, problem: Problem, device: DeviceInfo, tune: str, cache_dir: Path) -> Selection:
    known = measured(problem, device)
    if known is not None and known.kernel == family.name:
        return known
    return Selection(family.name, _by_model(family, family.alike(problem), device), MODEL)


@functools.lru_cache(maxsize=4096)
def _by_model(family: AnyFamily, problem: Problem, device: DeviceInfo) -> Any:
    return family.choose(problem, device)


def measured(problem: Problem, device: DeviceInfo) -> Selection | None:
    """Return the kernel that was the fastest for problems of this kind, on this device; None if unknown."""
    current = options()
    if device.kind != "cuda" or current.tune == "model":
        return None
    found = _measurements(current.cache_dir, device)
    record = found.get(_key(problem)) if found else None
    if not isinstance(record, dict) or not isinstance(kernel := record.get("kernel"), str):
        return None
    origin = f"measured on this {device.name}"
    if record.get("config") is None:
        return None if kernel in CONFIGURED else Selection(kernel, None, origin)
    config = config_from(kernel, record["config"])
    if config is None or not is_valid(CONFIGURED[kernel], problem, config, device):
        return None
    return Selection(kernel, config, origin)


def _path(cache_dir: Path, device: DeviceInfo) -> Path:
    return cache_dir / "measured" / device.fingerprint


@functools.cache
def _measurements(cache_dir: Path, device: DeviceInfo) -> dict[str, Any]:
    """Load what this version measured."""
    fields, _ = load(_path(cache_dir, device), device.fingerprint) or ({}, b"")
    kernels = fields.get("kernels")
    return kernels if fields.get("version") == VERSION and isinstance(kernels, dict) else {}


def _key(problem: Problem) -> str:
    """Hash the kind of a problem: its class of rows, whatever its pitches, factors and conjugation."""
    kind: Any = in_class(problem)
    if isinstance(problem, SpmmvProblem):
        steps = round(
            4 * math.log2(max(1.0, problem.nnz / problem.n_rows))
        )  # of entries per row, a fifth each
        kind = dataclasses.replace(kind.kind, n_cols=1, nnz=steps, longest=0)
        kind = _with_pitches(kind, ("ldx", kind.width), ("ldy", kind.width))
    elif isinstance(kind, TsmttsmProblem | TsmmProblem):
        kind = _with_pitches(kind, ("lda", kind.M), ("ldb", kind.N))
        beta = "zero" if kind.beta == "zero" or isinstance(kind, TsmttsmProblem) else "general"
        kind = dataclasses.replace(kind, alpha="one", beta=beta)
    return hashlib.sha256(repr(kind).encode()).hexdigest()[:24]


def _with_pitches(kind: Any, *widths: tuple[str, int]) -> Any:
    return dataclasses.replace(
        kind, **{name: width if getattr(kind, name) == width else ANY_PITCH for name, width in widths}
    )
