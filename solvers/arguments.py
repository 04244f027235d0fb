"""The arguments of `eigsh`: checked, converted, and formed into a problem."""

from __future__ import annotations

import math
import operator as python_operator
import os
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector, as_operator
from blockvec.errors import DeviceError, DTypeError, OptionError, ShapeError

from .blocks import Operator, to_host
from .iterations.base import IterationState
from .iterations.jd_options import JacobiDavidsonOptions
from .iterations.rayleigh_ritz import WHICH, Selection, Tolerance
from .linear.preconditioners import following
from .linear.systems import Preconditioner
from .orthogonalize import orthogonalize
from .problem import Method, Problem, Verify, asks_for_corrections
from .runtime.checkpoint import Checkpoint

__all__ = [
    "METHODS",
    "MODES",
    "check_choices",
    "check_combination",
    "checkpoint_for",
    "finite",
    "form_problem",
    "generator",
    "integer",
    "is_explicit",
    "needs_no_factor",
    "orthonormal_block",
    "preconditioner_for",
    "require_one_of",
    "tall_block",
]

MODES = ("normal", "buckling", "cayley")
METHODS = ("auto", "lanczos", "filter", "jd", "dense")
CONVERGENCE = ("value", "norm", "absolute")
VERIFY = ("auto", "always", "never")
ON_UNCONVERGED = ("raise", "warn", "return")


def check_combination(
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
    """Refuse options that are not available or do not go together.

    Raises
    ------
    OptionError
        With the remedy.
    """
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
    if asks_for_corrections(method, preconditioner, jd_options):
        _check_jacobi_davidson(OPinv=OPinv, sigma=sigma, mode=mode, which=which)
    if method == "filter" and sigma is not None and M is None and OPinv is None and which != "LM":
        raise OptionError(f"which: got {which!r} with sigma; method 'filter' has 'LM' only, nearest to it.")
    if which == "SM" and sigma is not None:
        raise OptionError("which: 'SM' with sigma would be the values furthest from it; use 'LM'.")
    require_one_of("which", which, (*WHICH, "BE", "SM"))


def _check_jacobi_davidson(*, OPinv: Any, sigma: Any, mode: str, which: str) -> None:
    """Refuse options that Jacobi-Davidson does not take."""
    if OPinv is not None:
        raise OptionError("OPinv: Jacobi-Davidson applies no inverse; give it as preconditioner=.")
    if mode != "normal":
        raise OptionError(f"mode: got {mode!r}; Jacobi-Davidson has 'normal' only.")
    if sigma is not None and which != "LM":
        raise OptionError(f"which: got {which!r} with sigma; Jacobi-Davidson has 'LM' only, nearest to it.")


def check_choices(*, on_unconverged: Any, verify: Any, callback: Any) -> None:
    """Refuse unknown choices, and a callback that cannot be called."""
    require_one_of("on_unconverged", on_unconverged, ON_UNCONVERGED)
    require_one_of("verify", verify, VERIFY)
    if not (callback is None or callable(callback)):
        raise OptionError(f"callback: got {callback!r}; give a function of an IterationState.")


def needs_no_factor(
    A: Any, *, M: Any, OPinv: Any, mode: str, method: str, at_zero: bool, device: str | None
) -> bool:
    """Whether eigenvalues near a shift are computed by an iteration on A, without a factorisation."""
    if M is not None or OPinv is not None or mode != "normal":
        return False
    is_on_host = is_explicit(A) and device in (None, "cpu")
    return method == "filter" or (method == "auto" and not at_zero and not is_on_host)


def form_problem(
    operator: Operator,
    k: Any,
    *,
    which: str,
    target: float | None,
    rng: np.random.Generator,
    tol: Any,
    convergence: Any,
    norm: Any,
    v0: Any,
    orthogonal_to: Any,
    verify: Verify,
    check_hermitian: bool,
    callback: Callable[[IterationState], object] | None,
    checkpoint: Checkpoint | None,
    time_limit: Any,
    begin_s: float,
    method: Method,
    block_size: Any,
    ncv: Any,
    maxiter: Any,
    preconditioner: Any,
    jd_options: JacobiDavidsonOptions | None,
) -> Problem:
    """Check the arguments of `eigsh` against its operator and form the problem.

    What depends on the space of the iteration, which a transformation may change, is left to
    `drivers.prepare`: k, the sizes, and the rank of the locked columns.

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
    """
    if operator.shape[0] != operator.shape[1]:
        n, columns = operator.shape
        raise ShapeError(f"A is {n} x {columns}; eigenvalues need a square matrix.")
    return Problem(
        operator=operator,
        k=k,
        which=cast(Selection, which),
        tolerance=_tolerance(tol, convergence, operator),
        rng=rng,
        target=target,
        norm=None if norm is None else _positive("norm", norm),
        start=None if v0 is None else tall_block("v0", v0, operator),
        locked=None if orthogonal_to is None else tall_block("orthogonal_to", orthogonal_to, operator),
        verify=verify,
        check_hermitian=check_hermitian,
        callback=callback,
        checkpoint=checkpoint,
        time_limit=None if time_limit is None else _positive("time_limit", time_limit),
        begin_s=begin_s,
        method=method,
        block_size=block_size,
        ncv=ncv,
        maxiter=maxiter,
        preconditioner=None if preconditioner is None else preconditioner_for(preconditioner, operator),
        jd_options=jd_options,
    )


# --- one argument -----------------------------------------------------------------------------------


def require_one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the known ones."""
    if value not in known:
        raise OptionError(f"{name}: got {value!r}; give one of {', '.join(map(repr, known))}.")


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Convert to an integer and check its bounds."""
    try:
        number = python_operator.index(value)
    except TypeError:
        raise OptionError(f"{name}: got {value!r}; give an integer.") from None
    if number < least or (most is not None and number > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise OptionError(f"{name}: got {number}; give an integer {bound}.")
    return number


def is_explicit(A: Any) -> bool:
    """Whether A is a matrix of the host with its entries in memory."""
    return isinstance(A, np.ndarray) or sp.issparse(A)


def _real(name: str, value: Any) -> float:
    """Convert to a real number, which may be infinite or NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise OptionError(f"{name}: got {value!r}; give a real number.") from None


def _positive(name: str, value: Any) -> float:
    """Convert to a positive, finite number."""
    number = _real(name, value)
    if not (number > 0 and math.isfinite(number)):
        raise OptionError(f"{name}: got {value!r}; give a positive number.")
    return number


def finite(name: str, value: Any) -> float:
    """Convert to a finite real number."""
    number = _real(name, value)
    if not math.isfinite(number):
        raise OptionError(f"{name}: got {value!r}; give a finite number.")
    return number


def preconditioner_for(value: Any, op: Operator) -> Preconditioner:
    """Convert a preconditioner to a function of blocks that returns new ones."""
    if not hasattr(value, "shape"):
        if not callable(value):
            raise OptionError(f"preconditioner: got {value!r}; give a matrix, an operator or a function.")
        return following(lambda R: BlockVector(value(R.array), copy=True, dtype=op.dtype), value)
    on_device = isinstance(value, blockvec.Operator) or type(value).__module__.startswith("cupy")
    wanted = as_operator(value, device=None if on_device else op.device)
    if wanted.shape != op.shape:
        raise ShapeError(f"preconditioner has shape {wanted.shape} but A has {op.shape}.")
    if wanted.device != op.device:
        raise DeviceError(f"preconditioner is on {wanted.device} but A is on {op.device}; move one of them.")
    return following(wanted.apply, value)


def checkpoint_for(value: Any, interval: Any) -> Checkpoint | None:
    """Form the checkpoint of a call."""
    seconds = _real("checkpoint_interval", interval)
    if not seconds >= 0:
        raise OptionError(f"checkpoint_interval: got {interval!r}; give seconds, at least 0.")
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise OptionError(f"checkpoint: got {value!r}; give the path of a file.")
    return Checkpoint(value, seconds)


def _tolerance(tol: Any, convergence: Any, op: Operator) -> Tolerance:
    """Form the convergence rule of a call."""
    require_one_of("convergence", convergence, CONVERGENCE)
    number = _real("tol", tol)
    if not (number >= 0 and math.isfinite(number)):
        raise OptionError(f"tol: got {tol!r}; give a number of at least 0.")
    return Tolerance(number, convergence, float(np.finfo(op.dtype).eps) / 2)


def tall_block(name: str, value: Any, op: Operator) -> BlockVector:
    """Copy a given block in the type and to the device of the operator."""
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
    """Form the random generator of a call."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError):
        raise OptionError(f"rng: got {rng!r}; give None, an integer or a Generator.") from None


def orthonormal_block(name: str, value: Any, op: Operator) -> BlockVector | None:
    """Compute an orthonormal basis of given columns, or None where they are all zero."""
    block = tall_block(name, value, op)
    if block.n_cols >= op.shape[0]:
        raise ShapeError(
            f"{name} has {block.n_cols} columns for {op.shape[0]} rows; nothing is orthogonal to all of them."
        )
    result = orthogonalize(block)
    rank = block.n_cols - int(result.lost.sum())
    return block[:, :rank].copy() if rank else None
