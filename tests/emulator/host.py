"""Run the CUDA kernels on the host, thread by thread; see ``emulator.hpp``. Needs a C++ compiler."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec.kernels.tensor_map import Rows

COMPILER = shutil.which("g++")
needs_host_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++ to run kernels on the host")

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", f"-I{_FOLDER}", "-ffp-contract=off", "-fno-strict-aliasing")
_REPLACED = re.compile(r'^#line \d+ "common/(ptx|views)\.cuh"\n.*?(?=^#line )', re.MULTILINE | re.DOTALL)
_RUN = """
extern "C" const char* run(const emulator::Launch* launch) { return emulator::run<KERNEL>(KERNEL, *launch); }
"""


def sampled(cases: Sequence[Any], period: int = 2) -> list[Any]:
    """Mark all but the first of every two cases, or `period` of them, slow."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*value, marks=pytest.mark.slow if i % period else ()) for i, value in enumerate(values)
    ]


def paired(kernels: Sequence[Any], settings: Sequence[Any], quick: int = 1) -> list[Any]:
    """List kernels that are not slow with `quick` settings each, in turn, and all other pairs as slow."""
    pairs = []
    for i, kernel in enumerate(kernels):
        values, marks = (kernel.values, kernel.marks) if hasattr(kernel, "marks") else (kernel, ())
        for j in range(len(settings)):
            setting = settings[(i + j) % len(settings)]
            marked = marks or (() if j < quick else pytest.mark.slow)
            pairs.append(pytest.param(*values, *setting, marks=marked))
    return pairs


class HostKernel:
    """A kernel compiled for the host, called as `blockvec.kernels.launch.Kernel` is.

    Arguments are passed as CuPy passes them: Python's integers and floats in 8 bytes, NumPy scalars in their
    own size.

    Parameters
    ----------
    source : str
        Rendered source of the kernel.
    readable, writable : sequence of arrays
        Memory that copies and cached loads may read, and that bulk and marked stores may write.
    seed : int
        Seed of the order in which threads run and copies land.
    """

    def __init__(
        self,
        source: str,
        readable: Sequence[np.ndarray] = (),
        writable: Sequence[np.ndarray] = (),
        seed: int = 0,
    ) -> None:
        library = ctypes.CDLL(str(_compiled(host_source(source))))
        self.run, self._prefetched = library.run, library.prefetched
        self.run.restype, self._prefetched.restype = ctypes.c_char_p, ctypes.c_uint64
        self.reads, self.writes = _bounds(readable), _bounds(writable)
        self.seed = seed

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int], arguments: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Run the kernel; fail on a deadlock and on arguments that do not match the parameters."""
        values = [np.atleast_1d(np.asarray(argument)) for argument in arguments]
        launch = _Launch(
            *(grid[0], grid[1] if len(grid) > 1 else 1, block[0], shared_mem, self.seed),
            _pointers([value.ctypes.data for value in values]),
            (ctypes.c_uint64 * len(values))(*(value.itemsize for value in values)),
            *(len(values), _pointers(self.reads), _pointers(self.writes)),
            *(len(self.reads) // 2, len(self.writes) // 2),
        )
        failure = self.run(ctypes.byref(launch))
        assert failure is None, failure.decode()

    @property
    def prefetched(self) -> int:
        """Number of different sectors that the last launch requested ahead."""
        return int(self._prefetched())


class _Launch(ctypes.Structure):
    """``emulator::Launch``."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("blocks", "tiles", "threads")),
        *((name, ctypes.c_uint64) for name in ("shared_bytes", "seed")),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("sizes", ctypes.POINTER(ctypes.c_uint64)),
        ("count", ctypes.c_uint64),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("reads", "writes")),
        *((name, ctypes.c_uint64) for name in ("n_reads", "n_writes")),
    )


def emulated_map(rows: Rows) -> bytes:
    """Describe rows as the emulator's `TensorMap` does."""
    words = (rows.address, rows.row_bytes, rows.n_rows, rows.pitch, rows.box_bytes, rows.box_rows)
    return np.array(words + (0,) * 10, np.uint64).tobytes()


def host_source(source: str) -> str:
    """Put the emulator's header into the place of files with inline PTX in a rendered kernel."""
    return '#include "cuda.hpp"\n' + _REPLACED.sub('#include "ptx.hpp"\n', source) + _RUN


def _compiled(text: str) -> Path:
    """Compile a source once in all tests; each library has an emulator of its own."""
    emulator = _built((_FOLDER / "emulator.cpp").read_text(), ".o", "-c")
    return _built(text, ".so", "-shared", str(emulator))


def _built(text: str, suffix: str, *options: str) -> Path:
    folder = Path(os.environ["BLOCKVEC_CACHE_DIR"]) / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}{suffix}"
    if not path.exists():
        source, target = (path.with_suffix(f".{os.getpid()}{kind}") for kind in (".cpp", suffix))
        source.write_text(text)
        command = [str(COMPILER), *_FLAGS, "-o", str(target), str(source), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        target.replace(path)  # by several processes at a time
    return path


def _bounds(arrays: Sequence[np.ndarray]) -> list[int]:
    """First address of each array that is not empty, and the address behind its last element."""
    return [bound for array in arrays if array.size for bound in np.lib.array_utils.byte_bounds(array)]


def _pointers(addresses: Sequence[int]) -> Any:
    return (ctypes.c_void_p * len(addresses))(*addresses)
