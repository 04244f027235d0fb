"""The arguments of `cg`, `minres`, `gmres` and `solve`, checked and converted, and what these return."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector, as_operator
from blockvec.errors import DTypeError, OptionError, ShapeError
from blockvec.interchange import ArrayKind, is_function
from blockvec.precompile import precompile
from blockvec.system.frozen import frozen

from ..arguments import blas_threads, check_shape, integer, natively, on_device_of, real
from ..blocks import Array, Block, RealArray, column_factors, is_on_gpu, to_host
from ..problem import Counts
from ..runtime.processes import split
from .systems import BREAKDOWNS, COSTS, SINGULAR, Linear, lengths_of, underflown

Solver = TypeVar("Solver", bound=Callable[..., Linear])
# Elements of a block of the host up to which its columns are solved for one by one: a step of a block takes
# 0.4 to 0.6 ms beside the arithmetic, one of a vector 0.02 ms.
SHORT_BLOCK = 1 << 16
DOUBTFUL = 10.0  # sqrt(u) ||A||: residuals r with a shorter A r / ||r|| may be null vectors; x diverges later
TRIAL = 50  # steps from such a residual, which one of a system with a solution does not survive
PROGRESS = 0.5  # ratio of true residuals after and before a run, above which a system has stagnated
AGAIN = 0.1  # of the limit: goal of runs after the first one, whose recurrence has missed it


@frozen
class Systems:
    """Linear systems, checked and converted: blocks on the device of the operator."""

    operator: Any
    B: BlockVector
    X: Any  # a block: initial solutions
    limits: RealArray  # residual norms to reach, shape (b,)
    lengths: RealArray  # of the right-hand sides
    M: Any  # the operator of the preconditioner, or None
    A: Any  # the matrix of the caller, whose factors `solve` may take
    returned: Callable[[Block], Any]  # gives solutions the kind and the shape of the caller's B
    counts: Counts
    shift: Any = 0.0  # the systems are those of A - shift I; a number, or one per column

    @classmethod
    def of(
        cls,
        method: str,
        A: Any,
        B: Any,
        x0: Any = None,
        M: Any = None,
        tolerances: tuple[Any, Any] = (0.0, 0.0),
        like: Any = None,
        comm: Any = None,
        device: str | None = None,
        least: Any = np.float32,
        **sizes: int,
    ) -> Systems:
        """Check and convert the arguments of a call.

        Blocks have the `least` of types at least; `sizes` are those of kernels, beside the columns.
        """
        named = zip(("rtol", "atol"), tolerances, strict=True)
        rtol, atol = (real(name, value, "a number, at least 0", 0.0, math.inf) for name, value in named)
        kind = ArrayKind.of_caller(A) or ArrayKind.of_caller(B) if like is None else ArrayKind.of(like)
        M = getattr(A, "psolve", None) if M is None else M
        is_block = isinstance(B, BlockVector)
        A, M, B, x0 = natively(kind, A, M, _array(B), _array(x0))
        if not hasattr(B, "ndim") or hasattr(B, "tocsr"):
            raise DTypeError(f"B is a {type(B).__name__}; give an array, or a BlockVector.")
        if B.ndim not in (1, 2):
            raise ShapeError(f"B has {B.ndim} dimensions; give an array of shape (n,) or (n, b).")
        if is_function(A):
            A = as_operator(A, shape=(len(B), len(B)), dtype=B.dtype, device=device)
        A = split(A, comm, shape=None, dtype=None, device=device, mode="normal")
        shape = rows, columns = (*B.shape, 1)[:2]
        with warnings.catch_warnings():
            if columns == 1:  # of columns one by one
                warnings.simplefilter("ignore", UserWarning)
            operator = as_operator(A, device=device)
            dtype = np.result_type(operator.dtype, B.dtype, least)
            if type(M) is type(A):  # of which it has been said
                warnings.simplefilter("ignore", UserWarning)
            M = None if M is None else _preconditioner(M, operator, dtype)
        if operator.shape[0] != operator.shape[1]:
            raise ShapeError(f"A has shape {operator.shape}; linear systems need a square matrix.")
        own = operator.local_shape[0]
        if rows != own or not columns:
            raise ShapeError(f"B has shape {B.shape} but A {operator.shape}; give {own} rows, and a column.")
        precompile(method, operator, dtype, b=columns, **sizes)

        def copied(array: Array) -> BlockVector:
            block = BlockVector(array.reshape(shape), copy=True, dtype=dtype, layout=operator.layout)
            return on_device_of(operator, block)

        def returned(X: Block) -> Any:
            if is_block or operator.layout is not None:
                return X
            array = X.array.reshape(B.shape)
            return array if kind is None else kind.share(array)

        block = copied(B)
        if isinstance(x0, str) and x0 == "Mb":
            X = block.copy() if M is None else M.apply(block)
        elif x0 is None:
            X = block.copy().scale(0)
        elif np.shape(x0) in (shape, shape[: min(columns, 2)]):
            X = copied(x0)
        else:
            raise ShapeError(f"x0: got {x0!r:.40} of shape {np.shape(x0)}; give the shape of B, {B.shape}.")
        lengths = lengths_of(block)
        if not lengths.all():  # zero right-hand sides have zero solutions
            X.scale(column_factors((lengths > 0).astype(float), X))
        limits = np.maximum(rtol * lengths, atol) if math.isfinite(rtol) else np.full(columns, math.inf)
        _check_squares(block, lengths, limits)
        return cls(operator, block, X, limits, lengths, M, A, returned, Counts())

    @property
    def n(self) -> int:
        """Rows, of all processes."""
        return self.B.n_global

    @property
    def b(self) -> int:
        """Right-hand sides."""
        return self.B.shape[1]

    def limit(self, maxiter: Any, rows: int, least: int = 0) -> int:
        """Check a limit of iterations; by default it is a multiple of the number of `rows`."""
        return rows * self.n if maxiter is None else integer("maxiter", maxiter, least)

    def by_vectors(self, *, has_callback: bool = False) -> bool:
        """Check whether columns are solved for one by one; a callback of several needs that."""
        is_here = self.operator.device == "cpu" and self.operator.layout is None
        if has_callback and self.b > 1 and not is_here:
            raise OptionError("callback: is for one right-hand side, or for those of one host; leave it out.")
        return is_here and (self.b == 1 or has_callback or self.B.array.size <= SHORT_BLOCK)

    def apply(self, X: Block, out: Block | None = None, **options: Any) -> Any:
        """Apply A - shift I to a block, and count it."""
        self.counts.apply(X.shape[1])
        shift = self.operator.backend.xp.asarray(self.shift) if np.ndim(self.shift) else float(self.shift)
        return self.operator.apply(X, out=out, shift=shift, **options)

    def precondition(self, R: Block) -> Block:
        """Apply the preconditioner to a block, and count it."""
        self.counts.precondition(R.shape[1])
        return self.M.apply(R)  # type: ignore[no-any-return]

    def finished(self, solved: Linear, limit: int, *, return_info: bool) -> Any:
        """Return what a call returns, with a warning where an iteration broke down.

        The positive code is SciPy's, the limit of iterations, where that ended one.
        """
        from ..result import ConvergenceWarning

        for reason, text in BREAKDOWNS.items():
            if columns := [j for j, found in enumerate(solved.reasons) if found == reason]:
                shown = ", ".join(map(str, columns[:5])) + ", ..." * (len(columns) > 5)
                warnings.warn(f"right-hand side {shown}: {text}.", ConvergenceWarning, stacklevel=4)
        if return_info:
            return solved
        info = solved.info
        return solved.X, limit if "maxiter" in solved.reasons and info > 0 else info


# Adds corrections for the residuals R to X; returns iterations and reasons per column. The arguments are R,
# norms to reach, infinite for finished columns, the limit of iterations, and the `final` of `block_minres`.
Run = Callable[[Block, RealArray, int, float], tuple[NDArray[np.intp], Sequence[str]]]


def corrected(
    systems: Systems, run: Run, maxiter: int, taken: NDArray[np.intp] | int = 0, *, takes_last: bool = False
) -> Linear:
    """Run until true residuals are small, or stagnate: those of recurrences drift from them by rounding.

    Residuals that a run has made larger are undone, but with `takes_last` those at the limit of iterations:
    residuals of conjugate gradients grow for some time where errors already decrease.
    """
    X, limits, b = systems.X, systems.limits, systems.b
    taken, before = np.zeros(b, np.intp) + taken, np.full(b, np.inf)
    reasons = ended = np.full(b, "maxiter", object)
    doubtful = tried = fresh = np.zeros(b, bool)
    goals, unit, kept = limits, float(np.finfo(X.dtype).eps) / 2, None
    is_zero = not to_host(X.norms()).any()
    while True:
        R = systems.B.copy() if is_zero else systems.apply(X).axpby(1, systems.B, -1)
        residuals = lengths_of(R)
        left, is_full, is_larger = reasons == "maxiter", taken >= maxiter, residuals > before
        is_slow = np.where(fresh, is_larger, residuals > PROGRESS * before)
        undone = (is_larger & ~(is_full & takes_last)) | (is_slow & tried)  # null vectors may have any length
        for j in np.flatnonzero(left & undone & (residuals > limits)):
            X[:, j : j + 1] = 0 if kept is None else kept[:, j : j + 1]
            residuals[j] = before[j]
        is_singular = is_slow & (tried | (ended == "singular"))
        is_final = np.char.startswith(ended.astype(str), "indefinite")
        cases = residuals <= limits, is_final, is_singular, is_slow & ~is_full
        found = np.select(cases, ("converged", ended, "singular", "stagnated"), "maxiter")
        reasons = np.where(left, found, reasons)
        left = reasons == "maxiter"
        steps, final = maxiter - int(taken[left].max(initial=0)), DOUBTFUL * math.sqrt(unit)
        if not left.any() or steps <= 0:
            fields = systems.returned(X), residuals, systems.lengths, taken, tuple(reasons.tolist())
            return Linear(*fields, *COSTS(systems.counts))
        if not left.all():  # a step for a column that is finished would change it
            R.scale(column_factors(left.astype(float), R))
        kept, tried = None if is_zero else X.copy(), doubtful
        if tried.any():
            steps, final = min(steps, TRIAL), SINGULAR * unit
        with blas_threads(systems.operator):
            more, why = run(R, np.where(left, goals, np.inf), steps, final)
        taken, ended = taken + np.where(left, more, 0), np.array(why, object)
        doubtful = left & (ended == "singular") & (not tried.any())
        fresh = doubtful | (tried.any() & ~tried)
        before, goals, is_zero = residuals, AGAIN * limits, False


def _array(given: Any) -> Any:
    """Return the array of a block, or a list as one."""
    if isinstance(given, BlockVector):
        return given.array
    return np.asarray(given) if isinstance(given, list) else given


def _preconditioner(M: Any, A: Any, dtype: Any) -> Any:
    """Make an operator like A, with products of a type, of a matrix, a linear operator or a function."""
    if not is_function(M):
        check_shape("M", M, A)
        given = as_operator(M, device=None if is_on_gpu(M) else A.device, layout=A.layout)
        if np.result_type(given.dtype, dtype) == dtype:
            return given

        def product(X: Array) -> Array:
            Y: Array = given.apply(BlockVector(X, layout=A.layout)).array
            return Y if Y.dtype.kind == dtype.kind else Y.real.copy()  # positive definite as M is

        M = product
    return as_operator(M, shape=A.shape, dtype=dtype, device=A.device, layout=A.layout)


def _check_squares(B: Block, lengths: RealArray, limits: RealArray) -> None:
    """Refuse right-hand sides of which squares of residuals underflow: they would pass as zero."""
    numbers = np.finfo(B.dtype)
    doubtful = np.maximum(limits, float(numbers.eps) * lengths) < math.sqrt(numbers.tiny)
    if doubtful.any() and (lost := np.flatnonzero(underflown(B, doubtful))).size:
        raise OptionError(
            f"B: right-hand side {lost[0]} is so short that squares of residuals underflow in "
            f"{numbers.dtype}; scale B, or give it in a wider type."
        )


def takes_arrays(solve: Solver) -> Solver:
    """Let a solver of blocks take right-hand sides as an array, and return solutions of the same kind."""

    @functools.wraps(solve)
    def solved(A: Any, B: Any, **options: Any) -> Linear:
        for name in ("maxiter", "restart"):
            if options.get(name) is not None:
                options[name] = integer(name, options[name])
        if hasattr(B, "n_global"):  # a block
            return solve(A, B, **options)
        least = np.complex64 if np.iscomplexobj(options.get("shift", 0.0)) else np.float32
        systems = Systems.of(solve.__name__, A, B, None, options.get("preconditioner"), least=least)
        if hasattr(options.get("Q"), "dtype"):
            options["Q"] = BlockVector(options["Q"], copy=True, dtype=systems.B.dtype)
        options["preconditioner"] = systems.M and systems.M.apply
        found = solve(systems.operator, systems.B, **options)
        return replace(found, X=systems.returned(found.X))

    return solved  # type: ignore[return-value]
