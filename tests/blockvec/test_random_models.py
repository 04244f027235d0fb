"""Random bands and power-law graphs: what their definitions promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from blockvec import models
from blockvec.errors import OptionError
from blockvec.models import random_structure


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


def test_a_matching_pairs_every_row_of_an_even_stretch_once() -> None:
    pairs = random_structure.random_pairs(0, 1000, offset=0, stretch=10, seed=(4, 1))
    rows = np.arange(1000)
    assert pairs.exists.all()
    np.testing.assert_array_equal(pairs.partners[pairs.partners], rows)
    assert (pairs.partners != rows).all()
    assert (pairs.partners // 10 == rows // 10).all()
    np.testing.assert_array_equal(pairs.values[pairs.partners], pairs.values)


def test_one_row_of_an_odd_stretch_is_left_over() -> None:
    pairs = random_structure.random_pairs(2, 14, offset=1, stretch=5, seed=(0, 1))  # rows 2-3, 4-8, 9-13
    left_over = np.flatnonzero(~pairs.exists) + 2
    assert [(row + 1) // 5 for row in left_over] == [1, 2]


def test_a_band_does_not_depend_on_how_many_rows_are_paired_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = models.banded(n=500, bandwidth=20, elements=5, seed=1).toarray()
    monkeypatch.setattr(random_structure, "_CHUNK_ROWS", 64)
    parts = models.generator("banded:n=500,bandwidth=20,elements=5,seed=1")
    for start, stop in itertools.pairwise([0, 77, 78, 300, 500]):
        np.testing.assert_array_equal(parts.rows(start, stop).toarray(), whole[start:stop])


def test_a_graph_of_two_opposite_quadrants_is_a_perfect_matching() -> None:
    A = models.rmat(scale=6, edges=40, a=0, b=0.5, c=0.5)
    np.testing.assert_array_equal(A.toarray(), np.eye(64)[::-1])


def test_the_laplacian_of_a_graph_annihilates_constants_and_is_semidefinite() -> None:
    A, L = models.rmat(scale=7, seed=5), models.rmat(scale=7, seed=5, laplacian=True)
    assert set(A.data) == {1.0}
    assert not A.diagonal().any()
    np.testing.assert_array_equal(L.toarray(), np.diag(A.sum(axis=1)) - A.toarray())
    assert not (L @ np.ones(128)).any()
    assert np.linalg.eigvalsh(L.toarray())[0] > -1e-12


def test_equal_quadrants_make_a_uniform_random_graph() -> None:
    n, edges = 1 << 12, 8
    degrees = np.diff(models.rmat(scale=12, edges=edges, a=0.25, b=0.25, c=0.25).indptr)
    pairs = n * (n - 1) / 2
    expected = 2 * pairs / n * -np.expm1(-edges * n * 2 / n**2)  # pairs drawn at least once
    assert abs(degrees.mean() - expected) < 5 * np.sqrt(2 * expected / n)
    assert degrees.max() < 4 * expected


def test_the_first_vertices_have_as_many_neighbours_as_their_quadrants_are_probable() -> None:
    """Without multiple edges a vertex would have 2 (a + b)^scale of all edges where b = c."""
    scale, edges = 14, 4
    A = models.rmat(scale=scale, edges=edges, a=0.3, b=0.25, c=0.25, seed=9)
    expected = 2 * edges * 2**scale * 0.55**scale
    degree = A.indptr[1]
    assert abs(degree - expected) < 5 * np.sqrt(expected)


def test_a_graph_beyond_the_memory_is_refused() -> None:
    with pytest.raises(OptionError, match=r"rmat: .* GB of memory are available"):
        models.rmat(scale=40)
