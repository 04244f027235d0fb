"""Most of what a solve asks for is compiled ahead, and little else; solves on a pretended GPU tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import models
from blockvec.kernels.inverse_factor import InverseFactorKernel
from blockvec.kernels.problem import SweepProblem, TsmttsmProblem
from blockvec.models.spectra import laplace_eigenvalues
from blockvec.precompile import Blocks, requests
from solvers import eigsh
from tests.pretended_gpu import Solve, accepts, pretended_gpu

FEW = 6  # kernels of the checks at the end, and of blocks that lost columns
SOME = 16  # products of a search for missed copies, which not all solves need, and of longer solves
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
    found = watched.solves
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


def test_missed_copies_do_not_change_the_widths_of_a_basis() -> None:
    A = models.model("laplace3d:n=13,periodic=True")  # values of up to twelve copies, blocks of four
    with pretended_gpu() as watched, np.errstate(all="ignore"):
        result = eigsh(A, 6, which="LA", method="filter", tol=1e-8, rng=0, device="gpu", return_info=True)
    assert result.info["verification_columns"]
    sweeps = [p for solve in watched.solves for p in solve.requests if isinstance(p, SweepProblem)]
    assert {p.M % 4 for p in sweeps if p.N == 4} == {0}


@pytest.mark.parametrize("k", [6, 14])
def test_solves_that_find_missed_copies_ask_for_few_widths_of_a_basis(k: int) -> None:
    A = models.model("laplace3d:n=12,periodic=True")
    with pretended_gpu() as watched, np.errstate(all="ignore"):
        options: Any = {"which": "SA", "method": "filter", "block_size": 4, "tol": 1e-9, "verify": "always"}
        found: Any = eigsh(A, k, rng=0, device="gpu", **options)
    w, X = (array.get() for array in found)
    assert np.allclose(w, laplace_eigenvalues((12, 12, 12), periodic=True)[:k], atol=1e-7)
    assert np.abs(X.T @ X - np.eye(k)).max() < 1e-13
    widths = {
        r.M for solve in watched.solves for r in solve.requests if isinstance(r, SweepProblem) and r.N == 4
    }
    assert all(width % 4 == 0 for width in widths)


def test_bases_of_many_columns_are_read_in_few_widths() -> None:
    A = models.model("laplace3d:n=12")
    with pretended_gpu() as watched, np.errstate(all="ignore"):
        options: Any = {"method": "lanczos", "which": "LA", "tol": 1e-6, "verify": "never"}
        result = eigsh(A, 200, rng=0, device="gpu", return_info=True, **options)
    assert result.info["ncv"] == 400
    assert np.allclose(result.eigenvalues.get(), np.sort(laplace_eigenvalues((12, 12, 12)))[-200:], atol=1e-5)
    requests = {r for solve in watched.solves for r in solve.requests}
    widths = {r.M for r in requests if isinstance(r, TsmttsmProblem | SweepProblem)}
    assert {width for width in widths if width > 256} <= {320, 384, 408}
