"""Records on disk: one file per key, replaced atomically, in one format.

A line names the format, the next is a checksum of the key and of what follows: a line of JSON, and bytes. A
file counts as missing if it is damaged, is the record of another key, belongs to another user, or if others
may write to it or to its folder, because its content could be anyone's.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import warnings
from pathlib import Path
from typing import Any

from ..system.files import replaced

MAX_BYTES = 1 << 26  # bytes of a file; machine code takes at most a few megabytes
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAGIC = b"blockvec record 1\n"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and create its folder; raise `OSError` if the disk is full or read-only."""
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    with replaced(path, durable=False) as stream:
        if hasattr(os, "fchmod"):
            os.fchmod(stream.fileno(), os.fstat(stream.fileno()).st_mode & 0o777 & ~_WRITABLE_BY_OTHERS)
        stream.write(content)


def read_file(path: Path) -> bytes | None:
    """Read a file of this user; None if there is none, or others may have written it."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:  # non-blocking: a pipe in its place is not waited for
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES and _is_own(status):
                if _is_own(path.parent.stat()):
                    return file.read()
                _warn_of(path.parent)
    return None


def _is_own(status: os.stat_result) -> bool:
    """Check that a file or folder belongs to this user or the administrator, and nobody else may write."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & _WRITABLE_BY_OTHERS


@functools.cache
def _warn_of(folder: Path) -> None:
    warnings.warn(
        f"files in {str(folder)!r} are not used, because the folder belongs to another user or others may "
        "write to it: correct its owner and permissions (chmod go-w), or set BLOCKVEC_CACHE_DIR to another "
        "folder.",
        stacklevel=2,
    )


def store(path: Path, key: str, fields: dict[str, Any], payload: bytes = b"") -> None:
    """Store a record under a key, where its file can be written."""
    with contextlib.suppress(OSError):
        replace_file(path, packed(key, fields, payload))


def packed(key: str, fields: dict[str, Any], payload: bytes = b"") -> bytes:
    """Write the content of the file of a record."""
    content = json.dumps(fields, sort_keys=True).encode() + b"\n" + payload
    return _MAGIC + _checksum(key, content) + b"\n" + content


def load(path: Path, key: str) -> tuple[dict[str, Any], bytes] | None:
    """Load the fields and the payload of a record; None if there is none, or its checksum is another."""
    return unpacked(read_file(path) or b"", key)


def unpacked(data: bytes, key: str) -> tuple[dict[str, Any], bytes] | None:
    """Read a record from the content of its file, as `load` does."""
    checksum, _, content = data.removeprefix(_MAGIC).partition(b"\n")
    if not data.startswith(_MAGIC) or checksum != _checksum(key, content):
        return None
    head, _, payload = content.partition(b"\n")
    try:
        fields = json.loads(head)
    except (ValueError, RecursionError):
        return None
    return (fields, payload) if isinstance(fields, dict) else None


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).hexdigest().encode()
