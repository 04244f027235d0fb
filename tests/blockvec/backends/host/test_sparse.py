"""Row blocks of the host's sparse products: all rows once, whatever the matrix and the number of threads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models, option_context
from blockvec.backends.host.sparse import MIN_ROWS, MOST_WORK, RowBlocks


def arrow(n: int) -> sp.csr_array:
    """One dense row among short ones, and every third row empty."""
    keep = np.arange(n) % 3 > 0
    A = sp.lil_array(sp.diags_array(keep * np.arange(1.0, n + 1)))
    A[n // 2] = np.arange(1.0, n + 1)
    return A.tocsr()


@pytest.mark.parametrize("width", [1, 4, 64, 4096])
@pytest.mark.parametrize("A", [models.laplace3d(n=40), arrow(30000), sp.csr_array((50000, 3))])
def test_blocks_hold_all_rows_and_no_more_work_than_a_row_makes_unavoidable(
    A: sp.csr_array, width: int
) -> None:
    cuts = RowBlocks(A).cuts(width)
    assert (cuts[0], cuts[-1]) == (0, A.shape[0])
    assert (np.diff(cuts) > 0).all()
    target = max(MOST_WORK // width, 2 * MIN_ROWS)
    longest = np.diff(A.indptr).max() + 1
    for begin, end in itertools.pairwise(cuts):
        assert A.indptr[end] - A.indptr[begin] + end - begin <= target + longest


@pytest.mark.parametrize("width", [1, 5, 32])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("jit", ["never", "always"])
def test_products_do_not_depend_on_the_number_of_threads(width: int, dtype: str, jit: str) -> None:
    if jit == "always":
        pytest.importorskip("llvmlite")
    A = as_operator(sp.csr_array(arrow(40000), dtype=dtype))
    V = BlockVector.random(40000, width, dtype, rng=0)
    found = []
    for threads in (1, 2, 5):
        with option_context(threads=threads, jit=jit):
            found.append(A.apply(V, shift=0.3).array)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_the_arrays_of_a_matrix_are_shared() -> None:
    A = models.laplace1d(n=5)
    op = as_operator(A)
    A.data *= 2
    assert np.array_equal((op @ BlockVector(np.eye(5))).array, A.toarray())
