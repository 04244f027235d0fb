"""SpMMV on SELL-C matrices: layouts, generated code, and the kernels run on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec.kernels.device import host_device
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.kernels.sparse.sell import CHUNK, SellMatrix, fill, fill_kernel
from blockvec.kernels.sparse.sell import SellConfig as Config
from tests.contract.blocks import exact_values
from tests.devices import H200
from tests.emulator.host import HostKernel, needs_host_compiler
from tests.emulator.products import SparseProduct, case, entries_of, planned
from tests.host_rows import laid_out
from tests.kernel_problems import assert_summed_up_in_order

family = SPARSE_FAMILIES["spmmv_sell"]
ROWS = 1_000_000


def problem(width: int, dtype: str = "float64", average: int = 7, **changes: Any) -> SpmmvProblem:
    plain = SpmmvProblem(ROWS, ROWS, average * ROWS, width, dtype, dtype, width, width, longest=average)
    return replace(plain, **changes)


def matrix(n_rows: int, n_cols: int, dtype: str, index: type, seed: int) -> sp.csr_array:
    """Rows of 0 to 12 entries, some stretches of empty ones."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 13, n_rows)
    lengths[40:75] = 0
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    columns = rng.integers(0, n_cols, indptr[-1]).astype(index)
    return sp.csr_array(
        (exact_values(rng, (int(indptr[-1]),), dtype), columns, indptr), shape=(n_rows, n_cols)
    )


def converted(plan: Plan) -> SellMatrix:
    """The matrix in SELL-C form, entry by entry."""
    starts, n_entries = laid_out(plan)
    indices, data = entries_of(plan)
    columns, values = np.full(n_entries, -1, indices.dtype), np.zeros(n_entries, data.dtype)
    for row in range(plan.n_rows):
        entries = slice(plan.indptr[row], plan.indptr[row + 1])
        begin, end = starts[row // CHUNK : row // CHUNK + 2]
        to = np.arange(begin + row % CHUNK, end, CHUNK)[: plan.indptr[row + 1] - plan.indptr[row]]
        columns[to] = indices[entries]
        if plan.codes is None:
            values[to] = data[entries]
    return SellMatrix(plan, starts, columns, data if plan.codes else values)


HOST_CASES = [
    case(1, config=Config(1, 1, 7, 2, 2)),
    case(3, "complex128", Config(3, 1, 4, 2, 2, False), shift="column", beta=2j, line=32),
    case(
        *(4, ("float64", "complex64"), Config(4, 1, 4, 3, 1, aligned_x=False, aligned_y=False)),
        **{"index": np.int64, "cols": 77, "pitches": (1, 2), "align": 8},
    ),
    case(4, "float32", Config(1, 4, 5, 4, 1), delta=2, alpha=3, shift="scalar", beta=1),
    case(2, config=Config(1, 2, 5, 2, 2), coded=True),
]


@needs_host_compiler
@pytest.mark.parametrize(
    ("dtype", "index", "is_coded"),
    [("float64", np.int32, False), ("complex128", np.int64, False), ("float64", np.int32, True)],
)
def test_the_kernel_that_converts_puts_every_entry_into_its_place(
    dtype: str, index: type, is_coded: bool
) -> None:
    S = matrix(299, 50, dtype, index, 3)
    plan = planned(S, case(1, coded=is_coded))
    expected = converted(plan)
    columns = np.zeros_like(expected.columns)
    values = expected.values if is_coded else np.full_like(expected.values, np.nan)
    p = SpmmvProblem(*S.shape, S.nnz, 1, dtype, dtype, 1, 1, S.indices.itemsize, coded=is_coded)
    readable = [plan.indptr, *entries_of(plan), expected.starts]
    kernel = HostKernel(fill_kernel(p).source(), readable, [columns, values])
    fill(kernel, SellMatrix(plan, expected.starts, columns, values), is_coded)
    np.testing.assert_array_equal(columns, expected.columns)
    np.testing.assert_array_equal(values, expected.values)


@needs_host_compiler
@pytest.mark.parametrize("case", HOST_CASES, ids=lambda case: f"{case['width']}-{case['types']}")
def test_the_kernels_run_on_the_host_are_exact(case: dict[str, Any]) -> None:
    S = matrix(130, case.get("cols", 130), case["types"][0], case["index"], case["width"])
    product, plan = SparseProduct(S, case), planned(S, case)
    form = converted(plan)
    device, matrix_of = replace(H200, multiprocessors=3), (form.starts, form.columns, form.values)
    product.run(family, case["config"], device, plan, matrix_of, form)


# ---- choices and generated code


def test_problems_that_cannot_be_run_are_refused_with_a_reason() -> None:
    refused = {
        "copies": (problem(1), host_device(2)),
        "no sums": (problem(2, dots=("xy",)), H200),
        "bytes": (problem(64), H200),
        "uneven": (problem(1, pattern="uneven", longest=10**4), H200),
        "in parts": (problem(1, average=400, longest=3000), H200),
    }
    for reason, (p, device) in refused.items():
        assert reason in str(family.supports(p, device)), reason
    assert family.supports(problem(1), H200) is None


@pytest.mark.parametrize(("matrix", "index_bytes"), [("complex64", 4), ("complex128", 4), ("complex128", 8)])
def test_the_widest_rows_of_X_are_taken_with_all_operands_fused(matrix: str, index_bytes: int) -> None:
    fused = {"alpha": "general", "beta": "general", "shift": "scalar", "chain": "general", "ldz": 4}
    p = problem(4, "complex128", 16, pattern="scattered", index_bytes=index_bytes, **fused)
    p = replace(p, dtype_matrix=matrix)
    assert family.supports(p, H200) is None
    assert family.refuse(p, family.choose(p, H200), H200) is None
    assert_summed_up_in_order(p)
