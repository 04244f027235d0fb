"""Rows of models made on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from blockvec import eigsh, models
from blockvec.operators import row_generator
from tests.blockvec.test_models import RINGS_OF_TWO, SMALL

LARGE = [
    "xxz:sites=18,up=9",
    "hubbard:sites=8,up=4,down=4,U=3",
    "stencil27:n=40",
    "graphene:nx=300,ny=200,disorder=1",
]


@pytest.mark.parametrize("spec", [*SMALL, *RINGS_OF_TWO, *LARGE])
@pytest.mark.parametrize("panel", [5000, 1 << 20])
def test_rows_have_the_bits_of_the_hosts(spec: str, panel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_generator, "_GPU_PANEL_ROWS", panel)
    made, expected = models.generator(spec).matrix(device="gpu"), models.model(spec)
    for name in ("indptr", "indices", "data"):
        array, wanted = getattr(made, name).get(), getattr(expected, name)
        assert array.dtype == wanted.dtype
        assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("spec", ["laplace2d:nx=300,ny=200", "xxz:sites=18,up=9"])
def test_eigenvalues_are_those_of_the_matrix(spec: str) -> None:
    made, given = models.generator(spec), models.model(spec)
    values = [eigsh(A, k=5, which="LA", rng=0, device="gpu")[0].get() for A in (made, given)]
    np.testing.assert_allclose(*values, rtol=0, atol=1e-11)
