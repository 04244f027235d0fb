"""The package of kernels holds what common solves ask for, and is found where it is installed."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from blockvec.kernels import build
from blockvec.kernels.elementwise import philox_kernel
from blockvec.kernels.problem import SpmmvProblem, SweepProblem, TsmttsmProblem
from tests.benchmarks.kernel_package import archive, pretended_backend, requests, sources, wheel
from tests.devices import H200, needs_compiler

PHILOX = philox_kernel("float64").source()


def test_the_requests_of_a_solve_have_kernels_for_every_class_of_rows() -> None:
    asked = requests("lanczos", "float64", [2])
    assert {TsmttsmProblem, SweepProblem, SpmmvProblem} <= {type(request) for request in asked}
    with pretended_backend(H200) as backend:
        for request in asked:
            for rows in (1 << 12, 1 << 20):
                for source in sources(request, backend, rows):
                    assert source.startswith("#define KERNEL ")


@needs_compiler
def test_a_built_wheel_is_installed_and_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive([PHILOX], "sm_90", tmp_path / "cache", 1)
    assert content == archive([PHILOX], "sm_90", tmp_path / "cache", 1)
    path = wheel({"sm_90": content}, tmp_path / "dist")
    assert path.name.startswith("blockvec_kernels_cu")
    with zipfile.ZipFile(path) as whole:
        whole.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(build, "driver_major", lambda: 99)
    importlib.invalidate_caches()
    build.kernel_package.cache_clear()
    try:
        found = build.machine_code(PHILOX, "sm_90", cache_dir=tmp_path / "another")
        assert found == build.machine_code(PHILOX, "sm_90", cache_dir=tmp_path / "cache")
        assert not (tmp_path / "another").exists()
    finally:
        build.kernel_package.cache_clear()


@pytest.mark.slow
@needs_compiler
def test_pip_installs_the_wheel(tmp_path: Path) -> None:
    path = wheel({"sm_90": archive([PHILOX], "sm_90", tmp_path / "cache", 1)}, tmp_path)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "site"),
    ]
    subprocess.run([*command, str(path)], check=True, capture_output=True)
    assert (tmp_path / "site" / "blockvec_kernels" / "about.json").exists()
