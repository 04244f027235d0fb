"""Runs the library's CUDA sources on the host, see ``emulator.hpp``; needs a C++ compiler."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import numpy as np

COMPILER = shutil.which("g++")
_FOLDER = Path(__file__).parent
_REPLACED = ("common/pipeline.cuh", "common/mma.cuh")


def host_source(source: str) -> str:
    """Return C++ for the host from a rendered kernel: PTX files replaced, shared memory per block."""
    kept, skipping = [], False
    for line in source.splitlines():
        if match := re.match(r'#line \d+ "(.+)"', line):
            skipping = match[1] in _REPLACED
        if not skipping and line.strip() != "#pragma once":
            kept.append(line)
    prologue, _, body = "\n".join(kept).partition("\n#line")
    body = re.sub(
        r"extern __shared__ __align__\(\d+\) char (\w+)\[\];",
        r"char* \1 = emulator::current->block->shared;",
        "#line" + body,
    )
    count = iter(range(1000))

    def per_block(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[2].split(",")]
        return " ".join(
            f"auto& {name} = emulator::static_shared<{match[1]}, {next(count)}>();" for name in names
        )

    body = re.sub(r"__shared__ ([\w<>]+) ([\w, ]+);", per_block, body)
    return f'#include "emulator.hpp"\n{_ring()}\n{prologue}\n{body}\n'


def _ring() -> str:
    """Return the part of ``pipeline.cuh`` that is plain C++."""
    text = (
        resources.files("blockvec.kernels")
        .joinpath("cuda", "common", "pipeline.cuh")
        .read_text(encoding="utf-8")
    )
    return text[text.index("template <int STAGES>\nstruct Ring") : text.index("// Barrier number ID")]


def build(source: str, folder: Path) -> ctypes.CDLL:
    """Compile a rendered TSMTTSM kernel for the host; `run_tsmttsm` runs the library."""
    return compile_library(host_source(source) + _RUN_TSMTTSM, folder)


def build_sweep(source: str, folder: Path) -> ctypes.CDLL:
    """Compile a rendered sweep for the host; `run_sweep` runs the library."""
    return compile_library(host_source(source) + _RUN_SWEEP, folder)


def build_small(source: str, folder: Path) -> ctypes.CDLL:
    """Compile a rendered kernel of `inverse_factor.cu` for the host."""
    return compile_library(host_source(source) + _RUN_SMALL, folder)


def compile_library(text: str, folder: Path) -> ctypes.CDLL:
    """Compile C++ for the host and load it."""
    stem = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    stem.with_suffix(".cpp").write_text(text)
    command = [str(COMPILER), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{_FOLDER}", "-o"]
    result = subprocess.run(
        [*command, f"{stem}.so", f"{stem}.cpp"], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return ctypes.CDLL(f"{stem}.so")


_RUN_TSMTTSM = """
extern "C" int run(u32 blocks, int threads, size_t shared_bytes, u64 seed, const char* A, i64 bytes_a,
                   const char* B, i64 bytes_b, void* C, i64 K, i64 lda, i64 ldb, const double* factors,
                   void* workspace) {
    emulator::readable = {{A, A + bytes_a}, {B, B + bytes_b}};
    return emulator::launch(blocks, threads, shared_bytes, seed, [=] {
        const double* by = factors;
        KERNEL(A, B, static_cast<Real*>(C), K, lda, ldb, by[0], by[1], by[2], by[3], workspace);
    });
}
"""


_RUN_SWEEP = """
extern "C" int run(u32 blocks, int threads, size_t shared_bytes, u64 seed, const char* W, i64 bytes_w,
                   char* V, i64 bytes_v, const double* C, double* S, i64 K, i64 pitch_w, i64 pitch_v,
                   const double* factors, void* workspace) {
    emulator::readable = {{W, W + bytes_w}, {V, V + bytes_v}};
    return emulator::launch(blocks, threads, shared_bytes, seed, [=] {
        KERNEL(W, V, C, S, K, pitch_w, pitch_v, factors[0], factors[1], factors[2], factors[3], workspace);
    });
}
"""


_RUN_SMALL = """
extern "C" int run(int threads, size_t shared_bytes, const Element* G, Element* T, Wide* report, int b,
                   double limit) {
    return emulator::launch(1, threads, shared_bytes, 1, [=] { KERNEL(G, T, report, b, limit); });
}
"""


def _span(array: np.ndarray) -> int:
    return int((array.shape[0] - 1) * array.strides[0] + array.shape[1] * array.itemsize)


def run_sweep(
    library: ctypes.CDLL,
    operands: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    *,
    blocks: int,
    threads: int,
    shared_bytes: int,
    workspace: np.ndarray,
    factors: tuple[complex, complex],
    seed: int,
) -> int:
    """Run a sweep over ``W, V, C, S`` on `blocks` blocks; return its status, 0 or 4 for a deadlock."""
    W, V, C, S = operands
    alpha, beta = (complex(factor) for factor in factors)
    scalars = (ctypes.c_double * 4)(alpha.real, alpha.imag, beta.real, beta.imag)
    long, pointer = ctypes.c_longlong, ctypes.c_void_p
    return int(
        library.run(
            *(ctypes.c_uint(blocks), threads, ctypes.c_size_t(shared_bytes), ctypes.c_ulonglong(seed)),
            *(pointer(W.ctypes.data), long(_span(W)), pointer(V.ctypes.data), long(_span(V))),
            *(pointer(C.ctypes.data), pointer(S.ctypes.data), long(W.shape[0])),
            *(long(W.strides[0]), long(V.strides[0]), scalars, pointer(workspace.ctypes.data)),
        )
    )


def run_tsmttsm(
    library: ctypes.CDLL,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    *,
    blocks: int,
    threads: int,
    shared_bytes: int,
    workspace: np.ndarray,
    factors: tuple[complex, complex],
    seed: int,
) -> int:
    """Run a TSMTTSM kernel on `blocks` blocks; return its status, 0 or 4 for a deadlock."""
    alpha, beta = (complex(factor) for factor in factors)
    scalars = (ctypes.c_double * 4)(alpha.real, alpha.imag, beta.real, beta.imag)
    long, pointer = ctypes.c_longlong, ctypes.c_void_p
    return int(
        library.run(
            *(ctypes.c_uint(blocks), threads, ctypes.c_size_t(shared_bytes), ctypes.c_ulonglong(seed)),
            *(pointer(A.ctypes.data), long(_span(A)), pointer(B.ctypes.data), long(_span(B))),
            *(pointer(C.ctypes.data), long(A.shape[0])),
            *(long(A.strides[0] // A.itemsize), long(B.strides[0] // B.itemsize)),
            *(scalars, pointer(workspace.ctypes.data)),
        )
    )
