"""The device that a problem is solved on, and whether factors are affordable there."""

from __future__ import annotations

import math
from typing import Any, Self

import blockvec
from blockvec.errors import DeviceError
from blockvec.system.frozen import frozen
from blockvec.system.installation import install_command

from .arguments import is_explicit
from .blocks import Operator
from .costs import dense_is_faster
from .runtime.memory import require_memory

UNASKED_ENTRIES = 100_000_000  # stored entries: of a matrix that is factorised unasked, at most
AFFORDABLE_S = 20.0  # of a factorisation on the host that nobody asked for
MOST_BYTES = 8 << 30  # predicted bytes of the same: half of the memory of a small computer
# Predicted seconds of a factorisation, above which values around a shift are computed without one. For random
# graphs, where this matters, the prediction is some five times too high.
LONGEST_S = 600.0
# The same on the host for a matrix of a GPU without a library of factors, where iterations can take their
# place, and the most rows and entries that are copied for a prediction, which is up to three times too high.
# Inside a spectrum iterations on a GPU took 3 to 60 times as long, at an end a fifth for a cube of 30^3.
QUICK_S, MOST_ROWS, MOST_ENTRIES = 8.0, 300_000, 5_000_000
FOREST = 3  # elements per row of matrices without cycles in their graphs, at most
# Real entries of a matrix and of STEP_VECTORS vectors, and wanted pairs, up to which steps on the host take
# less time than the launches of their kernels on a GPU. For one or two pairs there are few steps, and other
# calls of the GPU take longer: twice the work.
HOST_WORK, HOST_PAIRS, STEP_VECTORS, FEW = 40_000, 20, 8, 2
LAPACK_ROWS = 256  # up to here LAPACK on the host takes as long as a GPU's, which compiles kernels at first


@frozen
class Placement:
    """Where a problem is solved.

    Attributes
    ----------
    home : str or None
        Device that the result is copied to from the host, which solves the problem in its place.
    is_on_host : bool
        Whether the matrices must be those of the host.
    transforms : bool
        Whether the problem is solved in another form, by a factorisation or operators in its place.
    unfactored : bool
        Whether a shift is a target of iterations without a factorisation.
    """

    home: str | None
    is_on_host: bool
    transforms: bool
    unfactored: bool

    @classmethod
    def of(
        cls,
        A: Any,
        M: Any,
        device: str,
        sigma: float | None,
        *,
        k: int,
        method: str,
        mode: str,
        is_given: bool,
        needs_host: bool,
        has_interval: bool,
    ) -> Self:
        """Place a problem of `eigsh` on a device, or on the host.

        `is_given`: (A - sigma M)^-1 is given. `needs_host`: an operator must be one of the host. Steps with a
        small matrix of a GPU take less time on the host than their launches would.

        Raises
        ------
        DeviceError
            For a problem that needs factors that nothing on this machine can compute.
        """
        is_plain = M is None and not is_given and mode == "normal"
        place = None
        if M is not None or sigma is not None or has_interval:  # otherwise nothing is factorised
            place = place_of(A, device, QUICK_S if is_plain else LONGEST_S, M)
        # A place on the host for a matrix of a GPU has been predicted to be quick.
        may_take_long = is_plain and sigma is not None and method == "auto" and place == device
        if may_take_long and _takes_too_long(A, device):
            place = None
        corrects = method == "jd"
        by_filter = method == "filter" or (method == "auto" and place is None)
        unfactored = corrects or (is_plain and (by_filter or method == "dense"))
        transforms = not has_interval and (M is not None or not (sigma is None or unfactored))
        moves = has_interval and method == "auto" and place == "cpu"
        ends = is_plain and sigma is None and method == "auto" and not has_interval and not needs_host
        moves |= ends and is_short(A, k)
        needs_host |= method in ("jd", "dense") or mode in ("distance", "reciprocal")
        is_factorised = (needs_host or not is_given) and (M is not None or mode != "distance")
        if transforms and device != "cpu" and is_factorised:
            if place is None and sigma is None and not needs_host:
                place = place_of(M, device, 0.0)
                place = device if place == "cpu" else place  # blocks are copied to small factors and back
            if place is None or (place != "cpu" and needs_host):
                raise DeviceError(without_factors(device))
            moves = place == "cpu"
        home = device if moves and device != "cpu" else None
        return cls(home, device == "cpu" or home is not None, transforms, unfactored)


def is_short(A: Any, k: int) -> bool:
    """Check whether A is a matrix that the host solves sooner: of few rows, or with steps of microseconds."""
    type_of = getattr(getattr(A, "dtype", None), "char", "")
    if type_of not in tuple("fdFD") or not _is_stored(A):
        return False
    if A.shape[0] <= LAPACK_ROWS:
        return True
    if not 0 < k <= HOST_PAIRS or type_of not in "dD":
        return False
    parts, most = (2 if type_of == "D" else 1), (2 if k <= FEW else 1) * HOST_WORK
    return hasattr(A, "nnz") and bool(parts * (A.nnz + STEP_VECTORS * A.shape[0]) <= most)


def _is_stored(A: Any) -> bool:
    """Check whether the entries of A are at hand."""
    if isinstance(A, blockvec.Operator):
        return hasattr(getattr(A, "prepared", None), "to_host")
    return hasattr(A, "nnz") or is_explicit(A)


def _takes_too_long(A: Any, device: str) -> bool:
    """Predict whether a factorisation asked for takes many minutes."""
    return not blockvec.Factorization.is_small(*_size(A)) and factor_s(A, device, LONGEST_S) > LONGEST_S


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
    is_quick = n <= MOST_ROWS and entries <= MOST_ENTRIES and factor_s(A, "cpu", limit_s, M) <= limit_s
    return "cpu" if is_quick else None


def may_factorise(op: Operator) -> bool:
    """Check by its size whether a matrix has a place for factors that nobody asked for, before a prediction.

    On a GPU without a library of factors that takes too long for others than chains and trees.
    """
    n = op.shape[0]
    entries = getattr(op, "nnz", n * n)
    if op.device == "cpu" or blockvec.Factorization.is_small(n, entries):
        return True
    return blockvec.Factorization.is_available(op.device) or (n <= MOST_ROWS and entries <= FOREST * n)


def is_factorable(A: Operator, which: str) -> bool:
    """Check whether factors of A - sigma M may be affordable, and help at the wanted end.

    On a GPU, dense LAPACK takes less time where it is small enough for that.
    """
    n = A.shape[0]
    entries = getattr(A, "nnz", n * n)
    if which not in ("SA", "LA") or entries > UNASKED_ENTRIES:
        return False
    return A.device == "cpu" or (dense_is_faster(n, 0, A.device, "factors") is None and may_factorise(A))


def is_factorable_pair(operator: Operator, A: Any, M: Any, which: str) -> bool:
    """Check the same for a pair, whose iteration tells little about the time that it will take."""
    if not is_factorable(operator, "SA" if which == "BE" else which):
        return False
    if operator.device == "cpu":
        return is_affordable(A, M)
    return place_of(A, operator.device) is not None


def factor_s(A: Any, device: str, enough_s: float, M: Any = None) -> float:
    """Bound the seconds of a factorisation, by a longer search until so few are enough."""
    from .factorization.work import FactorWork

    if M is not None and is_explicit(M):  # whose pattern may be another one
        return FactorWork.of(A, M).factor_s(device)
    least = math.inf
    # The search of a long, thin graph takes longer than its factors.
    for bound in (FactorWork.dense, FactorWork.of_band, FactorWork.of):
        least = min(least, bound(A).factor_s(device))
        if least <= enough_s:
            break
    return least


def shift_invert_s(A: Any, op: Operator) -> float:
    """Predict the seconds of shift-invert for an operator of a device; inf if nothing can factorise."""
    from .factorization.work import FactorWork

    if (place := place_of(A, op.device)) is None:
        return math.inf
    work = FactorWork.of(A)
    if op.device == "cpu" and work.nbytes > MOST_BYTES:
        return math.inf
    return work.solve_s(place)


def is_affordable(A: Any, M: Any) -> bool:
    """Check whether factors on the host take seconds, and a few gigabytes, of which some may not be free."""
    if blockvec.Factorization.is_small(*_size(A)):
        return True
    from .factorization.work import FactorWork

    work = FactorWork.of(A, M)
    return work.nbytes <= MOST_BYTES and work.factor_s("cpu") < AFFORDABLE_S


def require_factors(A: Any, M: Any, op: Operator, remedy: str) -> None:
    """Refuse factors on the host that are predicted to need more memory than is free.

    What is free must not choose the method: the same call would give other bits at another time.
    """
    n, entries = _size(A)
    if op.device != "cpu" or blockvec.Factorization.is_small(n, entries):
        return
    from .factorization.work import FactorWork

    require_memory(op, FactorWork.of(A, M).nbytes, f"the factors of a matrix with {n} rows", remedy)


def _size(A: Any) -> tuple[int, int]:
    """Count the rows and the stored elements of a square matrix."""
    n = int(A.shape[0])
    return n, int(getattr(A, "nnz", n * n))


def without_factors(device: str) -> str:
    """Form the message for a problem that nothing on this machine can factorise."""
    return (
        f"A: is on {device}, where a factorisation of this size needs cuDSS: "
        f"{install_command('cuda13')} (cuda12 for CUDA 12). Or give A as a matrix of the host, or OPinv."
    )
