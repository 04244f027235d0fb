"""Kernels of solves on a pretended GPU: blockvec's alone, most of them compiled ahead and few others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector, models
from blockvec.backends import backend_for
from blockvec.kernels.source import Kernel
from blockvec.precompile import Blocks, requests
from solvers import eigsh
from tests.benchmarks.drawn_problems import matrix
from tests.pretended_cupy import Array
from tests.pretended_gpu import Solve, accepts, pretended_gpu

FEW = 6  # kernels of the checks at the end, and of blocks that lost columns
SOME = 20  # products of a search for missed copies, which not all solves need, and of longer solves
ROWS = "rows_"  # functions of the solvers' own, which take a tenth of a second each


def listed_and_asked(solve: Solve) -> tuple[set[Any], set[Any]]:
    """List what is compiled ahead for a solve, and what it asked for."""
    sizes, host = solve.sizes, backend_for("cpu")
    ahead = requests(solve.method, Blocks(sizes["n"], solve.dtype, solve.matrices, sizes, host))
    listed, asked = (
        {r for r in each if not getattr(r, "name", "").startswith(ROWS)} for each in (ahead, solve.requests)
    )
    return listed, asked


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize(
    ("method", "b", "k"),
    [
        ("lanczos", 8, 10),
        ("lanczos", 4, 6),
        ("filter", 8, 5),
        ("filter", 8, 20),
        ("filter", 6, 10),
        ("jd", 4, 5),
    ],
)
def test_most_kernels_of_a_solve_are_compiled_ahead_and_few_others(
    method: str, b: int, k: int, dtype: str
) -> None:
    tol = 1e-8 if dtype == "float64" else 1e-4
    verify = "never" if method == "jd" else "auto"
    A = models.model("laplace3d:n=12").astype(dtype)
    with pretended_gpu() as watched, np.errstate(all="ignore"):
        how: Any = {"method": method, "which": "SA", "block_size": b, "tol": tol, "verify": verify}
        eigsh(A, k, device="gpu", rng=0, on_unconverged="return", **how)
    found = [solve for solve in watched.solves if solve.method != "begin"]
    assert [solve.method for solve in found] == ["check", method]
    for solve in found:
        listed, asked = listed_and_asked(solve)
        missed, wasted = asked - listed, {r for r in listed - asked if accepts(r)}
        assert len(missed) <= FEW, missed
        if solve.method == "check":  # of fixed widths
            assert (missed, wasted) == (set(), set())
        products = [request for request in wasted if type(request).__name__.endswith("Problem")]
        assert len(products) <= max(SOME, len(solve.requests) / 4), products


DOORS: dict[str, Any] = {
    "svds": lambda A, B: blockvec.svds(A[:, :300], 5, device="gpu", rng=0, tol=1e-4),
    "lobpcg": lambda A, B: blockvec.lobpcg(
        blockvec.as_operator(A, device="gpu"), Array(B[:, :4].copy()), tol=10.0
    ),
    "expm_multiply": lambda A, B: blockvec.expm_multiply(-A, B, device="gpu"),
    "density_of_states": lambda A, B: blockvec.density_of_states(
        A, vectors=5, moments=16, device="gpu", rng=0
    ),
    "cg": lambda A, B: blockvec.cg(A, B, device="gpu", rtol=1e-2),
    "minres": lambda A, B: blockvec.minres(A, B, device="gpu", rtol=1e-2),
    "gmres": lambda A, B: blockvec.gmres(A, B, device="gpu", rtol=1e-2),
}
TYPES = {"gmres": "float32", "expm_multiply": "complex128"}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, TYPES.get(name, "float64")) for name in DOORS), ("cg", "complex64")]
)
def test_most_kernels_of_other_calls_are_compiled_ahead(name: str, dtype: str) -> None:
    A = models.model("laplace3d:n=12").astype(dtype)
    with pretended_gpu() as watched, np.errstate(all="ignore"):
        DOORS[name](A, np.random.default_rng(0).standard_normal((A.shape[0], 5)).astype(dtype))
    assert not [request for request in watched.asked if isinstance(request, Kernel)]
    both = map(listed_and_asked, watched.solves)
    listed, asked = (set[Any]().union(*parts) for parts in zip(*both, strict=True))
    assert name == "lobpcg" or len(asked - listed) <= FEW, asked - listed
    assert len(asked & listed) >= len(asked) / 2


# --- kernels of CuPy take tenths of a second to compile ----------------------------------------------


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
        w, X = found.eigenvalues.get(), found.eigenvectors.get()
    residuals = np.linalg.norm(A @ X - X * w, axis=0)
    np.testing.assert_allclose(residuals, found.residuals, rtol=0.1, atol=1e-13 * found.info["norm"])


def test_what_cupy_compiles_is_noticed() -> None:
    with pretended_gpu(modules=()) as watched:
        row = BlockVector.random(10, 3, device="gpu", rng=1).norms()
        assert not watched.compiled
        assert np.allclose((1 / row).get(), 1 / row.get())
        assert [name.split()[0] for name in watched.compiled] == ["divide"]
