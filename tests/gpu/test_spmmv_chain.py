"""Chains that are not stored, on a GPU: configurations, long chains, recordings and solves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec import BlockVector, Recorder, as_operator, eigsh, models
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


def test_rounded_products_repeat_to_the_last_bit_and_are_close_to_those_of_the_matrix() -> None:
    spec = "xxz:sites=22,up=11,delta=0.7"
    A, S = as_operator(models.model(spec), device="gpu"), models.operator(spec, device="gpu")
    X = BlockVector.random(A.shape[0], 8, device="gpu", rng=1)
    first = S.apply(X, shift=0.3, dots=("xy", "yy"))
    again = S.apply(X, shift=0.3, dots=("xy", "yy"))
    assert (first.Y.array == again.Y.array).all()
    assert all((first.dots[name] == again.dots[name]).all() for name in first.dots)
    assert float(abs(first.Y.array - A.apply(X, shift=0.3).array).max()) < 1e-13


def test_a_recorded_product_repeats() -> None:
    spec = SPECS[0]
    S, A = models.operator(spec, device="gpu"), models.model(spec)
    X = BlockVector.random(A.shape[0], 4, device="gpu", rng=1)
    Y = X.like(4)
    recorder = Recorder(S.device)
    with recorder:
        S.apply(X, out=Y)
        again = recorder.record(lambda: S.apply(X, out=Y))
        Y.scale(0)
        again()
    np.testing.assert_allclose(Y.to_host().array, A @ X.to_host().array, rtol=1e-13, atol=1e-12)


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


@pytest.mark.parametrize("method", ["auto", "lanczos", "filter", "jd"])
def test_solves_agree_with_those_of_the_matrix(method: str) -> None:
    for spec in ("xxz:sites=16,up=8", "hubbard:sites=8,up=4,down=4,u=4"):
        options: dict[str, Any] = {"k": 8, "which": "SA", "method": method, "return_eigenvectors": False}
        w = eigsh(models.operator(spec, device="gpu"), **options)
        expected = eigsh(models.model(spec), **options)
        np.testing.assert_allclose(w.get(), expected, atol=1e-8)
