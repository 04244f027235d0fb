"""SciPy's own tests, unmodified and from the installed SciPy, with blockvec's functions in its place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.clients.own_tests import run_own_tests

# Every test of this module that calls eigsh; the others call eigs.
MODULE = "scipy.sparse.linalg._eigen.arpack.tests.test_arpack"
OF_EIGSH = "test_symmetric or test_hermitian or eigsh or parallel_threads or reentering"
LEAST = 408  # test cases of SciPy 1.17


@pytest.mark.slow  # make test-clients runs it
def test_scipys_own_tests_of_eigsh_pass(tmp_path: Path) -> None:
    ours = run_own_tests(["--pyargs", MODULE, "-k", OF_EIGSH], tmp_path)
    outcomes = {test.rpartition("::")[2]: outcome for test, outcome in ours["outcomes"].items()}
    counts = Counter(outcomes.values())
    assert ours["solves"] >= counts["passed"] >= LEAST, ours["output"]
    assert counts["skipped"] == counts["failed"] == 0


SVDS = "scipy.sparse.linalg._eigen.tests.test_svds"
OF_SVDS = 625  # test cases of SciPy 1.17, of which 112 are skipped and two fail as SciPy expects
ALGORITHMS = ("Test_SVDS_ARPACK", "Test_SVDS_LOBPCG", "Test_SVDS_PROPACK")
# Tests of each algorithm that fail on purpose, with the reason.
OF_ALGORITHMS = {
    "test_svds_parameter_tol": "asks for errors far below tolerances of 1e-4 to 1, which that algorithm has",
    "test_svd_maxiter": "asks for the exception or the warning of that algorithm after one iteration",
}

# Modules of SciPy's tests of linear systems and of lobpcg, the least number of test cases that pass, and
# those that fail on purpose, with the reason.
OTHERS = {
    "_isolve.tests.test_iterative": (840, {}),
    "_isolve.tests.test_minres": (7, {}),
    "_eigen.lobpcg.tests.test_lobpcg": (
        1530,
        {"test_inplace_warning": "blockvec copies the caller's X, so it has no such warning"},
    ),
}


@pytest.mark.slow
def test_scipys_own_tests_of_svds_pass_except_for_those_of_algorithms(tmp_path: Path) -> None:
    ours = run_own_tests(["--pyargs", SVDS], tmp_path)
    outcomes = {test.partition("::")[2]: outcome for test, outcome in ours["outcomes"].items()}
    assert ours["solves"] > 0
    assert len(outcomes) >= OF_SVDS, ours["output"]
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    assert failed == {f"{algorithm}::{name}" for algorithm in ALGORITHMS for name in OF_ALGORITHMS}


FUNCTIONS = {"test_expm_multiply": 179, "test_funm_multiply_krylov": 43}  # test cases of SciPy 1.17
FUNCTION_DEVIATIONS = {
    f"test_expm_multiply_interval_status_{status}": "asks which of three loops of SciPy's own a call takes"
    for status in range(3)
}


@pytest.mark.slow
def test_scipys_own_tests_of_functions_of_matrices_pass(tmp_path: Path) -> None:
    modules = [f"scipy.sparse.linalg.tests.{name}" for name in FUNCTIONS]
    ours = run_own_tests(["--pyargs", *modules], tmp_path, plugin="with_functions")
    outcomes = {test.rpartition("::")[2]: outcome for test, outcome in ours["outcomes"].items()}
    counts = Counter(outcomes.values())
    print(f"functions of matrices: {counts['passed']} of {counts.total()} passed, {ours['solves']} calls")
    assert counts["passed"] >= sum(FUNCTIONS.values()) - len(FUNCTION_DEVIATIONS), ours["output"]
    assert ours["solves"] > 1000
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    assert failed == FUNCTION_DEVIATIONS.keys(), ours["output"]


@pytest.mark.slow
@pytest.mark.parametrize("module", OTHERS)
def test_scipys_own_tests_of_systems_and_lobpcg_pass(module: str, tmp_path: Path) -> None:
    least, deviations = OTHERS[module]
    ours = run_own_tests(["--pyargs", f"scipy.sparse.linalg.{module}"], tmp_path)
    outcomes = {test.rpartition("::")[2]: outcome for test, outcome in ours["outcomes"].items()}
    counts = Counter(outcomes.values())
    assert ours["solves"] > 0
    assert counts["passed"] >= least, ours["output"]
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    assert failed == deviations.keys(), ours["output"]
