"""The comparison of filters: all methods find the values of an interval, and their columns are counted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blockvec import models
from tests.benchmarks.filter_columns import Counted, _case, ours, subspace_iteration, window_filter


@pytest.mark.parametrize("sigma", [-math.inf, 3.2])
def test_all_methods_find_the_values_of_an_interval(sigma: float) -> None:
    text = "laplace2d:nx=21,ny=17"
    case = _case(text, models.model(text).tocsr(), 6, sigma)
    exact = models.spectra.laplace_eigenvalues([21, 17])
    assert ((exact > case.ends[0]) & (exact < case.ends[1])).sum() == case.k >= 6
    assert case.is_end == (sigma < 0)
    own = ours(case)
    assert own["missed"] == 0
    assert own["residual"] <= 1e-8
    for method in (window_filter, subspace_iteration) if case.is_end else (window_filter,):
        A = Counted(case.A)
        assert method(case, A, 120, 3.0)
        assert A.columns > 120 * case.k


def test_columns_are_counted_up_to_a_limit() -> None:
    A = Counted(np.eye(3), limit=4)
    A @ np.ones((3, 3))
    A @ np.ones(3)
    assert A.columns == 4
    with pytest.raises(OverflowError):
        A @ np.ones(3)
