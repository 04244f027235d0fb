"""Blocks to run the solvers on: blockvec's own, and a plain double with nothing but the public interface."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec.io import read_matrix


def _load(name: str) -> ModuleType:
    """Import a module of the tests folder, which is no package."""
    path = Path(__file__).resolve().parent.parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"_tests_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


doubles = _load("doubles")


@pytest.fixture(params=["PlainBlock", "BlockVector"])
def block_type(request: pytest.FixtureRequest) -> Any:
    """The class of blocks."""
    return doubles.PlainBlock if request.param == "PlainBlock" else blockvec.BlockVector


@pytest.fixture
def operator_for(block_type: Any) -> Callable[[Any], Any]:
    """What turns a matrix into an operator on these blocks."""
    return doubles.PlainOperator if block_type is doubles.PlainBlock else blockvec.as_operator


@pytest.fixture
def plain() -> ModuleType:
    """The module of the doubles."""
    return doubles


@pytest.fixture(scope="session")
def real_matrix(matrices: Path) -> Callable[[str], sp.csr_array]:
    """Return a function that reads a real matrix by name."""
    return lambda name: read_matrix(matrices / f"{name}.mtx")


@pytest.fixture(scope="session")
def reference(matrices: Path) -> Callable[[str, int, str], np.ndarray]:
    """Return a function that gives the k lowest or highest reference eigenvalues, ascending."""
    values = json.loads((matrices / "reference_eigenvalues.json").read_text())

    def pick(name: str, k: int, which: str) -> np.ndarray:
        end = np.sort(values[name]["lowest" if which == "SA" else "highest"])
        return end[:k] if which == "SA" else end[-k:]

    return pick


@pytest.fixture
def torus_pair() -> Callable[[int], tuple[Any, Any, np.ndarray]]:
    """Make stiffness and mass of n x n bilinear elements of a torus; return them and the exact values."""

    def pair(n: int) -> tuple[Any, Any, np.ndarray]:
        turn = sp.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)))
        stiff, mass = 2 * sp.eye_array(n) - turn - turn.T, (4 * sp.eye_array(n) + turn + turn.T) / 6
        A, M = sp.csr_array(sp.kron(stiff, mass) + sp.kron(mass, stiff)), sp.csr_array(sp.kron(mass, mass))
        wave = np.cos(2 * np.pi * np.arange(n) / n)
        values = (2 - 2 * wave) / ((4 + 2 * wave) / 6)
        return A, M, np.sort(np.add.outer(values, values).ravel())

    return pair
