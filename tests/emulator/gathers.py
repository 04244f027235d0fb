"""Runs kernels that gather rows (``cuda/sparse/spmmv.cuh``) on the host, launched like the real ones."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator import host as emulator

_PTX = re.compile(r"// Starts to copy `bytes`.*?(?=// N neighbouring elements)", re.DOTALL)
_SHARED = re.compile(r"__shared__ (\w+) (\w+)((?:\[\w+\])+);")


class HostKernel:
    """A kernel's source compiled for the host; launched like the real one."""

    def __init__(
        self, source: str, folder: Path, readable: Sequence[np.ndarray], writable: Sequence[np.ndarray]
    ) -> None:
        source, ptx = _PTX.subn("", source)
        source, shared = _SHARED.subn(r"using Shared_\2 = \1\3; __shared__ Shared_\2 \2;", source)
        assert ptx == ("common/stream.cuh" in source)
        assert shared <= 1
        text = emulator.host_source(source).replace("emulator.hpp", "gathers.hpp", 1)
        declared = re.search(r"KERNEL\((.*?)\) \{", text, re.DOTALL)
        assert declared
        self._parameters = [" ".join(item.split()) for item in declared[1].split(",")]
        names = ", ".join(parameter.rpartition(" ")[2].lstrip("*") for parameter in self._parameters)
        self._spans = [_bounds(readable), _bounds(writable)]
        self.seed = 0
        text += f"""
extern "C" int run(u32 blocks, u32 tiles, int threads, size_t shared_bytes, u64 seed, int n_readable,
                   char** readable, int n_writable, char** writable, {declared[1]}) {{
    emulator::readable.clear();
    emulator::writable.clear();
    for (int i = 0; i < n_readable; i += 2) emulator::readable.push_back({{readable[i], readable[i + 1]}});
    for (int i = 0; i < n_writable; i += 2) emulator::writable.push_back({{writable[i], writable[i + 1]}});
    return emulator::launch_tiles(blocks, tiles, threads, shared_bytes, seed, [=] {{ KERNEL({names}); }});
}}
"""
        stem = folder / f"kernel{len(list(folder.iterdir()))}"
        stem.with_suffix(".cpp").write_text(text)
        include = f"-I{Path(emulator.__file__).parent}"
        flags = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC", include]
        command = [str(emulator.COMPILER), *flags, "-o", f"{stem}.so", f"{stem}.cpp"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self._library = ctypes.CDLL(f"{stem}.so")

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int], arguments: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        blocks, tiles = grid if len(grid) > 1 else (*grid, 1)
        status = self._library.run(
            *(ctypes.c_uint(blocks), ctypes.c_uint(tiles), block[0]),
            *(ctypes.c_size_t(shared_mem), ctypes.c_ulonglong(self.seed)),
            *(item for span in self._spans for item in (len(span), (ctypes.c_void_p * len(span))(*span))),
            *(self._value(*pair) for pair in zip(self._parameters, arguments, strict=True)),
        )
        assert status == 0

    @staticmethod
    def _value(parameter: str, argument: Any) -> Any:
        if "*" in parameter:
            return ctypes.c_void_p(argument)
        if parameter.startswith("Factor"):
            return _Complex(argument.real, argument.imag)
        wide = isinstance(argument, int | np.int64)  # CuPy passes a Python integer in 64 bits
        assert wide == (not parameter.startswith("int ")) or parameter.startswith("Index")
        return ctypes.c_longlong(argument) if wide else ctypes.c_int(argument)


def _bounds(arrays: Sequence[np.ndarray]) -> list[int]:
    """Where arrays begin and end."""
    return [bound for array in arrays if array.size for bound in np.lib.array_utils.byte_bounds(array)]


class _Complex(ctypes.Structure):
    _fields_ = (("re", ctypes.c_double), ("im", ctypes.c_double))


def framed(values: np.ndarray, ld: int, align: int) -> tuple[np.ndarray, np.ndarray]:
    """The values as a view at an alignment in memory that is NaN elsewhere, and that memory."""
    n_rows, width = values.shape
    memory = np.full((n_rows * ld + 8) * values.itemsize + 64, 0xFF, np.uint8)
    first = -memory.ctypes.data % 32 + align % 16
    flat = memory[first : first + n_rows * ld * values.itemsize].view(values.dtype)
    view = flat.reshape(n_rows, ld)[:, :width]
    view[...] = values
    return view, memory
