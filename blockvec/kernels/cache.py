"""Small JSON records on disk: one file a key, replaced atomically, never fatal when broken."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["load_json", "replace_file", "store_json"]


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part.

    The folder is created. An `OSError` (a read-only or full disk) reaches the caller.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)  # a temporary file is readable by its owner alone
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def store_json(path: Path, record: dict[str, Any]) -> bool:
    """Store a record; return False where the disk does not let us, since a cache is never worth a failure."""
    try:
        replace_file(path, json.dumps(record, indent=1, sort_keys=True).encode())
    except OSError:
        return False
    return True


def load_json(path: Path) -> dict[str, Any] | None:
    """Return the record, or None when there is none or it cannot be read as one."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
