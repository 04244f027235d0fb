"""Inputs that nobody should give: documented errors in bounded time and memory, and no other file touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.sandbox import MEMORY_BYTES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux processes")


def outputs(
    kinds: Iterable[str], folder: Path, root: Path, seconds: float, count: int
) -> dict[str, list[str]]:
    """Run inputs of some kinds, each in a process of its own; return the lines that these have printed."""
    home, cache = str(folder / "home"), str(folder / "caches" / "own")
    own = {"HOME": home, "TMPDIR": home, "MPLCONFIGDIR": home, "BLOCKVEC_CACHE_DIR": cache}
    own |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "BLOCKVEC_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz.worker", "0", str(seconds), str(count), str(folder), *kinds]
    subprocess.run(command, cwd=root, env=os.environ | own, stdin=subprocess.DEVNULL, check=True, timeout=900)
    return {kind: (folder / f"{kind}.txt").read_text(errors="replace").splitlines() for kind in kinds}


def check(kind: str, lines: list[str]) -> None:
    """Check what a process has printed: the number of each input, and the summary."""
    assert lines, f"{kind} has printed nothing"
    *numbers, last = lines
    assert last.startswith("{"), f"input {kind} {numbers} ended the process: {last}"
    summary = json.loads(last)
    failures = summary.pop("failures")
    print(f"{kind}: {summary}")
    assert not failures, "\n\n".join(failures)
    assert summary["inputs"] == len(numbers) > 0
    assert summary["growth_mb"] << 20 < MEMORY_BYTES


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, list[str]]:
    """A sample of each kind."""
    return outputs(KINDS, tmp_path_factory.mktemp("fuzz"), root, seconds=2, count=200)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_inputs_ends_as_documented(kind: str, samples: dict[str, list[str]]) -> None:
    check(kind, samples[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_inputs_end_as_documented(kind: str, tmp_path: Path, root: Path) -> None:
    check(kind, outputs([kind], tmp_path, root, seconds=60, count=20_000)[kind])
