"""What a type checker sees of eigsh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
from typing import Any, assert_type
from blockvec import eigsh
from solvers import EigenResult

def call(A: Any, flag: bool) -> None:
    assert_type(eigsh(A, 4, return_info=True, tol=1e-6), EigenResult)
    assert_type(eigsh(A, 3, A, 0.5, "LM", rng=0), tuple[Any, Any])
    assert_type(eigsh(A, return_eigenvectors=False), Any)
    assert_type(eigsh(A, return_info=flag), Any)
    eigsh(A, metod="lanczos")  # type: ignore[call-overload]
    eigsh(A, method="lanzcos")  # type: ignore[call-overload]
"""


@pytest.mark.slow
def test_a_type_checker_knows_what_eigsh_returns_and_refuses_misspelt_options(
    tmp_path: Path, root: Path
) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "calls.py")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
