"""Both classes of blocks that solvers run on, real matrices, and pairs with known values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector
from blockvec.io import read_matrix
from solvers.blocks import ColumnBlock


@pytest.fixture(params=[BlockVector, ColumnBlock])
def block_type(request: pytest.FixtureRequest) -> Any:
    """The class of blocks."""
    return request.param


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
