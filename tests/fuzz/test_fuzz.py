"""Inputs that nobody should give: documented errors in bounded time and memory, and no other file touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.sandbox import MEMORY_BYTES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux processes")


def check(kind: str, folder: Path, root: Path, *, seconds: float, count: int) -> None:
    """Run inputs in a process of their own, and report their number."""
    own = {
        **{"HOME": str(folder / "home"), "BLOCKVEC_CACHE_DIR": str(folder / "caches" / "own")},
        **{
            "TMPDIR": str(folder / "home"),
            "MPLCONFIGDIR": str(folder / "home"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "BLOCKVEC_THREADS": "1"},
    }
    command = [sys.executable, "-m", "tests.fuzz.worker", kind, "0", str(seconds), str(count), str(folder)]
    done = subprocess.run(
        command,
        cwd=root,
        env=os.environ | own,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    *numbers, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"input {kind} {last} ended the process:\n{done.stderr[-3000:]}"
    summary = json.loads(last)
    failures = summary.pop("failures")
    print(f"{kind}: {summary}")
    assert not failures, "\n\n".join(failures)
    assert summary["inputs"] == len(numbers) > 0
    assert summary["growth_mb"] << 20 < MEMORY_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_inputs_ends_as_documented(kind: str, tmp_path: Path, root: Path) -> None:
    check(kind, tmp_path, root, seconds=2.5, count=300)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_inputs_end_as_documented(kind: str, tmp_path: Path, root: Path) -> None:
    check(kind, tmp_path, root, seconds=60, count=20_000)
