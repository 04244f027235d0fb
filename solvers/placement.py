"""The device that a factorisation runs on."""

from __future__ import annotations

from typing import Any

from blockvec import Factorization
from blockvec.system.installation import install_command

from .arguments import is_explicit

FACTOR_ROWS = 20_000  # up to here a few sparse factorisations on the host take seconds, whatever their fill
FACTOR_ENTRIES = 2_000_000
DENSE_ROWS = 3000  # up to here a GPU solves an end of a spectrum densely in less time


def is_small(n: int, entries: int) -> bool:
    """Check whether a few factorisations on the host take seconds."""
    return n <= FACTOR_ROWS and entries <= FACTOR_ENTRIES


def factor_place(n: int, entries: int, device: str) -> str | None:
    """Choose where to factorise a matrix of a device: there, or on the ``"cpu"``; None if neither can."""
    if device == "cpu" or is_small(n, entries):
        return "cpu"
    return device if Factorization.is_available(device) else None


def place_of(A: Any, device: str) -> str | None:
    """Choose where to factorise a matrix as `factor_place` does; None for a function."""
    if not is_explicit(A) or len(A.shape) != 2:
        return None
    n = int(A.shape[0])
    return factor_place(n, int(getattr(A, "nnz", n * n)), device)


def without_factors(device: str) -> str:
    """Form the message for a problem that nothing on this machine can factorise."""
    return (
        f"A: is on {device}, where factorisations of more than {FACTOR_ROWS} rows need cuDSS: "
        f"{install_command('cuda13')} (cuda12 for CUDA 12). Or give A as a matrix of the host, or OPinv."
    )
