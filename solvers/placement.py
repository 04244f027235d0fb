"""The device that a problem is solved on, and whether factors are affordable there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import blockvec
from blockvec.errors import DeviceError
from blockvec.system.installation import install_command

from .arguments import is_explicit
from .blocks import Operator
from .costs import STEP_VECTORS, dense_is_faster
from .runtime.memory import require_memory

if TYPE_CHECKING:
    from .call import Call
    from .factorization.work import FactorWork

UNASKED_ENTRIES = 100_000_000  # stored entries: of a matrix that is factorised unasked, at most
AFFORDABLE_S = 20.0  # s, predicted: a factorisation on the host that nobody asked for
MOST_BYTES = 1 << 33  # bytes, predicted: of the same, half of the memory of a small computer
# Factorisation above which values around a shift are computed without one. For random graphs, where this
# matters, the prediction is some five times too high.
LONGEST_S = 600.0  # s, predicted
# Factorisation on the host for a matrix of a GPU without a library of factors, where iterations can take its
# place. Inside a spectrum iterations on a GPU took 3 to 60 times as long, at an end a fifth for a cube of
# 30^3.
QUICK_S = 8.0  # s, predicted
MOST_ENTRIES = 5_000_000  # entries of a matrix that is copied for this prediction, up to three times too high
FOREST = 3  # elements per row of matrices without cycles in their graphs, at most
# Real entries of a matrix and these vectors up to which steps on the host take less time than the launches of
# their kernels on a GPU.
HOST_WORK = 40_000  # entries
HOST_PAIRS = 20  # pairs: the same up to here
LAPACK_ROWS = 256  # rows: up to here LAPACK takes as long as a GPU's, which compiles kernels at first


def placed(call: Call, device: str, method: str) -> tuple[bool, bool, bool]:
    """Place the problem of a call on its device, or on the host.

    Returns whether a problem of a GPU moves to the host, whether it is transformed, by a factorisation or
    operators in its place, and whether a shift is a target of iterations without a factorisation. Steps with
    a small matrix of a GPU take less time on the host than their launches would.

    Raises
    ------
    DeviceError
        For a problem that needs factors that nothing on this machine can compute.
    """
    factors = None  # where A - sigma M is factorised, if that is needed and takes less time than iterations
    if not (call.M is None and call.sigma is None and call.interval is None):
        factors = place_of(call.A, device, QUICK_S if call.is_plain else LONGEST_S, call.M)
        # A place on the host for a matrix of a GPU has been predicted to be quick.
        may_take_long = call.is_plain and call.sigma is not None and method == "auto" and factors == device
        if may_take_long and not blockvec.Factorization.is_small(*_size(call.A)):
            factors = factors if factor_s(call.A, device, LONGEST_S) <= LONGEST_S else None
    is_target = call.which == "LM" and factors is None  # iterations find the nearest values only
    by_products = method in ("filter", "dense") or (method == "auto" and is_target)
    unfactored = method == "jd" or (call.is_plain and by_products)
    is_shifted = call.sigma is not None and not unfactored
    transforms = call.interval is None and (call.M is not None or is_shifted)
    return device != "cpu" and _moves(call, device, method, factors, transforms), transforms, unfactored


def _moves(call: Call, device: str, method: str, factors: str | None, transforms: bool) -> bool:
    """Check whether the host solves a problem of a GPU, of which A has factors at a place."""
    M, mode, sigma = call.M, call.mode, call.sigma
    if call.interval is not None:
        return method == "auto" and factors == "cpu"
    is_on_host = method in ("jd", "dense") or mode in ("distance", "reciprocal")
    needs_host = is_on_host or call.options["Minv"] is not None
    is_given = call.OPinv is not None and not needs_host
    if not transforms or is_given or (M is None and mode == "distance"):
        return call.is_plain and sigma is None and method == "auto" and is_short(call.A, call.k)
    if factors is None and sigma is None and not needs_host and place_of(M, device, 0.0) is not None:
        return False  # blocks are copied to small factors of M on the host and back
    if factors is None or (factors != "cpu" and needs_host):
        raise DeviceError(
            f"A: is on {device}, where a factorisation of this size needs cuDSS: "
            f"{install_command('cuda13')} (cuda12 for CUDA 12). Or give A as a matrix of the host, or OPinv."
        )
    return factors == "cpu"


def is_short(A: Any, k: int) -> bool:
    """Check whether A is a matrix that the host solves sooner: of few rows, or with steps of microseconds."""
    parts = {"f": math.inf, "F": math.inf, "d": 1, "D": 2}.get(getattr(getattr(A, "dtype", None), "char", ""))
    is_stored = hasattr(A, "nnz") or is_explicit(A)
    if isinstance(A, blockvec.Operator):
        is_stored = hasattr(getattr(A, "prepared", None), "to_host")
    if parts is None or not is_stored:
        return False
    if A.shape[0] <= LAPACK_ROWS:
        return True
    work = parts * (getattr(A, "nnz", math.inf) + STEP_VECTORS * A.shape[0])
    return 0 < k <= HOST_PAIRS and bool(work <= HOST_WORK)


def place_of(A: Any, device: str, limit_s: float = QUICK_S, M: Any = None) -> str | None:
    """Choose where to factorise a matrix of a device: there, or on the ``"cpu"``; None if neither can.

    Large matrices of a GPU without a library of factors are factorised on the host if that is predicted to
    take `limit_s` seconds at most. Functions have no factors.
    """
    if not is_explicit(A) or len(A.shape) != 2:
        return None
    n, entries = _size(A)
    if device == "cpu" or blockvec.Factorization.is_small(n, entries):
        return "cpu"
    if blockvec.Factorization.is_available(device):
        return device
    is_quick = entries <= MOST_ENTRIES and factor_s(A, "cpu", limit_s, M) <= limit_s
    return "cpu" if is_quick else None


def is_factorable(A: Operator, which: str) -> bool:
    """Check by its size whether factors of A - sigma M may be affordable, and help at the wanted end.

    On a GPU, dense LAPACK takes less time where it is small enough for that, and without a library of factors
    there that takes too long for others than chains and trees.
    """
    n, entries = _size(A)
    if which == "LM" or entries > UNASKED_ENTRIES:
        return False
    if A.device == "cpu":
        return True
    if dense_is_faster(n, 0, A.device, "factors") is not None:
        return False
    has_library = blockvec.Factorization.is_small(n, entries) or blockvec.Factorization.is_available(A.device)
    return has_library or entries <= min(MOST_ENTRIES, FOREST * n)


def can_factorise(op: Operator, A: Any, M: Any, *, elsewhere: bool = False) -> bool:
    """Check whether A and M are matrices whose factors take seconds where A is, or also on the host."""
    if not is_explicit(A, M):
        return False
    if op.device == "cpu":
        return is_affordable(A, M)
    place = place_of(A, op.device)
    return place == op.device or (elsewhere and place == "cpu")


def factor_s(A: Any, device: str, enough_s: float, M: Any = None) -> float:
    """Bound the seconds of a factorisation, without a search of the graph where so few are enough."""
    from .factorization.work import FactorWork

    M = M if is_explicit(M) else None
    most_s = FactorWork.dense(A, M).factor_s(device)
    return most_s if most_s <= enough_s else min(most_s, _work(A, M).factor_s(device))


def shift_invert_s(A: Any, op: Operator) -> float:
    """Predict the seconds of shift-invert for an operator of a device; inf if nothing can factorise."""
    if (place := place_of(A, op.device)) is None:
        return math.inf
    work = _work(A)
    return math.inf if op.device == "cpu" and work.nbytes > MOST_BYTES else work.solve_s(place)


def is_affordable(A: Any, M: Any) -> bool:
    """Check whether factors on the host take seconds, and a few gigabytes, of which some may not be free."""
    if blockvec.Factorization.is_small(*_size(A)):
        return True
    work = _work(A, M)
    return work.nbytes <= MOST_BYTES and work.factor_s("cpu") < AFFORDABLE_S


def require_factors(A: Any, M: Any, op: Operator, remedy: str) -> None:
    """Refuse factors on the host that are predicted to need more memory than is free.

    What is free must not choose the method: the same call would give other bits at another time.
    """
    n, entries = _size(A)
    if op.device != "cpu" or blockvec.Factorization.is_small(n, entries):
        return
    require_memory(op, _work(A, M).nbytes, f"the factors of a matrix with {n} rows", remedy)


def _work(A: Any, M: Any = None) -> FactorWork:
    from .factorization.work import FactorWork  # which a plain solve need not import

    return FactorWork.of(A, M)


def _size(A: Any) -> tuple[int, int]:
    return int(A.shape[0]), int(getattr(A, "nnz", A.shape[0] ** 2))
