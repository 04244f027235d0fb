"""Policies of orthogonalisation, and their names for the names of tests."""

from __future__ import annotations

from typing import Any

from solvers.orthogonalize import SVQB, TSQR, BCGSIPlus, RandomizedCholQR, RankedCholQR, ShiftedCholQR3

RANKED = (RankedCholQR(), ShiftedCholQR3(), SVQB(), TSQR(), RandomizedCholQR())  # within any block


def name(policy: Any) -> str:
    return type(policy).__name__ + (f"-{name(policy.intra)}" if isinstance(policy, BCGSIPlus) else "")
