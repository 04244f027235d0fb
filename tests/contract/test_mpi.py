"""What holds for threads holds for processes under mpiexec, with the communicator of mpi4py."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import distributed

DEADLINE_S = 240
SOLVES = (
    "every_method_finds_the_values_of_the_matrix",
    "limits_and_callbacks_stop_all_processes",
    "a_failure_anywhere_ends_the_solve_everywhere",
)


@pytest.fixture(scope="module")
def under_mpi(root: Path) -> Callable[..., str]:
    """Run a Python program with some processes, and return its output; fail after a deadline."""
    mpiexec = shutil.which("mpiexec", path=Path(sys.executable).parent) or shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpi4py or no mpiexec: pip install 'blockvec[mpi-local]' brings both")

    def run(size: int, *arguments: str) -> str:
        command = [mpiexec, "-n", str(size), sys.executable, *arguments]
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"no end after {DEADLINE_S} s: {output}")
        assert process.returncode == 0, output
        return output

    return run


def test_two_processes_that_split_rows(under_mpi: Callable[..., str], tmp_path: Path) -> None:
    names = [*distributed.WORKS, *SOLVES]
    assert f"{len(names)} passed" in under_mpi(2, "-m", "tests.under_mpi", str(tmp_path), *names)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_processes_that_split_rows(size: int, under_mpi: Callable[..., str], tmp_path: Path) -> None:
    assert "passed" in under_mpi(size, "-m", "tests.under_mpi", str(tmp_path))
