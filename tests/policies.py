"""Names of policies of orthogonalisation for the names of tests."""

from __future__ import annotations

from typing import Any

from solvers.orthogonalization import Adaptive, RankedCholQR


def name(policy: Any) -> str:
    is_plain = not isinstance(policy, Adaptive) or policy.intra == RankedCholQR()
    return type(policy).__name__ + ("" if is_plain else f"-{name(policy.intra)}")
