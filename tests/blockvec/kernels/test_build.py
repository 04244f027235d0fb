"""Kernels compile without a GPU; caches survive damage and read-only disks; an installed package is used."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockvec.errors import CompileError
from blockvec.kernels import build as compiler
from blockvec.kernels.records import packed
from blockvec.system.config import option_context
from tests.devices import resources_of

pytest.importorskip("cuda.bindings.nvrtc")

SOURCE = """
extern "C" __global__ void scale(double* x, double factor) {
    __shared__ double staged[32];
    staged[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = factor * staged[31 - threadIdx.x];
}
"""


def test_a_source_becomes_machine_code_with_a_report_of_its_resources() -> None:
    cubin = compiler.compile_source(SOURCE, "sm_90")
    assert cubin.image.startswith(b"\x7fELF")
    used = resources_of(cubin.log)
    assert 4 <= used.registers <= 32
    assert used.shared_bytes == 32 * 8
    assert used.spill_bytes == used.stack_bytes == 0


def test_a_refused_source_raises_with_the_compilers_log() -> None:
    with pytest.raises(CompileError, match=r"identifier .*undeclared_thing.* is undefined"):
        compiler.compile_source('extern "C" __global__ void f(int* x) { *x = undeclared_thing; }', "sm_90")


def entries(folder: Path) -> dict[str, int]:
    """List the entries of a cache, each with what is another number once it is written again."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "kernels").iterdir()}


def test_an_entry_is_read_by_the_second_build_unless_it_is_damaged(tmp_path: Path) -> None:
    with option_context(cache_dir=tmp_path):
        first = compiler.machine_code(SOURCE, "sm_90")
    written = entries(tmp_path)
    assert list(written) == [first.key]
    assert compiler.machine_code(SOURCE, "sm_90", cache_dir=tmp_path) == first
    assert entries(tmp_path) == written
    path = tmp_path / "kernels" / first.key
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    assert compiler.machine_code(SOURCE, "sm_90", cache_dir=tmp_path) == first
    assert path.read_bytes() == data


def test_the_first_miss_is_announced_once_and_a_hit_not_at_all(tmp_path: Path) -> None:
    calls: list[str] = []

    def build_both(name: str) -> None:
        with compiler.on_first_miss(lambda: calls.append(name)):
            for source in (SOURCE, SOURCE + "// another"):
                compiler.machine_code(source, "sm_90", cache_dir=tmp_path)

    build_both("empty")
    build_both("full")
    assert calls == ["empty"]
    compiler.machine_code(SOURCE + "// outside", "sm_90", cache_dir=tmp_path)
    assert calls == ["empty"]


BODY = """#line 1 "a.cu"
// what it does
double f(double x) {
    return x;  // the same
}
"""


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        (BODY.replace("the same", "another text"), True),
        (BODY.replace("double f", "// one line more\n\ndouble f"), True),
        (BODY.replace("#line 1", "#line 7"), True),
        (BODY.replace("return x", "return -x"), False),
        (BODY.replace("x;  //", "x; } //"), False),
    ],
)
def test_comments_and_numbers_of_lines_do_not_change_the_key(changed: str, is_same: bool) -> None:
    head = "constexpr int M = 3;\n"
    keys = {compiler.key_of(head + body, "sm_90", "13.0") for body in (BODY, changed)}
    assert (len(keys) == 1) == is_same
    assert compiler.key_of("constexpr int M = 4;\n" + BODY, "sm_90", "13.0") not in keys


def test_a_folder_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert compiler.machine_code(SOURCE, "sm_90", cache_dir=blocked).image.startswith(b"\x7fELF")


def _build_many(folder: Path, seed: int) -> set[str]:
    sources = [SOURCE.replace("scale", f"scale{(seed + i) % 4}") for i in range(4)]
    return {
        compiler.machine_code(source, "sm_90", cache_dir=folder).key for source in sources for _ in range(3)
    }


def test_concurrent_processes_share_one_folder_without_harm(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        keys = pool.starmap(_build_many, [(tmp_path, seed) for seed in range(2)])
    assert keys[0] == keys[1]
    written = entries(tmp_path)
    assert sorted(written) == sorted(keys[0])  # and no temporary file is left
    assert _build_many(tmp_path, 0) == keys[0]
    assert entries(tmp_path) == written, "an entry was damaged, and is built again"


SCRIPT = """
import sys, types
def version():
    raise RuntimeError("libnvrtc.so not found")
nvrtc = types.SimpleNamespace(nvrtcVersion=version)
sys.modules["cuda.bindings.nvrtc"] = nvrtc
sys.modules["cuda.bindings"] = %s
from blockvec.errors import CompileError
from blockvec.kernels import build as compiler
try:
    compiler.compile_source("", "sm_90")
except CompileError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        ("None", r'cuda\.bindings is missing .* pip install .*".*\[cuda13\].*" \(cuda12'),
        ("types.SimpleNamespace(nvrtc=nvrtc)", r"NVRTC cannot be loaded .*pip install .*\[cuda13\]"),
    ],
    ids=["no bindings", "no library"],
)
def test_without_a_compiler_the_error_names_what_to_install(bindings: str, message: str) -> None:
    # In a process that has not looked for the compiler yet.
    command = [sys.executable, "-c", SCRIPT % bindings]
    assert re.search(message, subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write_package(folder: Path, sources: list[str], **changes: Any) -> None:
    """Write an installed package of kernels for sm_90, as `make kernels` does."""
    folder = folder / compiler.PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    about = {"format": compiler.PACKAGE_FORMAT, "blockvec": "1.0", "compiler": "12.9", **changes}
    (folder / "about.json").write_text(json.dumps(about))
    with zipfile.ZipFile(folder / "sm_90.zip", "w") as archive:
        for source in sources:
            key = compiler.key_of(source, "sm_90", "12.9")
            cubin = compiler.Cubin(key, b"packed", "12.9", "log")
            archive.writestr(key, packed(key, *cubin.record()))


@pytest.fixture
def refresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Find what is in a folder as installed, with a driver of CUDA 13."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compiler, "driver_major", lambda: 13)
    importlib.invalidate_caches()
    compiler.kernel_package.cache_clear()
    yield
    compiler.kernel_package.cache_clear()


def test_a_kernel_of_the_package_is_not_compiled(refresh: None, tmp_path: Path) -> None:
    write_package(tmp_path, [SOURCE])
    found = compiler.machine_code(SOURCE, "sm_90", cache_dir=tmp_path / "cache")
    assert (found.image, found.compiler, found.log) == (b"packed", "12.9", "log")
    assert compiler.compiler_of(SOURCE, "sm_90") == "NVRTC 12.9, of the package of kernels"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "case", ["another source", "another architecture", "an old driver", "a new format", "damage"]
)
def test_all_other_kernels_are_compiled(
    case: str, refresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, [SOURCE], **({"format": 99} if case == "a new format" else {}))
    if case == "an old driver":
        monkeypatch.setattr(compiler, "driver_major", lambda: 11)
    if case == "damage":
        archive = tmp_path / compiler.PACKAGE / "sm_90.zip"
        archive.write_bytes(archive.read_bytes()[:-30])
    source = SOURCE.replace("31", "30") if case == "another source" else SOURCE
    architecture = "sm_80" if case == "another architecture" else "sm_90"
    found = compiler.machine_code(source, architecture, cache_dir=tmp_path / "cache")
    assert found.image.startswith(b"\x7fELF")
    assert found.compiler == compiler.compiler_version()
    assert compiler.compiler_of(source, architecture) == f"NVRTC {compiler.compiler_version()}"


def test_without_a_compiler_the_package_serves(
    refresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "compiler_version", lambda: "")
    write_package(tmp_path, [SOURCE])
    assert compiler.machine_code(SOURCE, "sm_90", cache_dir=tmp_path / "cache").image == b"packed"
