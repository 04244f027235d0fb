"""Records on disk: one file per key, replaced atomically.

A file counts as missing if it is damaged, if it belongs to another user, or if others may write to it or to
its folder, because its content could be anyone's.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import stat
import types
import typing
import warnings
from pathlib import Path
from typing import Any

from ..system.files import replaced

MAX_BYTES = 1 << 26  # of a file; lists and machine code take at most a few megabytes
LARGEST = (1 << 63) - 1  # number in a record
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_CHECKSUM = "sha256"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and create its folder; raise `OSError` if the disk is full or read-only."""
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    with replaced(path, durable=False) as stream:
        if hasattr(os, "fchmod"):
            os.fchmod(stream.fileno(), os.fstat(stream.fileno()).st_mode & 0o777 & ~_WRITABLE_BY_OTHERS)
        stream.write(content)


def read_file(path: Path) -> bytes | None:
    """Read a file of this user; None if there is none, or others may have written it."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:  # non-blocking: a pipe in its place is not waited for
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES or not _is_own(status):
                return None
            return file.read() if _is_own_folder(path.parent) else None
    except OSError:
        return None


def _is_own(status: os.stat_result) -> bool:
    """Check that a file or folder belongs to this user or the administrator, and nobody else may write."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & _WRITABLE_BY_OTHERS


def _is_own_folder(folder: Path) -> bool:
    """Check a folder; warn once if its files cannot be used."""
    if _is_own(folder.stat()):
        return True
    _warn_of(folder)
    return False


@functools.cache
def _warn_of(folder: Path) -> None:
    warnings.warn(
        f"files in {str(folder)!r} are not used, because the folder belongs to another user or others may "
        "write to it: correct its owner and permissions (chmod go-w), or set BLOCKVEC_CACHE_DIR to another "
        "folder.",
        stacklevel=2,
    )


def store_json(path: Path, record: dict[str, Any]) -> bool:
    """Store a record; return False if the file cannot be written."""
    whole = {_CHECKSUM: _checksum(record), **record}
    try:
        replace_file(path, json.dumps(whole, indent=1, sort_keys=True).encode())
    except OSError:
        return False
    return True


def load_json(path: Path) -> dict[str, Any] | None:
    """Load a record; None if there is none or it is damaged.

    Records of earlier versions have no checksum; what follows from their content must be checked in any case.
    """
    content = read_file(path)
    try:
        record = json.loads(content or b"")
        intact = record.pop(_CHECKSUM, None) in (None, _checksum(record))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return record if intact else None


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def from_fields(kind: Any, fields: Any) -> Any | None:
    """Rebuild a dataclass from the JSON values of its fields; None if names or types are others.

    Lists become tuples and dictionaries become dataclasses where the fields have these types. Integers must
    not be negative.
    """
    hints = _hints(kind)
    if not isinstance(fields, dict) or not fields.keys() <= hints.keys():
        return None
    try:
        return kind(**{name: _value(hints[name], value) for name, value in fields.items()})
    except TypeError:  # also for missing fields
        return None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name in names}


def _value(hint: Any, value: Any) -> Any:
    """Convert a JSON value to the type of a field; raise `TypeError` if it has another."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        valid = isinstance(value, str) and value in choices
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(choices[0], element) for element in value)
    elif origin is types.UnionType:
        hint = next((choice for choice in choices if isinstance(value, choice)), None)
        valid = hint is not None
    elif isinstance(value, dict) and dataclasses.is_dataclass(hint):
        value = from_fields(hint, value)
        valid = value is not None
    else:
        valid = type(value) is hint and (hint is not int or 0 <= value <= LARGEST)
    if not valid:
        raise TypeError(f"{value!r} is no {hint}")
    return value
