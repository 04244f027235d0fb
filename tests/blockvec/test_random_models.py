"""Random bands and power-law graphs: what their definitions promise."""

from __future__ import annotations

import numpy as np
import pytest

from blockvec import models
from blockvec.errors import OptionError


def test_a_band_is_as_wide_as_asked_for_and_has_no_seams() -> None:
    n, bandwidth = 3000, 50
    A = models.banded(n=n, bandwidth=bandwidth, elements=24).tocoo()
    distance = np.abs(A.row - A.col)
    assert distance.max() == bandwidth
    assert np.isin(np.arange(bandwidth + 1), distance).all()
    crossings = np.cumsum(np.bincount(np.minimum(A.row, A.col), minlength=n))
    crossings -= np.cumsum(np.bincount(np.maximum(A.row, A.col), minlength=n))
    assert crossings[bandwidth:-bandwidth].min() > 0


@pytest.mark.parametrize("elements", [1, 2, 9])
def test_rows_of_a_band_have_the_elements_asked_for_or_a_few_less(elements: int) -> None:
    counts = np.diff(models.banded(n=20000, bandwidth=999, elements=elements).indptr)
    assert counts.max() == elements
    assert counts.mean() > elements * (1 - elements / 1000) - 0.01


def test_the_laplacian_of_a_graph_annihilates_constants_and_is_semidefinite() -> None:
    A, L = models.rmat(scale=7, seed=5), models.rmat(scale=7, seed=5, laplacian=True)
    assert set(A.data) == {1.0}
    assert not A.diagonal().any()
    np.testing.assert_array_equal(L.toarray(), np.diag(A.sum(axis=1)) - A.toarray())
    assert not (L @ np.ones(128)).any()
    assert np.linalg.eigvalsh(L.toarray())[0] > -1e-12


def test_a_graph_beyond_the_memory_is_refused() -> None:
    with pytest.raises(OptionError, match=r"rmat: .* GB of memory are available"):
        models.rmat(scale=40)
