"""Choices of the models on disk: to choose a configuration, a model predicts hundreds of times in Python.

Those of common solves are installed with the package (`installed_choices`), others kept in the cache folder.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

from ...config import options
from ..cache import load_json, store_json
from ..device import DeviceInfo
from ..families import config_from, is_valid
from ..family import AnyFamily
from ..problem import Problem
from .installed_choices import KEY_DIGITS, installed_choices, models

MAX_CHOICES = 4000
"""Choices per device and cache folder; a solve makes 20 to 100."""


def choose(family: AnyFamily, problem: Problem, device: DeviceInfo) -> Any:
    """Choose a configuration by the family's model, or as it chose in an earlier process."""
    return _choose(family, family.alike(problem), device, options().cache_dir)


@functools.lru_cache(maxsize=4096)
def _choose(family: AnyFamily, problem: Problem, device: DeviceInfo, cache_dir: Path) -> Any:
    key = hashlib.sha256(f"{family.name} {problem}".encode()).hexdigest()[:KEY_DIGITS]
    installed = installed_choices(device)
    choices = _choices(cache_dir, device)
    for record in (None if installed is None else installed.get(key), choices.get(key)):
        config = config_from(family.name, record)
        if config is not None and is_valid(family, problem, config, device):
            return config
    config = family.choose(problem, device)
    if len(choices) < MAX_CHOICES:
        choices[key] = dataclasses.asdict(config)
        _unsaved.add(_path(cache_dir, device))
    return config


def made_choices(device: DeviceInfo) -> dict[str, Any]:
    """Return the choices of the models that the cache folder holds for a device, as records by key."""
    return dict(_choices(options().cache_dir, device))


def save_choices(device: DeviceInfo) -> None:
    """Write the choices for a device to the cache folder, if there are new ones."""
    path = _path(options().cache_dir, device)
    if path in _unsaved:
        _unsaved.discard(path)
        store_json(path, {"models": models(), "choices": made_choices(device)})


_unsaved: set[Path] = set()


def _path(cache_dir: Path, device: DeviceInfo) -> Path:
    return cache_dir / "choices" / f"{device.fingerprint}.json"


@functools.cache
def _choices(cache_dir: Path, device: DeviceInfo) -> dict[str, Any]:
    """Load the choices that these models made; those of others do not count."""
    record = load_json(_path(cache_dir, device)) or {}
    choices = record.get("choices")
    return choices if record.get("models") == models() and isinstance(choices, dict) else {}
