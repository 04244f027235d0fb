"""Most of what a solve asks for is compiled ahead, and little else; solves on a pretended GPU tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import models
from blockvec.kernels.elementwise import InverseFactorKernel
from blockvec.precompile import Blocks, requests
from solvers import eigsh
from tests.pretended_gpu import Solve, accepts, pretended_gpu

FEW = 6  # kernels of the checks at the end, and of blocks that lost columns
SOME = 20  # products of a search for missed copies, which not all solves need, and of longer solves
ROWS = ("RowKernel",)  # functions of the solvers' own, which take a tenth of a second each


def missed_and_wasted(solve: Solve) -> tuple[set[Any], set[Any]]:
    """Compare what is compiled ahead for a solve with what it asked for."""
    listed = {*requests(solve.method, Blocks(solve.sizes["n"], solve.dtype, solve.product, solve.sizes))}
    asked = {request for request in solve.requests if type(request).__name__ not in ROWS}
    listed = {r for r in listed if type(r).__name__ not in ROWS and not isinstance(r, InverseFactorKernel)}
    return asked - listed, {request for request in listed - asked if accepts(request)}


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
        missed, wasted = missed_and_wasted(solve)
        assert len(missed) <= FEW, missed
        if solve.method == "check":  # of fixed widths
            assert (missed, wasted) == (set(), set())
        products = [request for request in wasted if type(request).__name__.endswith("Problem")]
        assert len(products) <= max(SOME, len(solve.requests) / 4), products


def test_recorded_solves_return_what_others_do() -> None:
    A = models.model("laplace3d:n=10")
    options: dict[str, Any] = {"which": "SA", "method": "lanczos", "rng": 0, "tol": 1e-10}
    w = eigsh(A, 5, return_eigenvectors=False, **options)
    with pretended_gpu():
        again: Any = eigsh(A, 5, return_eigenvectors=False, device="gpu", **options)
    assert np.allclose(again.get(), w, rtol=1e-12)
