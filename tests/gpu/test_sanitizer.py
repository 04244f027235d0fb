"""The kernels under NVIDIA's checkers of memory accesses and of races in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
DRIVER = [sys.executable, "-m", "tests.gpu.sanitized"]


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer, a part of the CUDA toolkit, is not there")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_are_clean(tool: str, root: Path) -> None:
    subprocess.run(DRIVER, cwd=root, check=True, capture_output=True)  # compiles what the next run loads
    found = subprocess.run(
        [str(SANITIZER), "--tool", tool, "--error-exitcode", "7", *DRIVER],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]
    assert "kernels" in found.stdout
