"""The arguments of `cg`, `minres`, `gmres` and `solve`, checked and converted, and what these return."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import BlockVector, as_operator
from blockvec.errors import OptionError, ShapeError
from blockvec.interchange import ArrayKind, is_function
from blockvec.system.frozen import frozen

from ..arguments import blas_threads, natively, preconditioner_for, real
from ..blocks import Array, Block, RealArray, column_factors, to_host
from ..runtime.processes import split
from .systems import Linear, Preconditioner, Reason, finite
from .vectors import Outcome

# Elements of a block of the host up to which its columns are solved for one by one: a step of a block takes
# 0.4 to 0.6 ms beside the arithmetic, one of a vector 0.02 ms.
SHORT_BLOCK = 1 << 16


@frozen
class Systems:
    """Linear systems, checked and converted: blocks on the device of the operator."""

    operator: Any
    B: BlockVector
    X: BlockVector  # initial solutions
    is_zero: bool  # whether these are zero
    limits: RealArray  # residual norms to reach, shape (b,)
    lengths: RealArray  # of the right-hand sides
    preconditioner: Preconditioner | None
    vectors: tuple[Any, Any]  # A and M as given, for `vectors`
    shape: tuple[int, ...]  # of the caller's right-hand sides
    kind: ArrayKind | None
    is_block: bool  # whether the caller's right-hand sides are a BlockVector

    @classmethod
    def of(
        cls,
        A: Any,
        B: Any,
        x0: Any,
        M: Any,
        tolerances: tuple[Any, Any],
        like: Any,
        comm: Any,
        device: str | None,
    ) -> Systems:
        """Check and convert the arguments of a call."""
        rtol = real("rtol", tolerances[0], "a number, at least 0", lambda x: x >= 0)
        atol = real("atol", tolerances[1], "a number, at least 0", lambda x: x >= 0)
        kind = ArrayKind.of_caller(A) or ArrayKind.of_caller(B) if like is None else ArrayKind.of(like)
        M = getattr(A, "psolve", None) if M is None else M
        is_block = isinstance(B, BlockVector)
        A, M, B, x0 = natively(kind, A, M, _array(B), _array(x0))
        if B.ndim not in (1, 2):
            raise ShapeError(f"B has {B.ndim} dimensions; give an array of shape (n,) or (n, b).")
        if is_function(A):
            A = as_operator(A, shape=(len(B), len(B)), dtype=B.dtype, device=device)
        A = split(A, comm, shape=None, dtype=None, device=device, mode="normal")
        first = B if B.ndim == 2 else B[:, None]
        with warnings.catch_warnings():
            if first.shape[1] == 1:  # of columns one by one
                warnings.simplefilter("ignore", UserWarning)
            operator = as_operator(A, device=device)
        if operator.shape[0] != operator.shape[1]:
            raise ShapeError(f"A has shape {operator.shape}; linear systems need a square matrix.")
        rows = operator.local_shape[0]
        if len(B) != rows or not first.shape[1]:
            raise ShapeError(f"B has shape {B.shape} but A {operator.shape}; give {rows} rows, and a column.")
        dtype = np.result_type(operator.dtype, B.dtype, np.float32)
        block = _moved(BlockVector(first, copy=True, dtype=dtype, layout=operator.layout), operator)
        with warnings.catch_warnings():
            if first.shape[1] == 1:
                warnings.simplefilter("ignore", UserWarning)
            preconditioner = None if M is None else preconditioner_for(M, operator)
        X = block.like()
        if isinstance(x0, str) and x0 == "Mb":
            X[:, :] = block if preconditioner is None else preconditioner(block)
        elif x0 is None:
            X[:, :] = 0
        else:
            start = np.shape(x0) in (B.shape, first.shape) or (
                first.shape[1] == 1 and np.shape(x0) == (rows,)
            )
            if isinstance(x0, str) or not start:
                raise ShapeError(
                    f"x0: got {x0!r:.40} of shape {np.shape(x0)}; give the shape of B, {B.shape}."
                )
            initial = BlockVector(x0.reshape(first.shape), copy=True, dtype=dtype, layout=operator.layout)
            X = _moved(initial, operator)
        lengths = np.asarray(finite(to_host(block.norms())), np.float64)
        if not lengths.all():  # zero right-hand sides have zero solutions
            X.scale(column_factors((lengths > 0).astype(float), X))
        limits = np.maximum(rtol * lengths, atol) if math.isfinite(rtol) else np.full(len(lengths), math.inf)
        given = (A, M)
        return cls(
            operator, block, X, x0 is None, limits, lengths, preconditioner, given, B.shape, kind, is_block
        )

    @property
    def n(self) -> int:
        """Rows, of all processes."""
        return self.B.n_global

    @property
    def b(self) -> int:
        """Right-hand sides."""
        return self.B.shape[1]

    def by_vectors(self, *, has_callback: bool = False) -> bool:
        """Check whether columns are solved for one by one; a callback of several needs that."""
        is_here = self.operator.device == "cpu" and self.operator.layout is None
        if has_callback and self.b > 1 and not is_here:
            raise OptionError("callback: is for one right-hand side, or for those of one host; leave it out.")
        return is_here and (self.b == 1 or has_callback or self.B.array.size <= SHORT_BLOCK)

    def each(self, solve: Callable[..., Outcome], shift: Any = 0.0) -> Linear:
        """Solve for the columns one by one, with ``solve(product, precondition, b, x, limit)``."""
        with blas_threads(self.operator):
            return self._each(solve, shift)

    def _each(self, solve: Callable[..., Outcome], shift: Any) -> Linear:
        X, outcomes = self.X.array, []
        shifts = np.broadcast_to(shift, (self.b,))
        precondition = None if self.vectors[1] is None else self._precondition
        counts = [0, 0]
        for j in range(self.b):

            def product(x: Array, sigma: float = float(shifts[j])) -> Array:
                counts[0] += 1
                y = self._product(x)
                return y - sigma * x if sigma else y

            def solved(r: Array) -> Array:
                counts[1] += 1
                return self._precondition(r)

            b, x = self.B.array[:, j].copy(), X[:, j].copy()
            if self.lengths[j] == 0:
                outcomes.append((0.0, 0, "converged"))
                continue
            outcomes.append(solve(product, precondition and solved, b, x, float(self.limits[j])))
            X[:, j] = x
        residuals, iterations, reasons = zip(*outcomes, strict=True)
        return self.linear(residuals, iterations, reasons, (counts[0], *counts))

    def preconditioned(self, X: Array) -> Array:
        """Apply the preconditioner to rows of this process."""
        assert self.preconditioner is not None
        return self.preconditioner(BlockVector(X, layout=self.operator.layout)).array

    def _product(self, x: Array) -> Array:
        given, operator = self.vectors[0], self.operator
        matrix = getattr(operator, "matrix", None)
        if matrix is not None:
            return np.asarray(matrix @ x, x.dtype)
        if hasattr(given, "matvec"):
            return np.asarray(given.matvec(x), x.dtype).reshape(-1)
        if operator.dtype != x.dtype or not hasattr(operator, "nnz"):
            return operator.apply(BlockVector(x)).array[:, 0]  # type: ignore[no-any-return]
        y = np.empty_like(x)
        operator.apply_columns(x[:, None], y[:, None])
        return y

    def _precondition(self, r: Array) -> Array:
        M = self.vectors[1]
        if hasattr(M, "matvec"):
            return np.asarray(M.matvec(r), r.dtype).reshape(-1)
        if isinstance(M, np.ndarray) or hasattr(M, "tocsr"):
            return np.asarray(M @ r, r.dtype)
        assert self.preconditioner is not None
        return np.ascontiguousarray(self.preconditioner(BlockVector(r)).array[:, 0])

    def linear(
        self,
        residuals: Any,
        iterations: Any,
        reasons: Sequence[Any],
        counts: Any,
    ) -> Linear:
        """Assemble the result for the solutions in X."""
        return Linear(
            X=self.X,
            residuals=np.asarray(residuals, np.float64),
            initial=self.lengths,
            iterations=np.asarray(iterations, np.intp),
            reasons=tuple(reasons),
            operator_columns=int(counts[0]),
            block_applications=int(counts[1]),
            preconditioner_columns=int(counts[2]),
            reductions=0,
        )

    def returned(self, X: Block) -> Any:
        """Return solutions as the right-hand sides were given."""
        if self.is_block or self.operator.layout is not None:
            return X
        array = X.array.reshape(self.shape)
        return array if self.kind is None else self.kind.share(array)

    def finished(self, solved: Linear, code: int | None, *, return_info: bool) -> Any:
        """Return what a call returns, with a warning where an iteration broke down.

        `code` is the positive one in SciPy's place: its limit of iterations.
        """
        solved = replace(solved, X=self.returned(solved.X))
        self._warn(solved.reasons)
        if return_info:
            return solved
        info = solved.info
        reached = "maxiter" in solved.reasons and info > 0 and code is not None
        return solved.X, code if reached else info

    def _warn(self, reasons: Sequence[Reason]) -> None:
        from ..result import ConvergenceWarning

        for reason, text in BREAKDOWNS.items():
            columns = [j for j, found in enumerate(reasons) if found == reason]
            if columns:
                shown = ", ".join(map(str, columns[:5])) + ", ..." * (len(columns) > 5)
                warnings.warn(f"right-hand side {shown}: {text}.", ConvergenceWarning, stacklevel=4)


BREAKDOWNS = {
    "indefinite": "A is not positive definite, which conjugate gradients need: use minres",
    "indefinite preconditioner": "M is not positive definite; give another, or none",
    "singular": "A or M is singular, and the residual cannot be reduced further",
}


def _array(value: Any) -> Any:
    return (
        value.array
        if isinstance(value, BlockVector)
        else np.asarray(value)
        if isinstance(value, list)
        else value
    )


def _moved(block: BlockVector, operator: Any) -> BlockVector:
    """Copy a block to the device of an operator, if it is elsewhere."""
    if block.device == operator.device:
        return block
    return block.to_host() if operator.device == "cpu" else block.to_device(operator.device)
