"""Run tests that another package brings with it, with blockvec's functions in SciPy's place or without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run_own_tests(
    selected: list[str],
    folder: Path,
    libraries: str = "scipy.sparse.linalg",
    plugin: str = "with_blockvec",
) -> Any:
    """Run tests in a process of their own, with the configuration of no project; functions are replaced."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    paths = [str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CLIENT_REPORT": str(report),
        "CLIENT_LIBRARIES": libraries,
        "MPLBACKEND": "Agg",
        "PYTEST_ADDOPTS": "",
    }
    flags = f"-m pytest -q --tb=short -p {plugin} -p no:cacheprovider -c pytest.ini".split()
    how: Any = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 600}
    run = subprocess.run([sys.executable, *flags, *selected], check=False, **how)
    assert report.exists(), run.stdout + run.stderr
    return json.loads(report.read_text()) | {"output": run.stdout}
