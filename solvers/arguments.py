"""The arguments of `eigsh`, checked and converted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import index, itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

import blockvec
from blockvec import BlockVector, as_operator
from blockvec.errors import DeviceError, DTypeError, OptionError, ShapeError
from blockvec.interchange import ArrayKind, in_element_type, is_function, native
from blockvec.parallel import Communicator, share
from blockvec.precompile import precompile_matrix
from blockvec.system.scalars import plain

from .blocks import Operator, column_factors, is_on_gpu, is_ordinary, needs_threads, to_host
from .costs import can_convert
from .problem import WHICH, IterationState, Method, Precision, asks_for_corrections
from .runtime.checkpoint import Checkpoint

if TYPE_CHECKING:
    from .iterations.correction import JacobiDavidsonOptions
    from .linear.systems import Preconditioner


class Options(TypedDict, total=False):
    """Arguments of `eigsh` by name, for type checkers, without those that decide what it returns."""

    v0: Any
    ncv: int | None
    maxiter: int | None
    tol: float
    Minv: Any
    OPinv: Any
    mode: str
    rng: Any
    method: Method
    precision: Precision
    block_size: int | None
    preconditioner: Any
    orthogonal_to: Any
    convergence: Literal["value", "norm", "absolute"]
    norm: float | None
    callback: Callable[[IterationState], object] | None
    progress: bool
    time_limit: float | None
    on_unconverged: Literal["raise", "warn", "return"]
    device: str | None
    shape: tuple[int, int] | None
    dtype: Any
    like: Any
    interval: tuple[float, float] | None
    verify: Literal["auto", "always", "never"]
    check_hermitian: bool
    jd_options: JacobiDavidsonOptions | None
    checkpoint: Any
    checkpoint_interval: float
    comm: Any


CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("normal", "buckling", "cayley"),
    "method": ("auto", "lanczos", "filter", "jd", "dense"),
    "which": (*WHICH, "BE", "SM"),
    "convergence": ("value", "norm", "absolute"),
    "on_unconverged": ("raise", "warn", "return"),
    "verify": ("auto", "always", "never"),
    "precision": ("auto", "double", "mixed"),
}
# Options that say how values around a number are computed.
HOW = ("OPinv", "preconditioner", "jd_options", "orthogonal_to", "maxiter")
NOT_OF_INTERVALS = (*HOW, "sigma", "Minv", "v0", "ncv")
OF_INTERVALS = ("auto", "filter", "dense")  # methods
FINITE = float(np.finfo(np.float64).max)
SHORT_TYPES = ("float16", "float32", "complex64", ">f2", ">f4", ">c8", "<f2", "<f4", "<c8")


def check_choice(name: str, value: Any, known: Sequence[str]) -> None:
    """Refuse a value of an option that is not among the known ones."""
    if not isinstance(value, str) or value not in known:
        raise OptionError(f"{name}: got {value!r}; give one of {', '.join(map(repr, known))}.")


def check(options: Mapping[str, Any]) -> None:
    """Refuse options of `eigsh` that are unknown, not available, or do not go together."""
    for name, known in CHOICES.items():
        check_choice(name, options[name], known)
    M, sigma, which, method, mode = itemgetter("M", "sigma", "which", "method", "mode")(options)
    callback, how = options["callback"], options["jd_options"]
    if callback is not None and not callable(callback):
        raise OptionError(f"callback: got {callback!r}; give a function of an IterationState.")
    if options["interval"] is not None:
        _check_with_interval(options)
    if options["Minv"] is not None and (M is None or sigma is not None):
        raise OptionError("Minv: is the inverse of M in A x = lambda M x without a shift; leave it out.")
    has_inverse = options["OPinv"] is not None
    if sigma is None and has_inverse:
        raise OptionError("OPinv: is the inverse of A - sigma M; give sigma, too.")
    if mode != "normal" and sigma is None:
        raise OptionError(f"mode: got {mode!r}, a transformation with a shift; give sigma.")
    for name in ("preconditioner", "jd_options"):
        if options[name] is not None and method not in ("auto", "jd"):
            raise OptionError(f"{name}: method {method!r} takes none; leave it out, or use method='jd'.")
    if how is not None:
        from .iterations.correction import JacobiDavidsonOptions

        if not isinstance(how, JacobiDavidsonOptions):
            raise OptionError(f"jd_options: got {how!r}; give a JacobiDavidsonOptions.")
    corrects = asks_for_corrections(method, options["preconditioner"], how)
    if corrects and has_inverse:
        raise OptionError("OPinv: Jacobi-Davidson applies no inverse; give it as preconditioner=.")
    if corrects and mode != "normal":
        raise OptionError(f"mode: got {mode!r}; Jacobi-Davidson has 'normal' only.")
    filters = method == "filter" and M is None and not has_inverse
    if (corrects or filters) and sigma is not None and which != "LM":
        by = "Jacobi-Davidson" if corrects else "method 'filter'"
        raise OptionError(f"which: got {which!r} with sigma; {by} has 'LM' only, nearest to it.")
    if which == "SM" and sigma is not None and has_inverse:
        raise OptionError("OPinv: 'SM' with sigma needs another inverse, or none; leave it out.")


def _check_with_interval(options: Mapping[str, Any]) -> None:
    defaults = dict.fromkeys(NOT_OF_INTERVALS) | {"which": "LM", "mode": "normal"}
    for name, default in defaults.items():
        value = options[name]
        if value is not None if default is None else value != default:
            raise OptionError(f"{name}: all eigenvalues in the interval are computed; leave it out.")
    if options["method"] not in OF_INTERVALS:
        known = ", ".join(map(repr, OF_INTERVALS))
        raise OptionError(f"method: got {options['method']!r} with an interval; give one of {known}.")


def ends(interval: Any) -> tuple[float, float]:
    """Check the ends of an interval."""
    wrong = OptionError(f"interval: got {interval!r}; give two real numbers, the lower one first.")
    try:
        low, high = (float(end) for end in interval)
    except (TypeError, ValueError):
        raise wrong from None
    if not low <= high or low == math.inf or high == -math.inf:
        raise wrong
    return low, high


def ends_of(domain: Any) -> tuple[float, float]:
    """Check the ends of a domain, of which None is no end."""
    first, last = domain
    return ends((-math.inf if first is None else first, math.inf if last is None else last))


def farthest(low: float, high: float) -> float:
    """Return the largest magnitude of a finite end."""
    return max((abs(end) for end in (low, high) if math.isfinite(end)), default=0.0)


def check_precision(op: Operator, method: str, *, is_plain: bool) -> None:
    """Refuse ``precision="mixed"`` where no filter of a copy of A in single precision can be used.

    `is_plain` says that an end of the spectrum of A alone is asked for.
    """
    if method not in ("auto", "filter"):
        needs = f"is one of filters, but method is {method!r}"
    elif not is_plain:
        needs = "is one of filters at an end of the spectrum of A, without M, sigma, interval, "
        needs += "preconditioner and jd_options"
    elif not can_convert(op):
        needs = f"needs a sparse matrix A, whose entries can be converted from double precision; got {op!r}"
    else:
        return
    raise OptionError(f"precision: 'mixed' {needs}; leave it out, or use precision='double'.")


def integer(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> int:
    """Convert to an integer within bounds. Whole numbers of type float count, such as SciPy's 1e7."""
    number = plain(value)
    try:
        number = int(number) if isinstance(number, float) and number.is_integer() else index(number)
    except TypeError:
        raise OptionError(f"{name}: got {value!r}; give an integer.") from None
    if not least <= number <= most:
        bound = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        got = number if abs(number) <= np.iinfo(np.int64).max else "an integer of more than 64 bits"
        raise OptionError(f"{name}: got {got}; give an integer {bound}.")
    return int(number)


def device_of(A: Any, device: Any = None) -> str:
    """Name the device that is asked for, or that of A: ``"cpu"``, or ``"gpu"`` for CuPy's arrays."""
    if device is not None:
        return BlockVector.empty(0, 1, device=device).device  # which refuses what is no device
    return A.device if isinstance(A, blockvec.Operator) else "gpu" if is_on_gpu(A) else "cpu"


def on_host(A: Any) -> Any:
    """Copy a matrix or an array of a GPU to the host; return anything else as it is."""
    if isinstance(A, blockvec.Operator) and A.device != "cpu" and hasattr(A, "to_host"):
        return A.to_host()
    return A.get() if is_on_gpu(A) else A.to_host() if isinstance(A, BlockVector) else A


def matrix_on_host(A: Any) -> Any:
    """Return the matrix of a sparse operator of the host; None for anything else."""
    is_whole = isinstance(A, blockvec.Operator) and A.device == "cpu" and A.layout is None
    return A.to_host() if is_whole and hasattr(getattr(A, "prepared", None), "indptr") else None


def blas_threads(A: Any) -> AbstractContextManager[object]:
    """Limit BLAS to one thread beside an operator of the host whose products need no threads of it."""
    is_limited = A.device == "cpu" and not needs_threads(A)
    return blockvec.single_threaded_blas if is_limited else nullcontext()


def natively(caller: ArrayKind | None, *operands: Any) -> list[Any]:
    """Convert matrices and functions of torch and JAX to ones of NumPy, SciPy and CuPy; keep all others.

    Matrices and arrays of other element types are converted to one of blocks. Functions take arrays of the
    caller's kind, or else of their own library. Kernels for the first operand are compiled in parallel.
    """
    converted = []
    for operand in operands:
        kind = caller or ArrayKind.of_caller(operand)
        if kind is not None and is_function(operand):
            converted.append(kind.function(operand))
        else:
            converted.append(in_element_type(native(operand)))
    precompile_matrix(converted[0])
    return converted


def spacing(matrix: Any) -> float:
    """Return eps of the element type that a matrix is given in, at least that of float64."""
    name = str(getattr(matrix, "dtype", "")).rpartition(".")[2]  # torch's types have its name
    return float(np.finfo(name if name in SHORT_TYPES else "f8").eps)


def real(
    name: str, value: Any, wanted: str = "a finite number", least: float = -FINITE, most: float = FINITE
) -> float:
    """Convert to a real number within bounds, which `wanted` says in words."""
    try:
        if isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise OptionError(f"{name}: got {value!r}; give a real number.") from None
    if not least <= number <= most:
        raise OptionError(f"{name}: got {value!r}; give {wanted}.")
    return number


def positive(name: str, value: Any) -> float | None:
    """Convert to a positive, finite number; None stays None."""
    return None if value is None else real(name, value, "a positive number", math.ulp(0.0))


def preconditioner_for(value: Any, op: Operator) -> Preconditioner:
    """Convert a preconditioner to a function of blocks that returns new ones."""
    from .linear.preconditioners import following

    update = getattr(value, "update", None)
    if not hasattr(value, "shape"):
        if not callable(value):
            raise OptionError(f"preconditioner: got {value!r}; give a matrix, an operator or a function.")

        def applied(R: BlockVector) -> BlockVector:
            return BlockVector(value(R.array), copy=True, dtype=R.dtype, layout=op.layout)

        return following(applied, update)
    on_device = isinstance(value, blockvec.Operator) or type(value).__module__.startswith("cupy")
    wanted = as_operator(value, device=None if on_device else op.device, layout=op.layout)
    if wanted.shape != op.shape:
        raise ShapeError(f"preconditioner has shape {wanted.shape} but A has {op.shape}.")
    if wanted.device != op.device:
        raise DeviceError(f"preconditioner is on {wanted.device} but A is on {op.device}; move one of them.")
    return following(wanted.apply, update)


def checkpoint_for(value: Any, interval: Any, comm: Communicator | None) -> Checkpoint | None:
    """Form the checkpoint of a call."""
    seconds = real("checkpoint_interval", interval, "seconds, at least 0", 0.0, math.inf)
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise OptionError(f"checkpoint: got {value!r}; give the path of a file.")
    return Checkpoint(value, seconds, comm)


def square(op: blockvec.Operator) -> blockvec.Operator:
    """Refuse an operator that is not square, or empty."""
    if op.shape[0] != op.shape[1]:
        raise ShapeError(f"A is {op.shape[0]} x {op.shape[1]}; eigenvalues need a square matrix.")
    if not op.shape[0]:
        raise ShapeError("A has no rows; there are no eigenvalues to compute.")
    return op


def check_shape(name: str, matrix: Any, A: Operator) -> None:
    """Refuse a matrix or an operator whose shape is not that of A."""
    shape = getattr(matrix, "shape", A.shape)
    if tuple(shape) == A.shape:
        return
    if len(shape) != 2:
        raise ShapeError(
            f"{name} has shape {shape} but A is {A.shape[0]} x {A.shape[1]}; give a matrix, of a diagonal "
            "scipy.sparse.diags_array(diagonal)."
        )
    raise ShapeError(f"{name} is {shape[0]} x {shape[1]} but A is {A.shape[0]} x {A.shape[1]}.")


def tall_block(name: str, value: Any, op: Operator) -> BlockVector:
    """Copy a given block in the type and to the device of the operator.

    Columns whose squares may overflow or underflow are scaled, since only their span matters.
    """
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    kind = getattr(value, "dtype", None)
    if kind is not None and np.dtype(kind).kind == "c" and op.dtype.kind != "c":
        raise DTypeError(f"{name} is complex but A is real; pass its real part, or A as a complex matrix.")
    source = value.array if isinstance(value, BlockVector) else value
    try:
        block = BlockVector(source, copy=True, dtype=op.dtype, layout=op.layout)
    except (ShapeError, DTypeError) as error:
        raise type(error)(f"{name}: {error}") from None
    if block.n_global != op.shape[0]:
        raise ShapeError(f"{name} has {block.n_rows} rows but A is {op.shape[0]} x {op.shape[1]}.")
    if block.n_cols == 0:
        raise ShapeError(f"{name} has no columns; leave it out instead.")
    brought_in_range(name, block)
    return on_device_of(op, block)


def on_device_of(op: Any, block: BlockVector) -> BlockVector:
    """Copy a block to the device of an operator, if it is elsewhere."""
    return block if block.device == op.device else block.to_device(op.device)


def brought_in_range(name: str, block: BlockVector) -> Any:
    """Divide columns whose squares may overflow or underflow by powers of two; return their exponents.

    Raises
    ------
    OptionError
        For NaN and Inf.
    """
    with np.errstate(all="ignore"):
        norms = to_host(block.norms())
    exponents = np.zeros(block.n_cols, int)
    if (is_ordinary(norms, block.dtype) & (norms > 0)).all():  # a norm of 0 may have underflowed
        return exponents
    largest = np.zeros(block.n_cols)
    if len(block.array):  # CuPy has no `initial` of a largest number
        parts = (block.array.real, block.array.imag)
        largest = np.maximum(*(to_host(abs(part).max(axis=0)) for part in parts))
    largest = largest if block.layout is None else block.layout.largest(largest)
    if not np.isfinite(largest).all():
        raise OptionError(f"{name} holds NaN or Inf; give finite vectors.")
    exponents = np.frexp(largest)[1]
    scale_by_powers(block, -exponents)
    return exponents


def scale_by_powers(block: BlockVector, exponents: Any) -> None:
    """Multiply columns by powers of two, which themselves may be out of the range of their type."""
    for part in (exponents // 2, exponents - exponents // 2):
        if part.any():
            block.scale(column_factors(np.ldexp(1.0, part), block))


def generator(rng: Any, comm: Communicator | None = None) -> np.random.Generator:
    """Form the random generator of a call; those of all processes get the state of the first one's."""
    try:
        formed = np.random.default_rng(plain(rng))
    except (TypeError, ValueError):
        raise OptionError(f"rng: got {rng!r}; give None, an integer of at least 0, or a Generator.") from None
    if comm is not None:
        formed.bit_generator.state = share(comm, formed.bit_generator.state)[0]
    return formed
