"""Sweeps over a basis and a block on the host: rows of the block are multiplied again while in cache."""

from __future__ import annotations

import numpy as np

from ...kernels.problem import SweepProblem, TsmttsmProblem, is_complex, itemsize
from ..base import Array
from .panels import (
    CHUNK_BYTES,
    combine_parts,
    multiply,
    panel_rows,
    real_coefficients,
    real_dtype,
    real_view,
    spread_rows,
    sum_rows,
)

__all__ = ["refusal", "sweep"]

LEAST_BYTES = 32 << 20  # smaller blocks stay in a server's last-level cache from one product to the next


def refusal(problem: SweepProblem) -> str:
    """Say why the two products should follow each other; empty where they are better done together."""
    if len({problem.dtype_w, problem.dtype_v, problem.dtype_c}) > 1:
        return "mixed types"
    if min(problem.K, problem.M, problem.N) == 0:
        return "nothing to multiply"
    if problem.K * problem.N * itemsize(problem.dtype_v) < LEAST_BYTES:
        return f"a block under {LEAST_BYTES >> 20} MiB stays in cache between two products"
    return ""


def sweep(problem: SweepProblem, W: Array, V: Array, C: Array, S: Array) -> None:
    """V <- V C, S = W^H V; or V <- V - W C, S = V^H V.

    The rows of a chunk are replaced through a buffer that stays in cache, and multiplied from it.
    """
    Wr, Vr = real_view(W), real_view(V)
    combines = problem.operation == "combine_dot"
    work_dtype = real_dtype(problem.dtype)
    Cr = real_coefficients(C if combines else -C, is_complex(problem.dtype), problem.dtype)
    rows = panel_rows((sum(Cr.shape)) * Cr.itemsize)
    chunk = max(CHUNK_BYTES // (Vr.shape[1] * Cr.itemsize) // rows * rows, rows)

    def work(begin: int, end: int) -> Array:
        total = np.zeros((Wr.shape[1] if combines else Vr.shape[1], Vr.shape[1]))
        replaced = np.empty((min(chunk, end - begin), Vr.shape[1]), Cr.dtype)
        for row in range(begin, end, chunk):
            stop = min(row + chunk, end)
            part = replaced[: stop - row]
            multiply((Vr if combines else Wr)[row:stop], Cr, part, rows)
            if not combines:
                part += Vr[row:stop]
            Vr[row:stop] = part
            total += sum_rows(Wr[row:stop] if combines else part, part, 0, stop - row, work_dtype)
        return total

    parts = spread_rows(problem, work, problem.K)
    G = sum(parts[1:], start=parts[0])
    if not combines:
        G = np.triu(G) + np.triu(G, 1).T
    S[...] = combine_parts(G, _small_product(problem))


def _small_product(problem: SweepProblem) -> TsmttsmProblem:
    """Describe the product that S is."""
    M = problem.M if problem.operation == "combine_dot" else problem.N
    dtype = problem.dtype_v
    return TsmttsmProblem(problem.K, M, problem.N, dtype, dtype, M, problem.N, conj=is_complex(dtype))
