"""Names of policies of orthogonalisation for the names of tests."""

from __future__ import annotations

from typing import Any


def name(policy: Any) -> str:
    return type(policy).__name__
