"""Kernels that are installed with the package: those of the current sources, and never compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockvec.kernels import compile as compiler
from blockvec.kernels import prebuilt
from blockvec.kernels.device import H200
from blockvec.kernels.elementwise import PhiloxKernel
from blockvec.kernels.source import render
from tests.benchmarks.prebuilt_kernels import missing, pretended_backend, sources
from tests.benchmarks.precompiled_lists import solves

PHILOX = PhiloxKernel("float64").source()
FEW = 0.1  # of the kernels of a solve: those of checks that few solves need


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Pretend that a driver is there, and that compiling is impossible."""

    def refuse(*_: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(compiler, "compile_source", refuse)

    def of(major: int) -> None:
        monkeypatch.setattr(compiler, "driver_major", lambda: major)

    return of


def test_a_kernel_of_the_package_is_not_compiled_and_decompressed_once(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(13)
    cubin = compiler.build(PHILOX, "sm_90", cache_dir=tmp_path)
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.resources.registers > 0
    assert b"philox_d" in cubin.image
    monkeypatch.setattr(prebuilt, "find", None)  # from here on, the copy in the cache
    assert compiler.build(PHILOX, "sm_90", cache_dir=tmp_path) == cubin
    driver(12)  # another driver may not load that
    with pytest.raises(TypeError, match="not callable"):
        compiler.build(PHILOX, "sm_90", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("major", "change", "architecture", "options"),
    [
        (12, "", "sm_90", compiler.OPTIONS),  # a driver that is older than the compiler
        (0, "", "sm_90", compiler.OPTIONS),  # no driver
        (13, "// changed", "sm_90", compiler.OPTIONS),
        (13, "", "sm_75", compiler.OPTIONS),
        (13, "", "sm_90", (*compiler.OPTIONS, "--use_fast_math")),
    ],
)
def test_all_other_kernels_are_compiled(
    major: int, change: str, architecture: str, options: tuple[str, ...], driver: Any, tmp_path: Path
) -> None:
    driver(major)
    with pytest.raises(AssertionError, match="compiled"):
        compiler.build(PHILOX + change, architecture, options, cache_dir=tmp_path)


def test_most_kernels_of_a_common_solve_are_part_of_the_package() -> None:
    """If this fails after a change of kernels or models: run ``make prebuilt``."""
    with pretended_backend(H200) as backend:
        recorded = list(solves("lanczos", (None,), (10,), "float64", tol=1e-8, maxiter=20))
        for rows in (30_000, 700_000):
            wanted = sources(recorded, backend, (rows,))
            assert len(missing(wanted, "sm_90")) <= FEW * len(wanted), "run make prebuilt"


def test_no_archive_has_kernels_of_earlier_sources() -> None:
    """If this fails after a change of CUDA sources: run ``make prebuilt``."""
    folder = Path(prebuilt.__file__).parent
    sources = folder / "cuda"
    current = {
        prebuilt.body_of(render("kernel", file.relative_to(sources).as_posix(), {}))
        for file in sources.rglob("*.cu")
    }
    archives = [
        installed
        for file in (folder / "prebuilt" / "sm_90").glob("*.zip")
        if (installed := prebuilt.installed("sm_90", file.stem)) is not None
    ]
    assert archives
    for archive in archives:
        assert current.issuperset(archive.bodies), "run make prebuilt"


def test_an_archive_returns_what_was_packed() -> None:
    kernels = {
        f"{number:032x}": (
            f'#define KERNEL f{number % 3}\n#line 1 "f.cu"',
            prebuilt.Prebuilt(bytes([number]) * number, {"registers": number}, "13.0"),
        )
        for number in range(40)
    }
    packed = prebuilt.pack(kernels)
    assert packed == prebuilt.pack(dict(reversed(kernels.items())))
    archive = prebuilt.Archive(packed)
    assert {key: archive.get(key) for key in kernels} == {key: kernel for key, (_, kernel) in kernels.items()}
    assert archive.get("z") is None
    assert len(archive.bodies) == 1
