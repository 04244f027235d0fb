"""Chains that are not stored, on a GPU: configurations, long chains, recordings and solves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec import BlockVector, models
from blockvec.backends.cuda import sparse
from blockvec.kernels.families import SPARSE_FAMILIES
from tests.blocks import draw

pytestmark = pytest.mark.gpu

CHAIN = SPARSE_FAMILIES["spmmv_chain"]
SPECS = ("xxz:sites=18,up=9,delta=0.5", "hubbard:sites=9,up=4,down=5,u=2", "xxz:sites=40,up=3,periodic=false")
TYPES = ("float32", "float64", "complex64", "complex128")
HUGE_BYTES = 42 << 30  # two vectors of 34 spins, and tables


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", TYPES)
def test_configurations_all_over_the_space_are_exact(spec: str, dtype: str, cp: Any, gpu: Any) -> None:
    rng, S = np.random.default_rng(2), models.model(spec)
    operator: Any = models.operator(spec, device="gpu")
    for width in (1, 2, 3, 7, 8, 16, 33):
        host = draw(rng, (S.shape[0], width), dtype, exact=True)
        X = cp.asarray(host)
        Y = cp.empty(host.shape, np.result_type(dtype, "float64"))
        problem, expected = operator.explain(BlockVector(X))[0], S @ host
        valid = CHAIN.configurations(problem, gpu.info)
        for config in valid[:: max(1, len(valid) // 6)]:
            launch, _ = sparse.launcher(gpu, CHAIN, problem, config, operator.prepared)
            for _ in range(2):
                Y.fill(cp.nan)
                launch(X.data.ptr, Y.data.ptr)
                np.testing.assert_array_equal(Y.get(), expected, err_msg=f"{width} {config}")


def test_more_rows_than_32_bits_can_number(cp: Any) -> None:
    if cp.cuda.runtime.memGetInfo()[0] < HUGE_BYTES:
        pytest.skip(f"needs {HUGE_BYTES >> 30} GB of free device memory")
    S = models.operator("xxz:sites=34,up=17", device="gpu")
    X = BlockVector.full(S.shape[0], 1, 1.0, device="gpu")
    Y = S @ X  # every row sums up to the energy of the ferromagnet
    assert float(Y.array.min()) == float(Y.array.max()) == 34 / 4


def test_explain_names_the_kernel_and_its_blocks() -> None:
    S = models.operator(SPECS[0], device="gpu")
    text = str(blockvec.explain("apply", S, BlockVector.random(S.shape[0], 8, device="gpu", rng=1)))
    assert "spmmv_chain" in text.splitlines()[0]
    assert "no matrix is stored" in text
