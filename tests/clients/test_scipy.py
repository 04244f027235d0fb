"""SciPy's own tests, unmodified and from the installed SciPy, with blockvec's functions in its place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients.own_tests import run_own_tests


@dataclass(frozen=True)
class Suite:
    """Modules of tests, the least number of cases that pass in SciPy 1.17, and names that may fail."""

    modules: tuple[str, ...]
    least: int
    deviations: dict[str, str] = field(default_factory=dict)  # with the reason
    selected: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


ALGORITHMS = ("Test_SVDS_ARPACK", "Test_SVDS_LOBPCG", "Test_SVDS_PROPACK")
OF_ALGORITHMS = {
    "test_svds_parameter_tol": "asks for errors far below tolerances of 1e-4 to 1, which that algorithm has",
    "test_svd_maxiter": "asks for the exception or the warning of that algorithm after one iteration",
}
STATUS = "TestExpmActionInterval::test_expm_multiply_interval_status"
SUITES = {
    "eigsh": Suite(  # every test of this module that calls eigsh; the others call eigs
        ("_eigen.arpack.tests.test_arpack",),
        408,
        selected=("-k", "test_symmetric or test_hermitian or eigsh or parallel_threads or reentering"),
    ),
    "svds": Suite(
        ("_eigen.tests.test_svds",),
        505,
        {f"{each}::{name}": why for each in ALGORITHMS for name, why in OF_ALGORITHMS.items()},
    ),
    "functions": Suite(
        ("tests.test_expm_multiply", "tests.test_funm_multiply_krylov"),
        219,
        {f"{STATUS}_{number}": "asks which loop of SciPy's a call takes" for number in range(3)},
        options={"plugin": "with_functions"},
    ),
    "systems": Suite(("_isolve.tests.test_iterative",), 840),
    "minres": Suite(("_isolve.tests.test_minres",), 7),
    "lobpcg": Suite(
        ("_eigen.lobpcg.tests.test_lobpcg",),
        1530,
        {"test_inplace_warning": "blockvec copies the caller's X, so it has no such warning"},
    ),
}


@pytest.mark.slow  # make test-clients runs it
@pytest.mark.parametrize("name", SUITES)
def test_scipys_own_tests_pass(name: str, tmp_path: Path) -> None:
    suite = SUITES[name]
    modules = [f"scipy.sparse.linalg.{module}" for module in suite.modules]
    ours = run_own_tests(["--pyargs", *modules, *suite.selected], tmp_path, **suite.options)
    counts = Counter(ours["outcomes"].values())
    print(f"{name}: {counts['passed']} of {counts.total()} passed, {ours['solves']} calls")
    assert ours["solves"] > 0
    assert counts["passed"] >= suite.least, ours["output"]
    failed = {test.partition("::")[2] for test, outcome in ours["outcomes"].items() if outcome == "failed"}
    assert failed <= suite.deviations.keys(), ours["output"]
