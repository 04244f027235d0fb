"""Examples of the guide that need a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, as_operator, models
from tests.contract.blocks import Layout, exact_values, host, on

pytestmark = pytest.mark.gpu
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
# Read when tests are collected, so that a page without it is found on any machine.
(EXAMPLE,) = re.findall(
    r"```python\n(import cupy\nfrom .*?)```", (GUIDE / "gpu.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("layout", [Layout(0, 0), Layout(1, 2)], ids=["contiguous", "view"])
def test_the_laplacian_without_a_matrix_is_the_laplacian(dtype: str, layout: Layout) -> None:
    n = 12
    names: dict[str, Any] = {"n": n, "as_operator": as_operator}
    exec(EXAMPLE, names)
    op = as_operator(names["laplacian"], shape=(n**3, n**3), dtype=dtype, device="gpu")
    X = exact_values(np.random.default_rng(0), (n**3, layout.left + 4 + layout.right), dtype)
    V = BlockVector(on("gpu", X))[:, layout.left : layout.left + 4]
    assert np.array_equal(host(op @ V), models.laplace3d(n=n) @ host(V))
