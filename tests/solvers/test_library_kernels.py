"""Solves on a GPU run kernels of blockvec alone: CuPy's take tenths of a second to compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector
from solvers import eigsh
from tests.benchmarks.drawn_problems import matrix
from tests.pretended_gpu import pretended_gpu

SMOOTH, MULTIPLE = "rough_elements:nx=24,contrast=0.65,seed=1", "torus3d:n=12,seed=1"
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "lanczos": (SMOOTH, 6, {"method": "lanczos", "which": "LA"}),
    "lanczos of single columns": (SMOOTH, 4, {"method": "lanczos", "which": "LM", "block_size": 1}),
    "searches": (MULTIPLE, 10, {"method": "lanczos", "which": "SA", "block_size": 2}),
    "filter": (SMOOTH, 6, {"method": "filter", "which": "SA"}),
    "filter of multiple values": (MULTIPLE, 20, {"method": "filter", "which": "SA", "block_size": 2}),
    "filter in single precision": (
        MULTIPLE,
        6,
        {"method": "filter", "which": "SA", "tol": 1e-6, "convergence": "norm"},
    ),
    "jd": (SMOOTH, 6, {"method": "jd", "which": "SA"}),
    "jd around a number": (MULTIPLE, 6, {"method": "jd", "sigma": 0.7, "maxiter": 8}),
    "filter around a number": (SMOOTH, 4, {"method": "filter", "sigma": 0.5}),
    "both ends": (SMOOTH, 6, {"method": "lanczos", "which": "BE"}),
    "tiny numbers": (SMOOTH, 4, {"method": "lanczos", "which": "LA", "scale": 1e-200}),
}


@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_no_operation_compiles_a_kernel_of_cupy(name: str, dtype: str, tmp_path: Path) -> None:
    text, k, options = CASES[name]
    options = {"scale": 1.0, **options}
    A = options.pop("scale") * matrix(text).tocsr().astype(dtype)
    A = sp.csr_array((A.data, A.indices.astype(np.int32), A.indptr.astype(np.int32)), shape=A.shape)
    with blockvec.option_context(cache_dir=tmp_path), pretended_gpu(modules=()) as watched:
        operator = blockvec.as_operator(A, device="gpu")
        start = BlockVector.random(A.shape[0], 1, dtype, device="gpu", rng=1)
        found = eigsh(operator, k, rng=0, return_info=True, on_unconverged="return", **options)
        assert found.info["device"] == "cuda:0"
        assert start.device == "cuda:0"
        assert dict(watched.compiled) == {}


def test_what_cupy_compiles_is_noticed() -> None:
    with pretended_gpu(modules=()) as watched:
        row = BlockVector.random(10, 3, device="gpu", rng=1).norms()
        assert not watched.compiled
        assert np.allclose((1 / row).get(), 1 / row.get())
        assert [name.split()[0] for name in watched.compiled] == ["truediv"]
