"""Free memory of the host, within the limits of control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import FormatError

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")

# Per version of control groups: the names of the limit, of the use, and in memory.stat of the file cache
# that is dropped when memory is needed.
_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def available_memory() -> int | None:
    """Estimate the bytes of memory available to this process; None if the system does not report them.

    The minimum of the memory that the operating system reports as available and what is left of the limits of
    the process's control groups (containers, batch jobs).
    """
    found = list(_left_in_cgroups())
    try:
        found.append(_entry(_PROC / "meminfo", "MemAvailable:") * 1024)
    except (OSError, ValueError):
        if (total := _physical_memory()) is not None:
            found.append(total)
    return min(found, default=None)


def _physical_memory() -> int | None:
    """Return the bytes of memory of this machine; None if the system does not tell."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_readable(what: str, needed: int) -> None:
    """Raise a `FormatError` if the content of a file takes more bytes than are available."""
    available = available_memory()
    if available is not None and needed > available:
        raise FormatError(
            f"{what} take {needed / 1e9:.3g} GB to read, but {available / 1e9:.3g} GB of memory are "
            "available; read the file where there is more."
        )


def _left_in_cgroups() -> Iterator[int]:
    """Yield the bytes left in the control group of this process and in those that contain it.

    Groups without a limit, or with one that this machine does not reach, are left out: to read what they use
    takes most of a millisecond.
    """
    total = _physical_memory()
    for version, group in _cgroups():
        limit, used, cache = _FILES[version]
        root = _CGROUPS if version == 2 else _CGROUPS / "memory"
        # In a container the path may be that of the host, of which only the root is visible.
        for folder in (group, *group.parents):
            folder = root / folder.relative_to("/")
            try:
                most = int((folder / limit).read_text())  # "max" without a limit
                if total is not None and most >= total:
                    continue
                taken = int((folder / used).read_text()) - _entry(folder / "memory.stat", cache)
            except (OSError, ValueError):
                continue
            yield max(most - taken, 0)


def _cgroups() -> Iterator[tuple[int, Path]]:
    """Yield version and path of the control groups that may limit the memory of this process."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield 2, Path(path)
        elif "memory" in controllers.split(","):
            yield 1, Path(path)


def _entry(file: Path, name: str) -> int:
    """Read a number from a file of lines with names and numbers."""
    for line in file.read_text().splitlines():
        key, *numbers = line.split()
        if key == name:
            return int(numbers[0])
    raise ValueError(name)
