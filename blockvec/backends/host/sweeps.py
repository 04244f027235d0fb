"""Sweeps over a basis and a block on the host: rows of the block are multiplied twice while in cache."""

from __future__ import annotations

import numpy as np

from ...kernels.problem import SweepProblem, TsmttsmProblem, is_complex, itemsize
from ..base import Array
from .panels import (
    CHUNK_BYTES,
    REAL_TYPES,
    combine_parts,
    mirror_upper,
    multiply,
    panel_rows,
    real_coefficients,
    real_view,
    spread_rows,
    sum_rows,
)

LEAST_BYTES = 32 << 20  # smaller blocks stay in a server's last-level cache between the two products


def refusal(problem: SweepProblem) -> str | None:
    """Reason why two separate products are better than a sweep; None if the sweep is better."""
    if len({problem.dtype_w, problem.dtype_v, problem.dtype_c}) > 1:
        return "mixed types"
    if min(problem.K, problem.M, problem.N) == 0:
        return "nothing to multiply"
    if problem.K * problem.N * itemsize(problem.dtype_v) < LEAST_BYTES:
        return f"a block under {LEAST_BYTES >> 20} MiB stays in cache between two products"
    return None


def sweep(problem: SweepProblem, W: Array, V: Array, C: Array, S: Array) -> None:
    """Set V = V C, S = W^H V; or V = V - W C, S = V^H V.

    The new rows of a chunk are computed in a buffer that stays in cache, and multiplied from there.
    """
    Wr, Vr = real_view(W), real_view(V)
    combines = problem.operation == "combine_dot"
    work_dtype = REAL_TYPES[problem.dtype]
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
        mirror_upper(G)
    (M, N), dtype = S.shape, problem.dtype_v
    product = TsmttsmProblem(problem.K, M, N, dtype, dtype, M, N, conj=is_complex(dtype))
    S[...] = combine_parts(G, product)
