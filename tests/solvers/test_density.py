"""Densities of states: moments of spectra in closed form, bounds that hold, and double moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from blockvec.errors import BreakdownError, OptionError, ShapeError
from blockvec.models import spectra
from solvers.functions.density import damped, density_of_states, double_moments
from solvers.functions.operands import random_signs
from solvers.functions.traces import logdet, trace
from tests.contract.blocks import DTYPES, exact_values, host
from tests.pretended_gpu import pretended_gpu

LATTICES = {
    "laplace1d:n=400": spectra.laplace_eigenvalues([400]),
    "laplace2d:n=20": spectra.laplace_eigenvalues([20, 20]),
    "laplace3d:n=8,periodic=true": spectra.laplace_eigenvalues([8, 8, 8], periodic=True),
    "graphene:nx=20,ny=20": spectra.graphene_eigenvalues(20, 20),
    "hofstadter:nx=18,ny=18,p=1,q=3": spectra.hofstadter_eigenvalues(18, 18),
}


UPPER = np.triu(np.ones((5, 5)))
DENSITY = density_of_states(models.laplace1d(n=9), 8, 2, rng=0)


def chebyshev(values: Any, bounds: Any, count: int) -> Any:
    """T_k of the scaled eigenvalues, shape (count, n)."""
    angles = np.arccos((values - bounds.centre) / bounds.half_width)
    return np.cos(np.arange(count)[:, None] * angles)


@pytest.mark.parametrize("name", LATTICES)
def test_moments_are_those_of_the_spectrum(device: str, name: str) -> None:
    A, values = models.model(name), LATTICES[name]
    rho = density_of_states(as_operator(A, device=device), 64, 32, rng=1)
    exact = chebyshev(values, rho.bounds, 64).mean(axis=1)
    errors = rho.samples.std(axis=1, ddof=1) / np.sqrt(32)
    assert rho.samples.shape == (64, 32)
    assert (np.abs(rho.moments - exact) <= 5 * errors + 1e-12).all()
    assert rho.products == 32 * 32
    # The density has the smoothed spectrum, within the errors that it reports.
    energies = np.linspace(*rho.bounds, 50)[1:-1]
    x = (energies - rho.bounds.centre) / rho.bounds.half_width
    series = np.polynomial.chebyshev.chebval(x, exact * damped(64, "jackson"))
    smooth = series / (np.pi * rho.bounds.half_width * np.sqrt(1 - x**2))
    assert (np.abs(rho(energies) - smooth) <= 5 * rho.error(energies) + 1e-12).all()
    assert abs(rho.integrate() - 1) <= 1e-12
    weights = damped(64, "jackson")[1] / 2 * (exact[1] * rho.bounds.half_width)  # of E - centre, which is T_1
    deviation = abs(rho.integrate(lambda E: E - rho.bounds.centre) - weights)
    assert deviation <= 5 * errors[1] * rho.bounds.half_width + 1e-12
    assert not rho([rho.bounds[0] - 1e-9, rho.bounds[1] + 1e-9, np.inf]).any()
    assert np.array_equal(
        density_of_states(as_operator(A, device=device), 64, 32, rng=1).moments, rho.moments
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_local_densities_are_exact(device: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    A = exact_values(rng, (60, 60), dtype)
    A = A + A.conj().T
    values, vectors = np.linalg.eigh(A.astype(complex))
    sites = [0, 17, 59, *range(40)]
    rho = density_of_states(as_operator(sp.csr_array(A), device=device), 32, sites=sites)
    exact = chebyshev(values, rho.bounds, 32) @ np.abs(vectors[sites].T) ** 2
    assert np.abs(rho.moments - exact).max() <= 32 * 60 * np.finfo(dtype).eps
    assert rho([0.0, 1.0]).shape == (2, 43)
    assert rho(0.0).shape == (43,)
    assert not rho.error(0.0).any()
    assert np.allclose(rho.integrate(), 1)


def test_multiples_and_sums_have_shifted_densities() -> None:
    A = as_operator(models.model("graphene:nx=12,ny=12"))
    rho, scaled = (density_of_states(op, 32, sites=[0]) for op in (A, -2 * A))
    assert abs(scaled(0.5) - rho(-0.25) / 2) <= 1e-12
    moved = density_of_states(A + as_operator(sp.eye_array(144).tocsr()), 32, sites=[0], bounds=(-2.03, 4.03))
    assert abs(moved(1.3) - rho(0.3)) <= 1e-12


def test_bounds_that_do_not_hold_are_widened() -> None:
    A = models.model("laplace2d:n=20")
    rho = density_of_states(A, 256, 8, rng=0, bounds=(1.0, 7.0))
    assert rho.bounds[0] < 0.1
    assert rho.bounds[1] > 7.9
    exact = chebyshev(LATTICES["laplace2d:n=20"], rho.bounds, 256).mean(axis=1)
    assert np.abs(rho.moments - exact).max() <= 0.1
    with pytest.raises(BreakdownError, match="moments grow for all bounds"):
        density_of_states(A, 256, 8, rng=0, bounds=(1e-9, 2e-9))


@pytest.mark.parametrize(
    ("call", "change", "error", "message"),
    [
        (density_of_states, {"moments": 1}, OptionError, "moments: got 1"),
        (density_of_states, {"vectors": 0}, OptionError, "vectors: got 0"),
        (density_of_states, {"kernel": "fejer"}, OptionError, "kernel: got 'fejer'"),
        (density_of_states, {"sites": []}, OptionError, "sites: got none"),
        (density_of_states, {"sites": [100]}, OptionError, "sites: got 100"),
        (density_of_states, {"bounds": (1, 0)}, OptionError, "bounds: got"),
        (density_of_states, {"bounds": (0, 1, 2)}, OptionError, "give two finite numbers"),
        (density_of_states, {"H": UPPER}, OptionError, "H is not Hermitian"),
        (density_of_states, {"H": np.zeros((0, 0))}, ShapeError, "no rows"),
        (density_of_states, {"H": np.full((4, 4), np.nan)}, BreakdownError, "NaN"),
        (double_moments, {"H": np.eye(5), "J": UPPER}, OptionError, "J is not Hermitian"),
        (double_moments, {"J": np.eye(2)}, ShapeError, "J"),
        (DENSITY, {"energies": [0.0, np.nan]}, OptionError, "energies: got NaN, or numbers of type"),
        (DENSITY, {"energies": 1j}, OptionError, "energies: got NaN, or numbers of type"),
        (DENSITY.integrate, {"f": lambda E: E * np.nan}, OptionError, "f: is nan"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, change: Any, error: Any, message: str) -> None:
    given = {"H": models.model("laplace1d:n=100")} if call in (density_of_states, double_moments) else {}
    with pytest.raises(error, match=message):
        call(**given | change)


@pytest.mark.parametrize("count", [5, 64, 100])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_double_moments_are_those_of_dense_matrices(device: str, count: int, dtype: str) -> None:
    rng = np.random.default_rng(4)
    H, J = (exact_values(rng, (70, 70), dtype) for _ in range(2))
    H, J = H + H.conj().T, J + J.conj().T
    found = double_moments(sp.csr_array(H), J, count, 3, rng=5, device=device)
    values, V = np.linalg.eigh(H.astype(complex))
    T = np.array([(V * row) @ V.conj().T for row in chebyshev(values, found.bounds, count)])
    keys = [int(key) for key in np.random.default_rng(5).integers(1 << 63, size=3)]
    signs = [host(random_signs(as_operator(H), 1, key)) for key in keys]
    for x, sample in zip(signs, found.samples, strict=True):
        left, right = np.hstack([J @ (term @ x) for term in T]), np.hstack([term @ (J @ x) for term in T])
        scale = np.linalg.norm(J, 2) ** 2
        assert np.abs(sample - left.conj().T @ right / 70).max() <= count * 70 * np.finfo(dtype).eps * scale


def test_a_current_of_one_makes_a_line_of_equal_energies() -> None:
    H, J = models.model("laplace1d:n=300,periodic=true"), sp.eye_array(300).tocsr()
    found = double_moments(H, J, 64, 8, rng=0)
    rho = density_of_states(H, 64, 8, rng=0)
    assert found(2.0) > 10 * abs(found(2.0, 3.0))
    assert found(9.0) == 0 == found(2.0, -9.0)
    assert found.error([1.0, 2.0]).shape == (2,)
    assert abs(found.moments[0, 0] - 1) <= 1e-12
    assert abs(found.moments[0, 2] - rho.moments[2]) <= 0.1
    assert double_moments(H, J, 64, 2, rng=0, bounds=(1, 2)).bounds[1] > 3.9  # widened


def test_a_pretended_gpu_finds_the_numbers_of_the_host() -> None:
    A = models.model("hofstadter:nx=9,ny=9,p=1,q=3")
    rho, estimate = density_of_states(A, 64, 4, rng=0), trace(np.exp, A, rng=1, vectors=16)
    double = double_moments(A, A, 70, 2, rng=2)
    with pretended_gpu():
        op = as_operator(A, device="gpu")
        single = density_of_states(2 * op - op, 64, 4, rng=0, bounds=rho.bounds)
        assert np.abs(single.moments - rho.moments).max() <= 1e-12
        assert abs(trace(np.exp, op, rng=1, vectors=16).value / estimate.value - 1) <= 1e-9
        found = double_moments(op, op, 70, 2, rng=2, bounds=double.bounds).moments
        assert np.abs(found - double.moments).max() <= 1e-10
        assert logdet(op).method == "factors"
