"""Choices of the models that are installed with the package, beside the compiled kernels that they belong to.

A file per architecture, ``prebuilt/<architecture>/choices.bin``, begins with a line of JSON: the models, the
device that they chose for, and the different configurations, each as the number of a list of fields and their
values. The keys of the problems follow, 8 bytes each in ascending order, then the number of the configuration
per key, 2 bytes each. ``make prebuilt`` writes it.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import struct
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ..device import DeviceInfo

FILE = "choices.bin"
KEY_DIGITS = 16  # hexadecimal ones, of 8 bytes
_MODULES = ("device", "families", "family", "launch", "limits", "problem", "roofline", "tensor_map")


def resources_of(device: DeviceInfo) -> list[Any]:
    """List the properties of a device that choices depend on."""
    per_multiprocessor = (
        *(device.shared_bytes_per_multiprocessor, device.registers_per_multiprocessor),
        device.threads_per_multiprocessor,
    )
    return [
        *(device.architecture, device.multiprocessors, device.shared_bytes_per_block, *per_multiprocessor)
    ]


@functools.cache
def models() -> str:
    """Hash the sources that choices depend on."""
    digest = hashlib.sha256()
    folder = resources.files("blockvec.kernels")
    for part in (folder / "dense", folder / "sparse"):
        for file in sorted(part.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".py"):
                digest.update(file.read_bytes())
    for name in _MODULES:
        digest.update((folder / f"{name}.py").read_bytes())
    return digest.hexdigest()


def pack(device: DeviceInfo, choices: Mapping[str, dict[str, Any]]) -> bytes:
    """Write the choices for a device, configurations by the keys of problems, as a file."""
    fields = sorted({tuple(config) for config in choices.values()})
    rows = {key: (fields.index(tuple(choices[key])), *choices[key].values()) for key in sorted(choices)}
    configs = sorted(set(rows.values()), key=repr)
    numbers = {config: number for number, config in enumerate(configs)}
    header = {
        **{"models": models(), "device": resources_of(device), "count": len(rows)},
        **{"fields": fields, "configs": configs},
    }
    keys = b"".join(bytes.fromhex(key) for key in rows)
    found = struct.pack(f">{len(rows)}H", *(numbers[config] for config in rows.values()))
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + keys + found


class InstalledChoices:
    """A file as `pack` writes it; without choices if other models made them, or for another device."""

    def __init__(self, content: bytes, device: DeviceInfo) -> None:
        line, _, numbers = content.partition(b"\n")
        header = json.loads(line)
        is_usable = header["models"] == models() and header["device"] == resources_of(device)
        count = header["count"] if is_usable else 0
        self._fields, self._configs = header["fields"], header["configs"]
        self._keys = struct.unpack_from(f">{count}Q", numbers)
        self._numbers = struct.unpack_from(f">{count}H", numbers, 8 * count)

    def __len__(self) -> int:
        """Count the choices."""
        return len(self._keys)

    def get(self, key: str) -> dict[str, Any] | None:
        """Look up the configuration for the key of a problem; None if there is none."""
        wanted = int(key, 16)
        at = bisect.bisect_left(self._keys, wanted)
        if at == len(self._keys) or self._keys[at] != wanted:
            return None
        kind, *values = self._configs[self._numbers[at]]
        return dict(zip(self._fields[kind], values, strict=True))


@functools.cache
def installed_choices(device: DeviceInfo) -> InstalledChoices | None:
    """Open the choices for a device; None if there are none for its architecture."""
    file = resources.files("blockvec.kernels") / "prebuilt" / device.architecture / FILE
    try:
        return InstalledChoices(file.read_bytes(), device)
    except OSError:
        return None
