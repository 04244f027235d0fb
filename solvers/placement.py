"""The device that a factorisation runs on."""

from __future__ import annotations

import math
from typing import Any

from blockvec import Factorization
from blockvec.system.installation import install_command

from .arguments import is_explicit
from .blocks import Operator
from .factorization.work import FactorWork
from .runtime.memory import available_bytes

FACTOR_ROWS = 20_000  # up to here a few sparse factorisations on the host take seconds, whatever their fill
FACTOR_ENTRIES = 2_000_000
AFFORDABLE_S = 20.0  # of a factorisation on the host
DENSE_ROWS = 3000  # up to here a GPU solves an end of a spectrum densely in less time


def is_small(n: int, entries: int) -> bool:
    """Check whether a few factorisations on the host take seconds."""
    return n <= FACTOR_ROWS and entries <= FACTOR_ENTRIES


def factor_place(n: int, entries: int, device: str) -> str | None:
    """Choose where to factorise a matrix of a device: there, or on the ``"cpu"``; None if neither can."""
    if device == "cpu" or is_small(n, entries):
        return "cpu"
    return device if Factorization.is_available(device) else None


def shift_invert_s(A: Any, M: Any, op: Operator) -> float:
    """Predict the seconds of a solve by shift-invert on the device of an operator; inf without memory."""
    work, free = FactorWork.of(A, M), available_bytes(op)
    if op.device == "cpu" and free is not None and work.nbytes > free:
        return math.inf  # cuDSS asks for memory itself, before its factors are allocated
    return work.solve_s(op.device)


def is_affordable(A: Any, M: Any, op: Operator) -> bool:
    """Check whether factors on the host fit in memory, and take seconds."""
    if is_small(A.shape[0], int(getattr(A, "nnz", A.size))):
        return True
    work, free = FactorWork.of(A, M), available_bytes(op)
    return (free is None or work.nbytes < free) and work.factor_s("cpu") < AFFORDABLE_S


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
