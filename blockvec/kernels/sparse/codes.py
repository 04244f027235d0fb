"""Matrices of few different values: column and value of an entry in one number of 32 bits.

Unweighted graphs, stencils with constant coefficients and models of physics have a handful of values. Their
entries then take 4 bytes instead of 8 to 20. Everything here accepts NumPy and CuPy arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..limits import WARP, ceil_div
from ..problem import is_complex
from ..source import Kernel, c_type, kernel
from .arrays import Array, Load, address, namespace, to_host
from .csr_plan import CODE_BIT, MAX_VALUES, Codes, Plan

_LEAST_ENTRIES = 1 << 21  # smaller matrices stay in L2, and no product takes long
_SAMPLES, _SAMPLE_ENTRIES = 4, 512
_MAX_ROUNDS = 8
_WARPS = 8  # per block


def encode(plan: Plan, n_cols: int, blocks: int, load: Load) -> Codes | None:
    """Encode the entries of a matrix; None if it has too many different values, or columns.

    A sample of the values begins the table. The kernel, of `blocks` thread blocks, reports values that it
    lacks, which are added until none is missing. Waits for the device.
    """
    table = sampled_values(plan, n_cols)
    if table is None:
        return None
    xp, dtype, n_warps = namespace(plan.data), plan.data.dtype, _WARPS * blocks
    entries, missing = xp.empty(plan.nnz, np.int32), xp.empty(n_warps, dtype)
    for _ in range(_MAX_ROUNDS):
        if len(table) > MAX_VALUES:
            break
        padded = np.concatenate([table, np.zeros(MAX_VALUES - len(table), dtype)])
        codes, lacks = Codes(entries, xp.asarray(padded)), xp.zeros(n_warps, np.int32)
        _launch(plan, codes, len(table), missing, lacks, blocks, load)
        is_missing = to_host(lacks) != 0
        if not is_missing.any():
            return codes
        table = _distinct([table, to_host(missing)[is_missing]])
    return None


def sampled_values(plan: Plan, n_cols: int) -> Any | None:
    """List the different values in a sample of a matrix; None if it cannot be encoded."""
    if plan.index_bytes != 4 or n_cols > 1 << CODE_BIT or plan.nnz < _LEAST_ENTRIES:
        return None
    begins = [plan.nnz * i // _SAMPLES for i in range(_SAMPLES)]
    table = _distinct(_pieces(plan.data, [(at, at + _SAMPLE_ENTRIES) for at in begins]))
    return table if len(table) <= MAX_VALUES else None


def _pieces(array: Array, ranges: list[tuple[int, int]]) -> list[Any]:
    """Copy pieces of an array to the host; waits for its device once."""
    if (xp := namespace(array)) is np:
        return [array[i:j] for i, j in ranges]
    ends, size = np.cumsum([j - i for i, j in ranges]).tolist(), array.itemsize
    memory, stream = xp.cuda.alloc_pinned_memory(max(ends[-1] * size, 1)), xp.cuda.get_current_stream()
    for (i, j), begin in zip(ranges, (0, *ends), strict=False):
        (array.data + i * size).copy_to_host_async(memory.ptr + begin * size, (j - i) * size, stream)
    stream.synchronize()
    return np.split(np.frombuffer(memory, array.dtype, ends[-1]), ends[:-1])


def kernel_of(dtype: str) -> Kernel:
    """Describe the kernel that encodes."""
    values = {"S_COMPLEX": is_complex(dtype), "CODE_BIT": CODE_BIT, "WARPS": _WARPS}
    return kernel("sparse/spmmv_codes", values, {"SReal": c_type(dtype)})


def _launch(
    plan: Plan, codes: Codes, count: int, missing: Array, lacks: Array, blocks: int, load: Load
) -> None:
    arrays = [address(a) for a in (plan.indices, plan.data)]
    outputs = [address(a) for a in (codes.entries, missing, lacks)]
    arguments = *arrays, np.int64(plan.nnz), address(codes.table), np.int32(count), *outputs
    blocks = min(blocks, ceil_div(plan.nnz, WARP * _WARPS))
    load(kernel_of(plan.data.dtype.name))((blocks, 1), (WARP * _WARPS,), arguments)


def _distinct(values: list[Any]) -> Any:
    """List the different bit patterns among values."""
    joined = np.ascontiguousarray(np.concatenate(values))
    size = joined.itemsize
    patterns = np.unique(joined.view(f"u{size}" if size <= 8 else np.dtype((np.void, size))))
    return patterns.view(joined.dtype)
