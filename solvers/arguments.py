"""Arguments of the solvers: checked, converted, refused with the remedy."""

from __future__ import annotations

import math
import operator as python_operator
import os
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import DeviceError, DTypeError, OptionError, ShapeError

from .blocks import to_host
from .iterations.rayleigh_ritz import WHICH, Tolerance
from .linear.preconditioners import following
from .linear.systems import Preconditioner
from .orthogonalize import orthogonalize
from .runtime.checkpoint import Checkpoint

__all__ = [
    "METHODS",
    "MODES",
    "checkpoint_for",
    "corrects",
    "finite",
    "generator",
    "integer",
    "is_explicit",
    "orthonormal_block",
    "positive",
    "preconditioner_for",
    "refuse_unavailable",
    "require_one_of",
    "tall_block",
    "tolerance_for",
]

MODES = ("normal", "buckling", "cayley")
METHODS = ("auto", "lanczos", "filter", "jd", "dense")


def refuse_unavailable(
    *,
    M: Any,
    sigma: Any,
    Minv: Any,
    OPinv: Any,
    mode: str,
    preconditioner: Any,
    jd_options: Any,
    method: str,
    which: str,
) -> None:
    """Say which options do not go together or are not there, and what to do instead."""
    if Minv is not None:
        raise OptionError("Minv: not needed, M itself is factorised; leave it out.")
    if sigma is None and OPinv is not None:
        raise OptionError("OPinv: is the inverse of A - sigma M; give sigma, too.")
    require_one_of("mode", mode, MODES)
    if mode != "normal" and sigma is None:
        raise OptionError(f"mode: got {mode!r}, a transformation with a shift; give sigma.")
    if mode == "buckling" and M is None:
        raise OptionError("mode: 'buckling' solves A x = lambda M x with an indefinite M; give M.")
    require_one_of("method", method, METHODS)
    for name, value in {"preconditioner": preconditioner, "jd_options": jd_options}.items():
        if value is not None and method not in ("auto", "jd"):
            raise OptionError(f"{name}: method {method!r} takes none; leave it out, or use method='jd'.")
    if corrects(method, preconditioner, jd_options):
        _refuse_beside_corrections(OPinv=OPinv, sigma=sigma, mode=mode, which=which)
    if method == "filter" and sigma is not None and M is None and OPinv is None and which != "LM":
        raise OptionError(f"which: got {which!r} with sigma; method 'filter' has 'LM' only, nearest to it.")
    if which == "SM" and sigma is not None:
        raise OptionError("which: 'SM' with sigma would be the values furthest from it; use 'LM'.")
    require_one_of("which", which, (*WHICH, "BE", "SM"))


def corrects(method: str, preconditioner: Any, jd_options: Any) -> bool:
    """Whether Jacobi-Davidson is asked for, by name or by an option that only it has."""
    return method == "jd" or preconditioner is not None or jd_options is not None


def _refuse_beside_corrections(*, OPinv: Any, sigma: Any, mode: str, which: str) -> None:
    """Say what Jacobi-Davidson does not take, and what to do instead."""
    if OPinv is not None:
        raise OptionError("OPinv: Jacobi-Davidson applies no inverse; give it as preconditioner=.")
    if mode != "normal":
        raise OptionError(f"mode: got {mode!r}; Jacobi-Davidson has 'normal' only.")
    if sigma is not None and which != "LM":
        raise OptionError(f"which: got {which!r} with sigma; Jacobi-Davidson has 'LM' only, nearest to it.")


def require_one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a value that is not among the known ones."""
    if value not in known:
        raise OptionError(f"{name}: got {value!r}; give one of {', '.join(map(repr, known))}.")


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer within bounds."""
    try:
        number = python_operator.index(value)
    except TypeError:
        raise OptionError(f"{name}: got {value!r}; give an integer.") from None
    if number < least or (most is not None and number > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise OptionError(f"{name}: got {number}; give an integer {bound}.")
    return number


def is_explicit(A: Any) -> bool:
    """Whether the entries of a matrix are at hand, on the host."""
    return isinstance(A, np.ndarray) or sp.issparse(A)


def real(name: str, value: Any) -> float:
    """Return a real number, which may be infinite or NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise OptionError(f"{name}: got {value!r}; give a real number.") from None


def positive(name: str, value: Any) -> float:
    """Return a positive, finite number."""
    number = real(name, value)
    if not (number > 0 and math.isfinite(number)):
        raise OptionError(f"{name}: got {value!r}; give a positive number.")
    return number


def finite(name: str, value: Any) -> float:
    """Return a finite real number."""
    number = real(name, value)
    if not math.isfinite(number):
        raise OptionError(f"{name}: got {value!r}; give a finite number.")
    return number


def preconditioner_for(value: Any, op: Operator) -> Preconditioner:
    """Return a user's preconditioner as a function of blocks that returns new ones."""
    if not hasattr(value, "shape"):
        if not callable(value):
            raise OptionError(f"preconditioner: got {value!r}; give a matrix, an operator or a function.")
        return following(lambda R: BlockVector(value(R.array), copy=True, dtype=op.dtype), value)
    on_device = isinstance(value, Operator) or type(value).__module__.startswith("cupy")
    wanted = as_operator(value, device=None if on_device else op.device)
    if wanted.shape != op.shape:
        raise ShapeError(f"preconditioner has shape {wanted.shape} but A has {op.shape}.")
    if wanted.device != op.device:
        raise DeviceError(f"preconditioner is on {wanted.device} but A is on {op.device}; move one of them.")
    return following(wanted.apply, value)


def checkpoint_for(value: Any, interval: Any) -> Checkpoint | None:
    """Return where to save an iteration, or None."""
    seconds = real("checkpoint_interval", interval)
    if not seconds >= 0:
        raise OptionError(f"checkpoint_interval: got {interval!r}; give seconds, at least 0.")
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise OptionError(f"checkpoint: got {value!r}; give the path of a file.")
    return Checkpoint(value, seconds)


def tolerance_for(tol: Any, convergence: Any, op: Operator) -> Tolerance:
    """Return the convergence rule of a call."""
    require_one_of("convergence", convergence, ("value", "norm", "absolute"))
    number = real("tol", tol)
    if not (number >= 0 and math.isfinite(number)):
        raise OptionError(f"tol: got {tol!r}; give a number of at least 0.")
    return Tolerance(number, convergence, float(np.finfo(op.dtype).eps) / 2)


def tall_block(name: str, value: Any, op: Operator) -> BlockVector:
    """Return a copy of a user's block in the operator's type and on its device."""
    kind = getattr(value, "dtype", np.asarray(value).dtype if isinstance(value, list | tuple) else None)
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if kind is not None and np.dtype(kind).kind == "c" and op.dtype.kind != "c":
        raise DTypeError(f"{name} is complex but A is real; pass its real part, or A as a complex matrix.")
    source = value.array if isinstance(value, BlockVector) else value
    try:
        block = BlockVector(source, copy=True, dtype=op.dtype)
    except (ShapeError, DTypeError) as error:
        raise type(error)(f"{name}: {error}") from None
    if block.n_rows != op.shape[0]:
        raise ShapeError(f"{name} has {block.n_rows} rows but A is {op.shape[0]} x {op.shape[1]}.")
    if block.n_cols == 0:
        raise ShapeError(f"{name} has no columns; leave it out instead.")
    if not np.isfinite(to_host(block.norms())).all():
        raise OptionError(f"{name} holds NaN or Inf; give finite vectors.")
    if block.device != op.device:
        block = block.to_host() if op.device == "cpu" else block.to_device(op.device)
    return block


def generator(rng: Any) -> np.random.Generator:
    """Return what everything random of a call comes from."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError):
        raise OptionError(f"rng: got {rng!r}; give None, an integer or a Generator.") from None


def orthonormal_block(name: str, value: Any, op: Operator) -> BlockVector | None:
    """Return an orthonormal basis of the columns of a user's block, or None where they are all zero."""
    block = tall_block(name, value, op)
    if block.n_cols >= op.shape[0]:
        raise ShapeError(
            f"{name} has {block.n_cols} columns for {op.shape[0]} rows; nothing is orthogonal to all of them."
        )
    result = orthogonalize(block)
    rank = block.n_cols - int(result.lost.sum())
    return block[:, :rank].copy() if rank else None
