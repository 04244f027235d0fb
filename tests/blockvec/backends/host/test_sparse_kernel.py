"""Compiled sparse products of the host: when they are chosen, and what the contract tests do not try."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator, models, option_context, profile
from blockvec.backends.base import Candidate
from blockvec.backends.host import llvm, sparse_kernel
from blockvec.backends.host.backend import HOST
from blockvec.backends.host.sparse import RowBlocks
from blockvec.errors import OptionError
from blockvec.kernels.problem import SpmmvProblem
from blockvec.operations.dispatch import preferred
from tests.contract.blocks import CEILINGS, DTYPES, exact_values

pytest.importorskip("llvmlite")


@pytest.fixture(autouse=True)
def compiled() -> Any:
    """Compile products of all sizes, unless a test says otherwise."""
    with option_context(jit="always"):
        yield


def random_matrix(shape: tuple[int, int], dtype: str = "float64", seed: int = 0) -> sp.csr_array:
    """Entries of {-1, 0, 1} and their multiples by i, with empty rows."""
    rng = np.random.default_rng(seed)
    dense = exact_values(rng, shape, dtype) * (rng.random(shape) < 0.3)
    dense[rng.random(shape[0]) < 0.3] = 0
    return sp.csr_array(dense)


def chosen(A: Any, width: int) -> Candidate:
    """The implementation of a product."""
    found = as_operator(A).explain(BlockVector.zeros(A.shape[1], width))
    assert found is not None
    candidate = preferred(*found)
    assert candidate is not None
    return candidate


def test_profiles_name_the_kernel_and_explanations_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = importlib.import_module("blockvec.operations.profile")
    monkeypatch.setitem(profiles.known_ceilings, HOST.device.fingerprint, CEILINGS)
    with profile() as p:
        as_operator(models.laplace2d(n=9)) @ np.ones((81, 2))
    assert [row["kernel"] for row in p.rows()] == ["csr_compiled"]
    assert chosen(models.laplace2d(n=9), 2).configuration().startswith("LLVM ")


def test_without_a_compiler_products_are_scipys_and_requests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "missing", lambda: "no compiler")
    problem = SpmmvProblem(60_000, 60_000, 300_000, 8, "float64", "float64", 8, 8)
    with option_context(jit="auto"):
        refusals = {candidate.name: candidate.refusal for candidate in HOST.candidates(problem)}
        assert refusals == {"csr_compiled": "no compiler", "csr_row_blocks": None}
    with pytest.raises(OptionError, match="jit='always': no compiler"):
        as_operator(models.laplace1d(n=31)) @ np.ones((31, 5))


def test_the_reason_for_a_missing_compiler_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    llvm.machine.cache_clear()
    try:
        reason = llvm.missing.__wrapped__()
    finally:
        llvm.machine.cache_clear()
    assert reason.startswith("no compiler (")
    assert "[jit]" in reason


@pytest.mark.parametrize("width", [200, 301])
def test_groups_of_columns_of_wide_blocks_give_all_columns_and_sums(width: int) -> None:
    A = random_matrix((50, 50), "complex128")
    X = exact_values(np.random.default_rng(2), (50, width), "complex128")
    shifts = np.arange(width) % 5 - 2j
    Y, dots, _ = as_operator(A).apply(X, shift=shifts, dots=("xx", "xy"))
    expected = A.toarray() @ X - shifts * X
    assert np.array_equal(Y.array, expected)
    assert np.array_equal(dots["xx"], np.sum(np.abs(X) ** 2, axis=0).round())
    assert np.array_equal(dots["xy"], np.sum(X.conj() * expected, axis=0))


def test_matrices_of_foreign_byte_order_and_of_strided_arrays_are_read_right() -> None:
    A = random_matrix((20, 20))
    X = exact_values(np.random.default_rng(4), (20, 3), "float64")
    expected = A.toarray() @ X
    swapped = A.copy()
    swapped.data = swapped.data.astype(swapped.data.dtype.newbyteorder())
    strided = A.copy()
    strided.data, strided.indices = np.repeat(A.data, 2)[::2], np.repeat(A.indices, 2)[::2]
    for matrix in (swapped, strided):
        Y = np.zeros((20, 3))
        problem = SpmmvProblem(20, 20, A.nnz, 3, "float64", "float64", 3, 3)
        sparse_kernel.spmmv(problem, RowBlocks(matrix), X, Y, 1, 0, 0)
        assert np.array_equal(Y, expected)


@given(
    st.sampled_from(DTYPES),
    st.integers(0, 5),
    st.sampled_from([1, -2, 0.5]),
    st.sampled_from([0, 1, -1, 3]),
    st.sampled_from([0, 2, "column"]),
    st.booleans(),
    st.sampled_from(["never", "always", "a function"]),
)
def test_updates_of_column_major_arrays_are_exact_where_the_terms_are(
    dtype: str, width: int, alpha: float, beta: float, shift: Any, complex_factors: bool, way: str
) -> None:
    rng = np.random.default_rng(7)
    A = random_matrix((45, 45), dtype)
    X, Y = (np.asfortranarray(exact_values(rng, (45, width), dtype)) for _ in range(2))
    shifts = np.arange(width) if shift == "column" else shift
    factors: list[Any] = [alpha, beta, shifts]
    if complex_factors and np.dtype(dtype).kind == "c":
        factors = [factor * (1 - 1j) for factor in factors]
    expected = factors[0] * (A.toarray() @ X - factors[2] * X) + factors[1] * Y
    guard = np.full((50, width), 7, dtype, order="F")
    guard[:45] = np.nan if beta == 0 else Y
    is_function = way == "a function"
    op = as_operator(lambda X: A @ X, shape=A.shape, dtype=dtype) if is_function else as_operator(A)
    with option_context(jit="always" if is_function else way):
        op.apply_columns(X, guard[:45], *factors)
    assert np.array_equal(guard[:45], expected)
    assert (guard[45:] == 7).all()
