"""SpMMV on CSR matrices: choices, plans, generated code, and the kernels run on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.device import host_device
from blockvec.kernels.families import CSR
from blockvec.kernels.problem import GRAMS, SpmmvProblem
from blockvec.kernels.sparse.arrays import address
from blockvec.kernels.sparse.csr import CsrConfig as Config
from blockvec.kernels.sparse.pieces import TASK_ENTRIES
from tests.contract.blocks import exact_values
from tests.devices import H200
from tests.emulator.host import needs_host_compiler, sampled
from tests.emulator.products import SparseProduct, case, entries_of, planned
from tests.host_rows import HostPlan
from tests.kernel_problems import pointers

family = CSR
ROWS = 1_000_000


def problem(
    width: int, types: str | tuple[str, str] = "float64", average: int = 7, **changes: Any
) -> SpmmvProblem:
    matrix, x = (types, types) if isinstance(types, str) else types
    return replace(SpmmvProblem(ROWS, ROWS, average * ROWS, width, matrix, x, width, width), **changes)


# ---- choices


def test_problems_that_cannot_be_run_are_refused_with_a_reason() -> None:
    assert "copies" in str(family.supports(problem(4), host_device(2)))
    assert "copies" in str(family.supports(problem(4), replace(H200, architecture="sm_75")))
    assert "no rows" in str(family.supports(problem(4, n_rows=0), H200))
    assert "apart" in str(family.supports(problem(4, ldx=2**28), H200))
    assert "64-bit" in str(family.supports(problem(4, n_rows=2**31 - 1), H200))
    assert "on their own" in str(family.supports(problem(9, average=33, gram=("yy",)), H200))
    assert family.supports(problem(8, average=33, gram=("yy",)), H200) is None
    assert "2 to 16" in str(family.supports(problem(17, gram=("yy",)), H200))
    assert family.supports(problem(4, n_rows=2**33, index_bytes=8), H200) is None


def test_sums_are_made_apart_where_long_rows_are() -> None:
    for long in ({"dots": ("xy",)}, {"gram": GRAMS}):
        p = problem(4, **long, longest=10**6)
        config = family.choose(p, H200)
        assert "apart" in str(family.refuse_sums(p, config))
        assert family.refuse_sums(replace(p, longest=config.long_row), config) is None
        assert len(family.kernels(p, config, H200)) == 3, "the plain product's, with its long rows"
    assert family.refuse_sums(problem(4, longest=10**6), config) is None


# ---- plans


def matrix(indptr: np.ndarray, n_cols: int, dtype: str = "float64", index: type = np.int32) -> sp.csr_array:
    rng = np.random.default_rng(len(indptr))
    nnz = int(indptr[-1])
    values = exact_values(rng, (nnz,), dtype)
    return sp.csr_array(
        (values, rng.integers(0, n_cols, nnz).astype(index), indptr.astype(index)),
        shape=(len(indptr) - 1, n_cols),
    )


@given(
    indptr=pointers(),
    rows=st.sampled_from([1, 4, 20, 32]),
    entries=st.sampled_from([64, 200]),
    spare=st.integers(0, 60),
)
def test_units_hold_every_row_once_and_tasks_every_entry_of_long_rows(
    indptr: np.ndarray, rows: int, entries: int, spare: int
) -> None:
    S = matrix(indptr, 11)
    plan = HostPlan(S.indptr, S.indices, S.data)
    long_row = entries - spare
    units = plan.units(rows, entries, long_row)
    n_rows = len(indptr) - 1
    cuts = np.minimum(np.arange(units.n_units + 1) * rows, n_rows) if units.cuts is None else units.cuts
    assert (cuts[0], cuts[-1], len(cuts)) == (0, n_rows, units.n_units + 1)
    sizes, lengths = np.diff(cuts), np.diff(indptr)
    assert (sizes >= 1).all()
    assert (sizes <= rows).all()
    is_long = lengths > long_row
    counts = np.add.reduceat(lengths, cuts[:-1])
    alone = is_long[cuts[:-1]]
    assert (sizes[alone] == 1).all()
    assert alone.sum() == is_long.sum(), "a long row is a unit of its own"
    assert (counts[~alone] <= entries).all()

    X = np.arange(11.0)[:, None] - 5
    product = np.where(is_long, np.nan, (S @ X)[:, 0])
    partials = np.full(units.slots, np.nan)
    for row, begin, end, slot in [] if units.tasks is None else units.tasks:
        assert 0 < end - begin <= TASK_ENTRIES
        part = S.data[begin:end] @ X[S.indices[begin:end], 0]
        if slot < 0:
            product[row] = part
        else:
            partials[slot] = part
    for row, begin, end, slot in [] if units.sums is None else units.sums:
        assert slot == -1
        product[row] = partials[begin:end].sum()
    np.testing.assert_array_equal(product, (S @ X)[:, 0])
    assert plan.units(rows, entries, long_row) is units, "made once"


def test_a_plan_shares_aligned_arrays_and_copies_others() -> None:
    S = sp.random_array((500, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
    raw = np.zeros(S.nnz * 8 + 32, np.uint8)
    first = -raw.ctypes.data % 16 + 8
    odd = raw[first : first + S.nnz * 8].view("float64")
    odd[...] = S.data
    plan = HostPlan(S.indptr.astype(np.int64), S.indices.astype(np.int32), odd)
    assert plan.data is not odd
    assert address(plan.data) % 16 == 0
    np.testing.assert_array_equal(plan.data, S.data)
    assert plan.indptr.dtype == plan.indices.dtype == np.int32
    assert (plan.n_rows, plan.nnz, plan.index_bytes) == (500, S.nnz, 4)
    again = HostPlan(plan.indptr, plan.indices, plan.data)
    assert again.data is plan.data
    assert again.indices is plan.indices


# ---- the kernels, thread by thread

LONG = {3: 200, 40: TASK_ENTRIES + 300, 41: 0, 99: 350}
MIXED = ("float64", "complex128")

HOST_CASES = [
    case(1, "float64"),
    case(16, "float64", Config(8, 1, 2, 1, 7, 8, 64, 32, 2, 1), beta=1),
    case(7, "complex128", alpha=2 - 1j, beta=3j, shift="column"),
    case(5, ("float64", "complex64"), index=np.int64, shift="scalar"),
    case(3, MIXED, align=8, pitches=(1, 2), alpha=2),
    case(36, "float32", Config(3, 2, 4, 2, 3, 15, 80, 32, 3, 1)),
    case(6, ("complex64", "float32"), long=LONG, beta=2),
    case(20, "float64", Config(5, 1, 2, 4, 2, 2, 104, 96), long=LONG, pitches=(2, 4)),
    case(12, "float64", Config(1, 2, 2, 1, 3, 32, 96, 80, 3, 1), alpha=2, dots=("xx", "xy", "yy"), delta=2),
    case(2, "float64", Config(1, 1, 2, 2, 3, 16, 256, 40, 3, 1), line=32),
    case(7, MIXED, dots=("xx", "yy"), shift="scalar", beta=1j),
    case(5, "complex64", Config(3, 1, 1, 2, 4, 5, 64, 64, 2, 1), dots=("xy",)),
    case(4, "float32", long=LONG, delta=0, eta=-3),
    case(
        1, ("float64", "complex128"), Config(1, 1, 1, 4, 3, 16, 128, 64, 2, 2, flat=True), long=LONG, beta=2
    ),
    case(5, "float64", Config(3, 2, 1, 2, 2, 5, 80, 64, 2, 2, flat=True), dots=("xy",)),
    case(
        18,
        "complex64",
        Config(4, 1, 2, 2, 2, 4, 40, 40, 2, 2, planes=2),
        line=8,
        plane=16,
        dots=("yy",),
        index=np.int64,
    ),
    case(10, "float64", Config(8, 1, 2, 1, 4, 8, 64, 32, 2, 1), gram=("xy", "yy"), shift="column", beta=1),
    case(6, "float32", gram=("xy", "yy"), pitches=(2, 2)),
    case(7, "complex128", gram=("xy", "yy"), dots=("xx",), alpha=1j),
    case(4, ("complex64", "float32"), gram=("xy",), delta=2),
    case(3, "float64", Config(2, 2, 1, 1, 5, 16, 128, 64, 3, 1), gram=("yy",)),
    case(1, "float64", Config(1, 1, 1, 4, 3, 16, 128, 64, 2, 2, flat=True), long=LONG, coded=True),
    case(8, ("complex128", "float64"), Config(4, 1, 2, 2, 5, 8, 64, 32, 3, 1), beta=1, long=LONG, coded=True),
    case(6, ("float32", "float64"), Config(3, 1, 2, 1, 5, 10, 96, 64, 2, 1), dots=("xy",), coded=True),
]


@needs_host_compiler
@pytest.mark.parametrize("case", sampled(HOST_CASES), ids=lambda c: f"{c['width']}-{c['types']}")
def test_the_kernels_run_on_the_host_are_exact_and_repeat_bit_for_bit(case: dict[str, Any]) -> None:
    rng, n = np.random.default_rng(case["width"]), 130
    lengths, long = rng.integers(0, 13, n), case.get("long", {})
    lengths[list(long)] = list(long.values())
    S = matrix(np.concatenate([[0], np.cumsum(lengths)]), n, case["types"][0], case["index"])
    product, device = SparseProduct(S, case), replace(H200, multiprocessors=3)
    config = case["config"] or replace(family.choose(product.problem, device), warps=2, blocks=2)
    plan = planned(S, case)
    units = plan.units(config.rows, config.entries, config.long_row)
    lists = [array for array in (units.cuts, units.tasks, units.sums) if array is not None]
    kernels = product.run(family, config, device, plan, [plan.indptr, *entries_of(plan), *lists])
    assert bool(long) == ("tasks" in kernels)
