"""Kernels under compute-sanitizer: memory accesses and races in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
DRIVER = [sys.executable, "-m", "tests.gpu.sanitized"]


# Kernels that are not ours, and those whose stages are guarded by mbarriers, or by barriers whose number
# stands in a register: racecheck does not follow these and reports stages that are filled again, or rows that
# one lane of a warp cleared before another one arrived at the barrier (sweeps).
BEYOND = ("cupy_", "tsmttsm_", "gram_", "tsmm_mma_c", "tsmm_3m_", "_sweep_")


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer, a part of the CUDA toolkit, is not there")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_are_clean(tool: str, root: Path) -> None:
    # The first run compiles what the next one loads.
    plain = subprocess.run(DRIVER, cwd=root, capture_output=True, text=True)
    assert plain.returncode == 0, plain.stdout[-2000:] + plain.stderr[-4000:]
    command = [str(SANITIZER), "--tool", tool, "--error-exitcode", "7", *DRIVER]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert "kernels" in found.stdout, found.stdout[-4000:] + found.stderr[-4000:]
    if tool == "memcheck":
        assert found.returncode == 0, found.stdout[-4000:]
    races = [line for line in found.stdout.splitlines() if "Race reported" in line]
    ours = [line for line in races if not any(name in line for name in BEYOND)]
    assert not ours, "\n".join(ours)
