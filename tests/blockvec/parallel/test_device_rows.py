"""Rows of models that processes make on their GPUs are divided as those of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import RowLayout, as_operator, models
from tests.contract.blocks import in_parallel
from tests.pretended_gpu import pretended_gpu


@pytest.mark.parametrize(
    "spec", ["xxz:sites=8,up=4", "laplace3d:n=5", "hofstadter:nx=6,ny=4", "laplace1d:n=3"]
)
def test_operators_have_the_same_parts(spec: str) -> None:
    generator = models.generator(spec)

    def parts(comm: Any, device: str) -> Any:
        op: Any = as_operator(generator, layout=RowLayout.equal(generator.n_rows, comm), device=device)
        matrices = [part.to_host() for part in op._sparse_parts()]
        arrays = [array for S in matrices for array in (S.data, S.indices, S.indptr)]
        return [begin for begin, _ in op._coupling], [op._halo.wanted, *arrays]

    expected = in_parallel(3, lambda comm: parts(comm, "cpu"))
    with pretended_gpu():
        found = in_parallel(3, lambda comm: parts(comm, "cuda:0"))
    for (begins, arrays), (wanted, others) in zip(found, expected, strict=True):
        assert begins == wanted
        for array, other in zip(arrays, others, strict=True):
            assert array.dtype == other.dtype
            np.testing.assert_array_equal(array, other)
