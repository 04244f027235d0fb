"""Linear solvers of blocks for callers who have arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from blockvec import BlockVector, as_operator
from blockvec.interchange import ArrayKind

from ..arguments import natively, preconditioner_for, whole
from .systems import Linear

Solver = TypeVar("Solver", bound=Callable[..., Linear])


def takes_arrays(solve: Solver) -> Solver:
    """Let a solver of blocks take right-hand sides as an array, and return solutions of the same kind."""

    @functools.wraps(solve)
    def solved(A: Any, B: Any, **options: Any) -> Linear:
        for name in ("maxiter", "restart"):
            if options.get(name) is not None:
                options[name] = whole(name, options[name])
        if hasattr(B, "n_global"):  # a block
            return solve(A, B, **options)
        caller = ArrayKind.of_caller(B)
        given = options.get("Q"), options.get("preconditioner")
        A, B, Q, preconditioner = natively(caller, A, np.asarray(B) if isinstance(B, list) else B, *given)
        operator = A if hasattr(A, "apply") else as_operator(A)
        shift: Any = options.get("shift")
        is_complex = np.iscomplexobj(shift)
        dtype = np.result_type(operator.dtype, B.dtype, np.complex64 if is_complex else np.float32)
        if hasattr(Q, "dtype"):
            options["Q"] = BlockVector(Q, copy=True, dtype=dtype)
        if preconditioner is not None:
            options["preconditioner"] = preconditioner_for(preconditioner, operator)
        result = solve(operator, BlockVector(B, copy=True, dtype=dtype), **options)
        X = result.X.array.reshape(B.shape)
        return replace(result, X=X if caller is None else caller.share(X))

    return solved  # type: ignore[return-value]
