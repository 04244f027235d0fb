"""Builds kernels that stage rows by copies of single threads (``cuda/dense/staging.cuh``) for the host."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np

from tests.blocks import leading_dimension
from tests.emulator import host as emulator


def build(source: str, run: str, folder: Path) -> ctypes.CDLL:
    """Compile a rendered kernel and the function `run`, C++ that launches it."""
    ptx = r'#line 1 "common/copies\.cuh"\n.*?(?=#line \d+ "dense/staging\.cuh")'
    text = emulator.host_source(re.sub(ptx, "", source, flags=re.DOTALL))
    (folder / "kernel.cpp").write_text(text.replace("emulator.hpp", "pieces.hpp", 1) + run)
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", f"-I{Path(__file__).parent}"]
    command = [str(emulator.COMPILER), *flags, "-o", f"{folder}/kernel.so", f"{folder}/kernel.cpp"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return ctypes.CDLL(f"{folder}/kernel.so")


def span(block: np.ndarray) -> ctypes.c_longlong:
    """Bytes from the first element of a block to the end of its last."""
    rows = len(block)
    bytes_ = ((rows - 1) * leading_dimension(block) + block.shape[1]) * block.itemsize if rows else 0
    return ctypes.c_longlong(bytes_)


def scalars(alpha: complex, beta: complex) -> ctypes.Array[ctypes.c_double]:
    """The factors as the kernels' four numbers."""
    a, b = complex(alpha), complex(beta)
    return (ctypes.c_double * 4)(a.real, a.imag, b.real, b.imag)
