"""Names of policies of orthogonalisation for the names of tests."""

from __future__ import annotations

from typing import Any

from solvers.orthogonalization import BCGSIPlus


def name(policy: Any) -> str:
    return type(policy).__name__ + (f"-{name(policy.intra)}" if isinstance(policy, BCGSIPlus) else "")
