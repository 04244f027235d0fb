"""The file of the fastest kernels measured on a device, which `blockvec.kernels.selection` reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from blockvec.kernels import selection
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.problem import Problem
from blockvec.kernels.records import store
from blockvec.kernels.selection import Selection
from blockvec.system.config import options

__all__ = ["record_measured"]


def record_measured(found: Mapping[Problem, Selection], device: DeviceInfo) -> bool:
    """Add the fastest kernels of problems to the user's file; return False if it cannot be written."""
    cache_dir = options().cache_dir
    added = {
        selection._key(problem): {
            "kernel": chosen.kernel,
            "config": None if chosen.config is None else dataclasses.asdict(chosen.config),
        }
        for problem, chosen in found.items()
    }
    fields = {
        "version": selection.VERSION,
        "kernels": {**selection._measurements(cache_dir, device), **added},
    }
    stored = store(selection._path(cache_dir, device), device.fingerprint, fields)
    selection._measurements.cache_clear()
    selection._chosen.cache_clear()
    return stored
