"""Traces and determinants: error bars that hold, and the numbers of dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from blockvec.errors import OptionError, ShapeError
from blockvec.models import spectra
from solvers import ConvergenceWarning
from solvers.functions.traces import logdet, trace
from tests.contract.blocks import DTYPES, exact_values, on, values
from tests.matrices import kinked, random_graph

SQUARE, CUBE, CARBON = (
    models.model(name) for name in ("laplace2d:n=20", "laplace3d:n=8", "graphene:nx=20,ny=20")
)
INDEFINITE, POSITIVE = np.diag(np.r_[-1.0, np.arange(1.0, 9.0)]), (0, None)
CASES: dict[str, dict[str, Any]] = {
    "sqrt": {"A": SQUARE, "f": np.sqrt, "tol": 5e-3},
    "log": {"A": SQUARE, "f": np.log, "tol": 3e-2},
    "fixed number": {"A": SQUARE, "f": np.log, "tol": 0, "vectors": 20},
    "cold": {"A": CUBE, "f": lambda x: np.exp(-4 * x), "tol": 3e-2, "method": "hutch++"},
    "warm": {"A": CUBE, "f": lambda x: np.exp(-x), "tol": 2e-2, "method": "auto"},
    "resolvent": {"A": CARBON, "f": lambda x: 1 / (1 + x * x), "tol": 1e-2},
    "complex": {"A": models.model("hofstadter:nx=18,ny=18,p=1,q=3"), "f": np.exp, "tol": 1e-2},
    "chain": {
        "A": models.model("xxz:sites=10,up=5"),
        "f": lambda x: np.exp(-x),
        "tol": 2e-2,
        "method": "hutch++",
    },
    "kink": {"A": CARBON, "f": np.abs, "tol": 1e-2},
    "graph": {"A": random_graph(1, 300), "f": np.exp, "tol": 3e-2, "method": "hutch++"},
}


def judged(case: dict[str, Any], repeats: int) -> tuple[float, float, float]:
    """Repeat an estimate; return how often the trace is within two errors, their mean, and the true error."""
    expected = case["f"](np.linalg.eigvalsh(case["A"].toarray())).sum()
    found = [trace(**{"method": "quadrature", **case}, rng=seed) for seed in range(1000, 1000 + repeats)]
    errors = np.array([abs(value - expected) for value, _ in found])
    reported = np.array([error for _, error in found])
    return float((errors <= 2 * reported).mean()), float(reported.mean()), float(np.sqrt((errors**2).mean()))


def test_most_traces_are_within_two_errors() -> None:
    shares, reported, true = np.array([judged(case, 6) for case in CASES.values()]).T
    assert shares.mean() >= 0.85  # of 60; 3.5 standard deviations below 0.95
    assert (reported <= 3 * true).all()


def test_a_matrix_without_a_space_that_dominates_has_an_exact_trace() -> None:
    found = trace(np.exp, sp.csr_array((130, 130)), method="hutch++", rng=1)
    assert abs(found.value - 130) <= found.error <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_nine_of_ten_traces_are_within_two_errors(name: str) -> None:
    share, reported, true = judged(CASES[name], 200)
    print(f"{name}: {share:.1%} within two errors, mean reported {reported:.3g}, true {true:.3g}")
    assert share >= 0.9
    assert reported <= 2 * true


@pytest.mark.parametrize("method", ["auto", "dense", "quadrature", "hutch++"])
def test_every_method_finds_the_trace(device: str, method: Any) -> None:
    A = models.model("laplace2d:n=15")
    expected = np.sqrt(np.linalg.eigvalsh(A.toarray())).sum()
    op = as_operator(A, device=device)
    estimate = value, error = trace(np.sqrt, op, 1e-2, method=method, rng=1)
    assert abs(value - expected) <= max(4 * error, 1e-10 * expected)
    assert error <= 1e-2 * expected
    assert estimate.products > 0
    assert method in ("auto", estimate.method)
    assert trace(np.sqrt, op, 1e-2, method=method, rng=1) == estimate


@pytest.mark.parametrize("dtype", DTYPES)
def test_traces_of_all_types_and_multiples(device: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    A = exact_values(rng, (40, 40), dtype)
    A = (A + A.conj().T) / 8
    values, f = np.linalg.eigvalsh(A.astype(complex)), lambda x: np.exp(-(x**2))
    for given, factor in ((on(device, A), 1.0), (-2 * as_operator(sp.csr_array(A), device=device), -2.0)):
        for method in ("dense", "quadrature"):
            value, error = trace(f, given, 1e-2, method=method, vectors=60, rng=0)
            assert abs(value - f(factor * values).sum()) <= 4 * error + 40 * np.finfo(dtype).eps


def test_values_near_zero_and_complex_ones_have_absolute_errors() -> None:
    A = models.model("graphene:nx=24,ny=24")  # whose spectrum is symmetric: the trace of sin is 0
    value, error = trace(np.sin, A, 0, atol=5.0, rng=0)
    assert abs(value) <= 4 * error
    assert error <= 5.0
    value, error = trace(lambda x: np.exp(1j * x), A, 1e-2, rng=0)
    expected = np.exp(1j * spectra.graphene_eigenvalues(24, 24)).sum()
    assert abs(value - expected) <= 4 * error


def test_eigenvalues_of_zero_are_clipped_to_the_domain_of_a_function() -> None:
    A = models.model("laplace2d:n=24,periodic=true")
    expected = np.sqrt(spectra.laplace_eigenvalues([24, 24], periodic=True)).sum()
    for method in ("dense", "quadrature", "auto"):
        value, error = trace(np.sqrt, A, 1e-2, domain=(0, None), method=method, rng=0)
        assert abs(value - expected) <= 4 * error + 1e-6
    assert trace(np.sqrt, np.diag([-1e-15, 1.0]), domain=POSITIVE).value == 1


def test_what_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.functions.traces.MOST_VECTORS", 32)
    monkeypatch.setattr("solvers.functions.traces.MOST_DENSE_ROWS", 32)
    with pytest.warns(ConvergenceWarning, match="the error is .*, more than"):
        trace(np.sqrt, models.model("laplace2d:n=25"), 1e-6, rng=0)
    with pytest.warns(ConvergenceWarning, match="from all 2 eigenvalues; give a larger tol, or"):
        trace(np.sign, np.diag([0.0, 1.0]))


def test_a_tolerance_that_takes_a_vector_per_row_takes_all_eigenvalues() -> None:
    op = as_operator(models.model("xxz:sites=12,up=6"))
    estimate = trace(lambda x: np.exp(-3 * x), op, 1e-5, rng=0)
    expected = np.exp(-3 * np.linalg.eigvalsh(models.model("xxz:sites=12,up=6").toarray())).sum()
    assert estimate.method == "dense"
    assert abs(estimate.value / expected - 1) <= 1e-5
    step = trace(lambda x: 1.0 * (x > 0.74), models.model("laplace1d:n=565"), rng=0)
    assert step.method == "dense"
    assert step.products < 4000  # Lanczos steps that do not resolve a jump are given up


@pytest.mark.parametrize(
    ("call", "change", "error", "message"),
    [
        (trace, {"f": 3}, OptionError, "f: got 3; give a function"),
        (trace, {"f": np.log}, OptionError, "f: is nan at -"),
        (trace, {"f": lambda x: x[:1]}, OptionError, "f: returned shape"),
        (trace, {"tol": -1}, OptionError, "tol: got -1; give a number of at least 0"),
        (trace, {"method": "exact"}, OptionError, "method: got 'exact'"),
        (trace, {"vectors": 1}, OptionError, "vectors: got 1"),
        (trace, {"A": np.triu(np.ones((5, 5)))}, OptionError, "A is not Hermitian"),
        (trace, {"A": 1j * np.eye(5)}, OptionError, "A is not Hermitian"),
        (trace, {"A": np.ones((5, 4))}, ShapeError, "A is 5 x 4"),
        (trace, {"A": INDEFINITE, "domain": POSITIVE}, OptionError, "but an eigenvalue of A is about -1"),
        (trace, {"A": -INDEFINITE, "domain": POSITIVE}, OptionError, "but an eigenvalue of A is about -8"),
        (logdet, {"method": "quadrature"}, OptionError, "A is not positive definite: it has a Ritz value -3"),
        (
            logdet,
            {"A": np.copy, "shape": (9999, 9999), "method": "factors"},
            OptionError,
            "an explicit matrix",
        ),
    ],
)
def test_wrong_arguments_are_refused(call: Any, change: Any, error: Any, message: str) -> None:
    given = {"A": CARBON, **change} if call is logdet else {"f": np.exp, "A": CARBON, **change}
    with pytest.raises(error, match=message):
        call(**given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_logarithms_of_determinants_are_those_of_dense_matrices(device: str, dtype: str, n: int) -> None:
    rng = np.random.default_rng(n)
    A = values(rng, (n, n), dtype) * (rng.random((n, n)) < 0.5)
    A = (A + A.conj().T + np.diag(values(rng, (n,), dtype).real)).astype(dtype)
    sign, value = np.linalg.slogdet(A.astype(complex))
    sparse = as_operator(sp.csr_array(A), device=device)
    function = as_operator(lambda X: on(device, A) @ X, shape=(n, n), dtype=dtype, device=device)
    for given in (on(device, A), sparse, function):
        found = logdet(given)
        assert found.sign == np.round(sign.real)
        assert abs(found.value - value) <= 8 * found.error
        assert found.method == "factors"
    assert logdet(-2 * sparse).sign == (-1) ** n * found.sign
    assert abs(logdet(-2 * sparse).value - value - n * np.log(2)) <= 8 * found.error


def test_determinants_of_singular_matrices_are_zero(device: str) -> None:
    for A in (np.zeros((3, 3)), np.ones((4, 4)), models.model("laplace1d:n=50,periodic=true").toarray()):
        found = logdet(as_operator(sp.csr_array(A), device=device))
        assert (found.sign, found.value) == (0, -np.inf)
    found = logdet(0 * as_operator(np.eye(9), device=device))
    assert (found.sign, found.value) == (0, -np.inf)
    assert tuple(logdet(np.zeros((0, 0)))) == (0, 0)


def test_large_matrices_are_not_factorised() -> None:
    A = models.model("laplace3d:n=40")
    found = value, error = logdet(A, 1e-3, rng=0)
    assert found.method == "quadrature"
    assert abs(value - np.log(spectra.laplace_eigenvalues([40] * 3)).sum()) <= 4 * error


def test_a_window_that_no_node_is_in_is_no_trace_of_zero() -> None:
    values, sizes = np.linspace(-1, 1, 2000), list[int]()

    def window(x: Any) -> Any:
        sizes.append(len(x))
        return (np.abs(x - 0.3) < 0.005) * 1.0

    found = trace(window, sp.diags_array(values).tocsr(), 0.5, vectors=8, rng=0)
    assert sum(size > 5000 for size in sizes) <= 3  # looks between the nodes
    assert found.error > 0
    assert abs(found.value - window(values).sum()) < 4 * found.error


def test_kinks_that_no_node_sees_are_within_the_error() -> None:
    for seed in range(50):
        values, f = kinked(seed)  # of a diagonal matrix, whose traces have no spread
        estimate = trace(f, np.diag(values), 1e-2, method="quadrature", rng=seed)
        assert abs(estimate.value - f(values).sum()) <= 2 * estimate.error


@pytest.mark.parametrize("method", ["dense", "quadrature"])
def test_eigenvalues_that_rounding_moves_across_a_jump_are_within_the_error(method: str) -> None:
    rng = np.random.default_rng(0)
    w, Q = np.r_[np.zeros(3), rng.uniform(-1, 1, 57)], np.linalg.qr(rng.standard_normal((60, 60)))[0]
    for f in (np.sign, lambda x: 1.0 * (x > 0)):
        estimate = trace(f, Q * w @ Q.T, atol=9, method=method, rng=0)
        assert abs(estimate.value - f(w).sum()) <= 2 * estimate.error


def test_rounding_errors_are_within_the_reported_one() -> None:
    A = sp.diags_array(np.linspace(-1, 1, 1000)).tocsr()  # random signs give its trace without a spread
    for seed in range(3):
        value, error = trace(lambda x: x, A, atol=1e-6, rng=seed)
        assert abs(value) < 2 * error < 1e-11
