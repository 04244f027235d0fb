"""Both classes of blocks that solvers run on, and real matrices."""

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
