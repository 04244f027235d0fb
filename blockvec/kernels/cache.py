"""JSON records on disk: one file per key, replaced atomically; damaged ones are ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files import replaced


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and create its folder; raise `OSError` if the disk is full or read-only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path, durable=False) as stream:
        stream.write(content)


def store_json(path: Path, record: dict[str, Any]) -> bool:
    """Store a record; return False if the file cannot be written."""
    try:
        replace_file(path, json.dumps(record, indent=1, sort_keys=True).encode())
    except OSError:
        return False
    return True


def load_json(path: Path) -> dict[str, Any] | None:
    """Load a record; None if there is none or it is damaged."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
