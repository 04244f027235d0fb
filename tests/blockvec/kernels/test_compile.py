"""Kernels compile without a GPU; their cache survives concurrent writers, damage and read-only disks."""

from __future__ import annotations

import contextvars
import functools
import multiprocessing
import re
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from blockvec.config import option_context
from blockvec.errors import CompileError
from blockvec.kernels import compile as compiler

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
    assert 4 <= cubin.resources.registers <= 32
    assert cubin.resources.shared_bytes == 32 * 8
    assert cubin.resources.spill_bytes == cubin.resources.stack_bytes == 0


def test_the_report_counts_spills_and_stack() -> None:
    keep = " ".join(f"x[{i}] = v[{i}];" for i in range(200))
    load = " ".join(f"v[{i}] = x[{i}] * y;" for i in range(200))
    body = f"double v[200]; {load} __syncthreads(); {keep}"
    source = f'extern "C" __global__ void many(double* x, double y) {{ {body} }}'
    options = (*compiler.OPTIONS, "--maxrregcount=32")
    assert compiler.compile_source(source, "sm_90", options).resources.spill_bytes > 0


def test_a_refused_source_raises_with_the_compilers_log() -> None:
    with pytest.raises(CompileError, match=r"identifier .*undeclared_thing.* is undefined"):
        compiler.compile_source('extern "C" __global__ void f(int* x) { *x = undeclared_thing; }', "sm_90")


def machine_code(cubin: compiler.Cubin) -> bytes:
    """Return the instructions of the kernel ``f``: its section of the ELF file."""
    image = cubin.image
    table, size, count, names = (
        struct.unpack_from(kind, image, at)[0]
        for kind, at in (("<Q", 40), ("<H", 58), ("<H", 60), ("<H", 62))
    )
    headers = [struct.unpack_from("<IIQQQQ", image, table + size * i) for i in range(count)]
    for name, _, _, _, begin, length in headers:
        if image[headers[names][4] + name :].startswith(b".text.f\0"):
            return image[begin : begin + length]
    raise AssertionError("no section .text.f")


@pytest.mark.parametrize(
    ("expression", "instruction"),
    [
        ("x[0] * x[1]", "mul.rn{}.f32 %0, %1, %2;"),
        ("x[0] + x[1]", "add.rn{}.f32 %0, %1, %2;"),
        ("x[0] * x[1] + x[2]", "fma.rn{}.f32 %0, %1, %2, %3;"),
    ],
)
def test_float32_denormals_are_kept(expression: str, instruction: str) -> None:
    def code(statement: str) -> bytes:
        source = f'extern "C" __global__ void f(float* x) {{ float y; {statement} x[4] = y; }}'
        return machine_code(compiler.compile_source(source, "sm_90"))

    def exactly(suffix: str) -> bytes:
        inputs = ", ".join(f'"f"(x[{i}])' for i in range(instruction.count("%") - 1))
        return code(f'asm("{instruction.format(suffix)}" : "=f"(y) : {inputs});')

    assert exactly("") != exactly(".ftz")
    assert code(f"y = {expression};") == exactly("")


def entries(folder: Path) -> dict[str, int]:
    """List the entries of a cache, each with what is another number once it is written again."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cubins").iterdir()}


def test_a_second_build_reads_the_first_ones_entry(tmp_path: Path) -> None:
    first = compiler.build(SOURCE, "sm_90", cache_dir=tmp_path)
    written = entries(tmp_path)
    assert compiler.build(SOURCE, "sm_90", cache_dir=tmp_path) == first
    assert entries(tmp_path) == written


def test_the_first_miss_is_announced_once_and_a_hit_not_at_all(tmp_path: Path) -> None:
    calls: list[str] = []

    def build_both(name: str) -> None:
        with compiler.on_first_miss(lambda: calls.append(name)):
            for source in (SOURCE, SOURCE + "// another"):
                compiler.build(source, "sm_90", cache_dir=tmp_path)

    build_both("empty")
    build_both("full")
    assert calls == ["empty"]
    compiler.build(SOURCE + "// outside", "sm_90", cache_dir=tmp_path)
    assert calls == ["empty"]


def test_threads_that_the_first_miss_starts_announce_nothing(tmp_path: Path) -> None:
    calls: list[threading.Thread] = []

    def compile_ahead() -> None:
        build = functools.partial(compiler.build, SOURCE + "// ahead", "sm_90", cache_dir=tmp_path)
        calls.append(threading.Thread(target=contextvars.copy_context().run, args=(build,)))
        calls[-1].start()
        calls[-1].join()

    with compiler.on_first_miss(compile_ahead):
        compiler.build(SOURCE, "sm_90", cache_dir=tmp_path)
    assert len(calls) == 1


def test_the_cache_folder_is_the_one_of_the_options_in_force(tmp_path: Path) -> None:
    with option_context(cache_dir=tmp_path):
        cubin = compiler.build(SOURCE, "sm_90")
    assert [path.stem for path in (tmp_path / "cubins").iterdir()] == [cubin.key]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_key_tells_sources_options_and_architectures_apart(architecture: str, tmp_path: Path) -> None:
    keys = {
        compiler.build(source, architecture, options, cache_dir=tmp_path).key
        for source in (SOURCE, SOURCE + "\n")
        for options in (compiler.OPTIONS, (*compiler.OPTIONS, "--maxrregcount=64"))
    }
    assert len(keys) == 4
    assert compiler.build(SOURCE, "sm_90", cache_dir=tmp_path).image != b""


@pytest.mark.parametrize("damage", ["truncated", "one byte", "empty", "not ours", "header only"])
def test_a_damaged_entry_is_rebuilt(damage: str, tmp_path: Path) -> None:
    whole = compiler.build(SOURCE, "sm_90", cache_dir=tmp_path)
    (path,) = (tmp_path / "cubins").iterdir()
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[-20] ^= 1
    path.write_bytes(
        {
            "truncated": data[: len(data) // 2],
            "one byte": bytes(flipped),
            "empty": b"",
            "not ours": b"\x00" * 1000,
            "header only": data[:80],
        }[damage]
    )
    assert compiler.build(SOURCE, "sm_90", cache_dir=tmp_path) == whole
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "report",
    [
        b"{}",
        b"[]",
        b"3",
        b"not json",
        b"[" * 100_000,
        b'{"registers": 1, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0, "more": 0}',
        b'{"registers": -1, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0}',
        b'{"registers": "many", "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0}',
    ],
)
def test_an_entry_with_a_valid_checksum_and_other_fields_is_rebuilt(report: bytes, tmp_path: Path) -> None:
    whole = compiler.build(SOURCE, "sm_90", cache_dir=tmp_path)
    (path,) = (tmp_path / "cubins").iterdir()
    data = path.read_bytes()
    payload = report + b"\n" + whole.image
    path.write_bytes(compiler._MAGIC + compiler._checksum(path.stem, payload) + b"\n" + payload)
    assert compiler.build(SOURCE, "sm_90", cache_dir=tmp_path) == whole
    assert path.read_bytes() == data


def test_the_entry_of_another_kernel_is_rebuilt(tmp_path: Path) -> None:
    whole = compiler.build(SOURCE, "sm_90", cache_dir=tmp_path)
    other = compiler.build(SOURCE.replace("scale", "other"), "sm_90", cache_dir=tmp_path)
    paths = [tmp_path / "cubins" / f"{cubin.key}.cubin" for cubin in (whole, other)]
    data = paths[0].read_bytes()
    paths[0].write_bytes(paths[1].read_bytes())
    assert compiler.build(SOURCE, "sm_90", cache_dir=tmp_path) == whole
    assert paths[0].read_bytes() == data


def test_a_folder_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert compiler.build(SOURCE, "sm_90", cache_dir=blocked).image.startswith(b"\x7fELF")


def _build_many(folder: Path, seed: int) -> set[str]:
    sources = [SOURCE.replace("scale", f"scale{(seed + i) % 4}") for i in range(4)]
    return {compiler.build(source, "sm_90", cache_dir=folder).key for source in sources for _ in range(3)}


def test_concurrent_processes_share_one_folder_without_harm(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        keys = pool.starmap(_build_many, [(tmp_path, seed) for seed in range(3)])
    assert keys[0] == keys[1] == keys[2]
    written = entries(tmp_path)
    assert sorted(written) == sorted(f"{key}.cubin" for key in keys[0])  # and no temporary file is left
    assert _build_many(tmp_path, 0) == keys[0]
    assert entries(tmp_path) == written, "an entry was damaged, and is built again"


def error_in_a_new_process(preparation: str, call: str) -> str:
    """Prepare a process that has not looked for the compiler yet, and return the error of a call in it."""
    script = f"""
import sys, types
{preparation}
from blockvec.errors import CompileError
from blockvec.kernels import compile as compiler
try:
    {call}
except CompileError as error:
    print(error)
"""
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


def test_without_bindings_the_error_names_what_to_install() -> None:
    message = error_in_a_new_process('sys.modules["cuda.bindings"] = None', "compiler.compiler_version()")
    assert re.search(r'cuda\.bindings is missing .* pip install .*".*\[cuda13\].*" \(cuda12', message)


def test_without_nvrtcs_library_the_error_names_what_to_install() -> None:
    without_library = """
def version():
    raise RuntimeError("libnvrtc.so not found")

nvrtc = types.SimpleNamespace(nvrtcVersion=version)
sys.modules["cuda.bindings"] = types.SimpleNamespace(nvrtc=nvrtc)
sys.modules["cuda.bindings.nvrtc"] = nvrtc
"""
    message = error_in_a_new_process(without_library, f"compiler.compile_source({SOURCE!r}, 'sm_90')")
    assert re.search(r"NVRTC cannot be loaded .*pip install .*\[cuda13\]", message)
