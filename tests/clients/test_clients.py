"""Tests of other packages with blockvec's functions in SciPy's place, and the recipes of the guide."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.clients.own_tests import ROOT, run_own_tests

PAGES = "".join(
    (ROOT / "docs/guide" / name).read_text()
    for name in ("clients.md", "clients_quantum.md", "clients_tight_binding.md")
)

OWN_TESTS = {  # in the package's wheel, or in its source distribution, which BLOCKVEC_CLIENT_SOURCES contains
    "sklearn": [
        *("sklearn.manifold.tests.test_spectral_embedding", "sklearn.cluster.tests.test_spectral"),
        *("sklearn.decomposition.tests.test_pca", "sklearn.decomposition.tests.test_truncated_svd"),
        "sklearn.utils.tests.test_extmath",
    ],
    "networkx": ["networkx.linalg.tests.test_algebraic_connectivity", "networkx.drawing.tests.test_layout"],
    "scqubits": ["scqubits.tests.test_zeropi", "scqubits.tests.test_cos2phiqubit"],
    "quimb": ["test_base_linalg.py", "test_approx_spectral.py"],
    "qutip": ["qutip.tests.core.data.test_linalg", "qutip.tests.core.test_qobj"],
    "sknetwork": ["sknetwork.linalg.tests", "sknetwork.embedding.tests"],
    "pygsp": ["pygsp.tests.test_graphs"],
    "cvxpy": [f"cvxpy.tests.test_{name}" for name in ("linalg_utils", "quadratic", "quad_form", "constant")],
    "openfermion": ["openfermion.linalg.sparse_tools_test"],
}

LIBRARIES = {"sklearn": "sklearn"}  # whose own copies of names are replaced, not SciPy's names
# Tests that fail on purpose, with the reason.
DEVIATIONS = {
    **dict.fromkeys(
        (f"test_randomized_svd_low_rank_all_dtypes[int{bits}]" for bits in (32, 64)),
        "compares vectors of the matrix zero, which are arbitrary",
    ),
    "test_singular_values_expected[42-randomized]": "asks for vectors v of a wide matrix, unconverged, "
    "whose A v are orthogonal to 1e-14; of ours the A^H u are",
    **dict.fromkeys(
        (f"test_randomized_svd_{kind}" for kind in ("infinite_rank", "low_rank_with_noise")),
        "asks for large errors without power iterations; block Krylov spaces have a sixth of them",
    ),
}

RECIPES = re.findall(r"^## [^\n]*?\(`(\w+)`\)\n(.*?)(?=^## |\Z)", PAGES, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; make test-clients installs it if there is a wheel")


def files_of(package: str, tests: list[str]) -> list[str]:
    """Find a package's tests: modules in its wheel, files in its source distribution."""
    if not tests[0].endswith(".py"):
        return ["--pyargs", *tests]
    folder = Path(os.environ.get("BLOCKVEC_CLIENT_SOURCES", "no sources"))
    found = [str(path.resolve()) for name in tests for path in folder.glob(f"{package}-*/tests/**/{name}")]
    if len(found) != len(tests):
        pytest.skip(f"{package}'s wheel has no tests, and BLOCKVEC_CLIENT_SOURCES no source distribution")
    return found


@pytest.mark.parametrize("package", OWN_TESTS)
def test_a_packages_own_tests_pass_as_with_scipy(package: str, tmp_path: Path) -> None:
    require(package)
    selected = files_of(package, OWN_TESTS[package])
    ours = run_own_tests(selected, tmp_path, LIBRARIES.get(package, "scipy.sparse.linalg"))
    counts = Counter(ours["outcomes"].values())
    print(f"{package}: {counts['passed']} of {counts.total()} passed, {counts['skipped']} skipped,", end=" ")
    print(f"{counts['failed']} failed, {ours['solves']} solves")
    assert ours["solves"] > 0, "the tests of the package have not called blockvec"
    assert counts["passed"] > 0
    failed = {test for test, outcome in ours["outcomes"].items() if outcome == "failed"}
    if failed:  # a package whose tests fail in this environment fails with SciPy's function, too
        theirs = run_own_tests(selected, tmp_path, libraries="")
        only_ours = {test for test in failed if theirs["outcomes"].get(test) != "failed"}
        assert {test.rpartition("::")[2] for test in only_ours} <= DEVIATIONS.keys(), ours["output"]


@pytest.mark.parametrize(("package", "text"), RECIPES, ids=[package for package, _ in RECIPES])
def test_a_recipe_of_the_guide_gives_the_packages_own_values(package: str, text: str) -> None:
    require(package)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert "assert " in blocks[-1], "a recipe ends with a comparison"
    command = [sys.executable, "-c", "".join(blocks)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr


def test_the_guide_has_a_recipe_for_every_package_that_is_tested() -> None:
    assert {package for package, _ in RECIPES} >= set(OWN_TESTS)
