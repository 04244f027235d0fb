"""Compiled kernels that are installed with the package, for GPUs of some architectures.

The folder ``prebuilt`` holds a folder per architecture, and there one archive per operation and element type,
of sparse products per width.
Its index maps the identity of a kernel, a hash of all that the compiler is given, to its place in a member of
the archive: similar kernels are compressed together, which takes a third of the space. A kernel whose source
has changed is not found, and compiled as any other. ``make prebuilt`` writes the archives.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

PER_MEMBER = 8  # kernels: a fifth of a megabyte, which takes 2 ms to decompress
OTHERS = "others"
_INDEX = "index.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of all members: equal kernels make equal archives
_NAME = re.compile(r"#define KERNEL (\w+)\n")
_GROUP = re.compile(r"\w+?_(?:f32|f64|c64|c128)(?:_w\d+|(?=_m\d))")


class Prebuilt(NamedTuple):
    """A compiled kernel: its machine code, its resources as numbers by name, and the compiler's version."""

    image: bytes
    resources: Mapping[str, int]
    compiler: str


def identity(source: str, architecture: str, options: tuple[str, ...]) -> str:
    """Hash all that the compiler is given, but not its version."""
    return hashlib.sha256("\0".join((architecture, *options, source)).encode()).hexdigest()[:32]


def archive_of(source: str) -> str:
    """Name the archive that a kernel belongs to: ``"tsmm_mma_f64"`` for ``tsmm_mma_f64_m8_n8``."""
    name = _NAME.match(source)
    group = None if name is None else _GROUP.match(name[1])
    return OTHERS if group is None else group[0]


def body_of(source: str) -> str:
    """Hash the source of a kernel but for the constants before its body."""
    return hashlib.sha256(source[source.index("#line 1 ") :].encode()).hexdigest()[:16]


def find(source: str, architecture: str, options: tuple[str, ...]) -> Prebuilt | None:
    """Look up the machine code of a source; None if it is not part of the package."""
    archive = installed(architecture, archive_of(source))
    return None if archive is None else archive.get(identity(source, architecture, options))


def pack(kernels: Mapping[str, tuple[str, Prebuilt]]) -> bytes:
    """Write an archive of kernels, each with its source, by identity.

    Kernels of similar names are compressed together.
    """
    ordered = sorted(kernels, key=lambda key: (kernels[key][0].partition("\n")[0], key))
    index: dict[str, Any] = {"bodies": set(), "kernels": {}}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for first in range(0, len(ordered), PER_MEMBER):
            member, images = str(first), b""
            for key in ordered[first : first + PER_MEMBER]:
                source, (image, used, compiler) = kernels[key]
                index["bodies"].add(body_of(source))
                index["kernels"][key] = [member, len(images), len(images) + len(image), used, compiler]
                images += image
            _write(archive, member, images)
        _write(archive, _INDEX, json.dumps({**index, "bodies": sorted(index["bodies"])}).encode())
    return stream.getvalue()


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_LZMA)


class Archive:
    """An archive of compiled kernels, as `pack` writes it.

    Attributes
    ----------
    bodies : tuple of str
        The different values of `body_of` of the kernels.
    """

    def __init__(self, content: bytes) -> None:
        members = zipfile.ZipFile(io.BytesIO(content))
        index = json.loads(members.read(_INDEX))
        self.bodies = tuple(index["bodies"])
        self._kernels = index["kernels"]
        self._member, self._lock = functools.lru_cache(maxsize=8)(members.read), threading.Lock()

    def get(self, key: str) -> Prebuilt | None:
        """Return a kernel by its identity; None if it is not in the archive."""
        if key not in self._kernels:
            return None
        member, begin, end, used, compiler = self._kernels[key]
        with self._lock:  # threads that need neighbours decompress them once
            images = self._member(member)
        return Prebuilt(images[begin:end], used, compiler)


@functools.cache
def installed(architecture: str, name: str) -> Archive | None:
    """Open an archive of the package; None if there is none, or Python lacks the means to decompress it."""
    file = resources.files(__package__) / "prebuilt" / architecture / f"{name}.zip"
    try:
        return Archive(file.read_bytes())
    except (OSError, RuntimeError):
        return None
