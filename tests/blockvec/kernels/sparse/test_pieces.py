"""Kernels that pass over row pointers, run on the host: they find what NumPy does, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.sparse import pieces
from blockvec.kernels.sparse.arrays import Load
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.kernels.sparse.pieces import TASK_ENTRIES, divide, structure_of
from blockvec.kernels.sparse.sell import CHUNK, layout
from blockvec.models import model as model_matrix
from tests.emulator.host import HostKernel, needs_host_compiler
from tests.host_rows import HostPlan, assert_same, divided, laid_out
from tests.kernel_problems import pointers

INDICES = ("int32", "int64")


@pytest.fixture(scope="module", params=[1, pieces._ROUNDS], ids=lambda rounds: f"{rounds} rounds")
def rounds(request: Any) -> Any:
    """Let warps take the rows in as many rounds as on a GPU, or in one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_ROUNDS", request.param)
        yield


def emulated(*readable: np.ndarray) -> Load:
    """Load kernels that run on the host and may read given arrays."""
    return lambda kernel: HostKernel(kernel.source(), readable)


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
@given(
    indptr=pointers(),
    rows=st.sampled_from([1, 3, 20, 32]),
    entries=st.sampled_from([64, 200, 10_000]),
    spare=st.integers(0, 60),
)
def test_rows_are_divided_as_on_the_host(indptr: np.ndarray, rows: int, entries: int, spare: int) -> None:
    found = divide(indptr, rows, entries, entries - spare, emulated(indptr))
    assert_same(found, divided(indptr, rows, entries, entries - spare))


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
@given(indptr=pointers())
def test_rows_are_laid_out_as_on_the_host(indptr: np.ndarray) -> None:
    entries = np.zeros(int(indptr[-1]), indptr.dtype)
    plan = Plan(indptr, entries, entries, load=emulated(indptr, entries))
    assert_same(layout(plan), laid_out(plan))


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
@given(
    n_rows=st.integers(1, 9000),
    most=st.sampled_from([3, 9, 100]),
    ahead=st.sampled_from([-1000, -50, 1, 50, 1000]),
    index=st.sampled_from(INDICES),
)
def test_structures_are_found_as_on_the_host(n_rows: int, most: int, ahead: int, index: str) -> None:
    rng = np.random.default_rng(n_rows)
    lengths = rng.integers(0, most, n_rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    offsets = rng.choice([0, ahead, 30 * ahead], int(indptr[-1]))
    indices = abs(np.repeat(np.arange(n_rows), lengths) + offsets).astype(index)
    load = emulated(indptr, indices)
    assert structure_of(indptr, indices, load) == structure_of(indptr, indices)


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_diagonals_are_those_of_the_host_also_where_entries_repeat(dtype: str, index: str) -> None:
    rng = np.random.default_rng(5)
    rows, columns = rng.integers(0, 300, (2, 3000))
    rows[:500] = columns[:500]
    S = sp.csr_array(sp.coo_array((rng.integers(-9, 9, 3000).astype(dtype), (rows, columns)), (300, 300)))
    again = rng.permutation(S.nnz // 300 * 300).reshape(300, -1)  # columns in any order, with copies
    indptr = np.arange(0, again.size + 1, again.shape[1]).astype(index)
    indices, data = S.indices[again.ravel()].astype(index), S.data[again.ravel()]
    expected = sp.csr_array((data, indices, indptr), (300, 300)).diagonal().real
    found = pieces.diagonal(indptr, indices, data, emulated(indptr, indices, data))
    np.testing.assert_array_equal(found, expected)


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("spec", ["laplace3d:n=20", "stencil27:n=40", "laplace2d:n=70", "laplace1d:n=2048"])
def test_lines_and_planes_of_grids_are_found_as_on_the_host(spec: str, index: str) -> None:
    S = model_matrix(spec)
    indptr, indices = S.indptr.astype(index), S.indices.astype(index)
    expected = structure_of(indptr, indices)
    assert structure_of(indptr, indices, emulated(indptr, indices)) == expected
    assert (expected.line > 0) == ("1d" not in spec)


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("lengths", [[], [0], [5], [3 * TASK_ENTRIES + 1], [0] * 2048])
def test_matrices_without_rows_or_entries_and_of_one_row(lengths: list[int], index: str) -> None:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    indices = np.zeros(int(indptr[-1]), index)
    load = emulated(indptr, indices)
    plan, on_host = Plan(indptr, indices, indices, load=load), HostPlan(indptr, indices, indices)
    assert plan.structure == on_host.structure == (max(lengths, default=0), 0, 0)
    assert_same(plan.units(32, 256, 100), on_host.units(32, 256, 100))


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
def test_a_layout_beyond_the_index_type_is_refused_before_it_is_written() -> None:
    lengths = np.zeros(2**12, np.int64)
    lengths[::CHUNK] = 2**19
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    none = indptr[:0]
    plan = Plan(indptr, none, none, load=emulated(indptr))
    with pytest.raises(OverflowError, match="too many for indices of 4 bytes"):
        layout(plan)


@needs_host_compiler
@pytest.mark.usefixtures("rounds")
def test_entries_near_and_beyond_32_bits_are_divided_and_counted() -> None:
    lengths = np.array([7, 2**33 + 1, 0, 2**32, 5] * 20)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    load = emulated(indptr)
    none = indptr[:0]
    assert structure_of(indptr, none, load) == structure_of(indptr, none)
    few = np.array([0, 2**31 - 1 - 2**15], np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blockvec.kernels.sparse.pieces.TASK_ENTRIES", 2**30)
        assert_same(divide(indptr, 32, 256, 100, load), divided(indptr, 32, 256, 100))
        assert_same(divide(few, 32, 256, 100, emulated(few)), divided(few, 32, 256, 100))
    plan = Plan(indptr, none, none, load=load)
    assert_same(layout(plan), laid_out(plan))
