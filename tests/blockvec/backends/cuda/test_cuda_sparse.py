"""When a matrix is converted, on a pretended GPU: products wait, convert once, and fall back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.kernels.families import SPARSE_FAMILIES
from tests.pretended_cupy import Stream
from tests.pretended_gpu import pretended_gpu

WAITS = 3
SELL: Any = SPARSE_FAMILIES["spmmv_sell"]


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Prefer the family for every matrix that it takes; note what is converted."""
    made: list[Any] = []
    convert = type(SELL).convert
    monkeypatch.setattr(SELL, "is_faster", lambda problem: True)
    monkeypatch.setattr(SELL, "converts_after", lambda problem: WAITS if problem.width == 2 else 99)
    monkeypatch.setattr(SELL, "convert", lambda *given: made.append(given) or convert(SELL, *given))
    with pretended_gpu():
        yield made


def product_of(matrix: Any) -> Any:
    """Return a function that multiplies by a matrix and tells what it is bound to last."""
    operator = as_operator(matrix, device="gpu")

    def product(width: int = 2) -> str:
        operator.apply(BlockVector.zeros(operator.shape[1], width, device="gpu"))
        return str(list(operator.prepared.bound)[-1][0])

    return product


def test_a_matrix_is_converted_once_after_the_products_that_wait(conversions: list[Any]) -> None:
    product = product_of(models.laplace3d(n=20))
    found = [product() for _ in range(WAITS + 5)]
    assert found == ["before spmmv_sell"] * WAITS + ["spmmv_sell"] * 5
    assert product(width=3) == "spmmv_sell"  # the form is there
    assert len(conversions) == 1


def test_nothing_is_converted_while_a_graph_is_captured(
    conversions: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    product = product_of(models.laplace3d(n=20))
    with monkeypatch.context() as capturing:
        capturing.setattr(Stream, "is_capturing", lambda self: True)
        assert {product() for _ in range(WAITS + 5)} == {"before spmmv_sell"}
    assert product() == "spmmv_sell"


def test_a_matrix_that_would_grow_too_much_is_asked_once(conversions: list[Any]) -> None:
    lengths = np.where(np.arange(4096) % 32 == 0, 12, 3)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    columns = np.random.default_rng(2).integers(0, 4096, indptr[-1])
    product = product_of(sp.csr_array((np.ones(len(columns)), columns, indptr), shape=(4096, 4096)))
    assert [product() for _ in range(WAITS + 5)][:WAITS] == ["before spmmv_sell"] * WAITS
    assert len(conversions) == 1
