"""Compilation of CUDA C++ with NVRTC, a cache of cubins on disk, and loading through CuPy.

Kernels that are installed with the package (`prebuilt`) come first, if the driver can load them.

NVRTC is called directly, because CuPy's ``RawModule`` flushes float32 denormals to zero and hides the
compiler's report. It needs neither a GPU nor CUDA's headers.

A cache entry is one file, named by a hash of all that determines its content and replaced atomically. Its
checksum includes that hash: an entry that is damaged, or that of another kernel, is compiled again.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import options as current_options
from ..errors import CompileError
from ..system.frozen import frozen
from ..system.installation import install_command
from . import prebuilt
from .cache import from_fields, read_file, replace_file
from .launch import Kernel

# Functions without an execution space are device functions; denormals are kept. ptxas reports registers and
# spills into the program log.
OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ftz=false", "--ptxas-options=-v")

_MAGIC = b"blockvec cubin 2\n"

# CUfunction_attribute values of the driver API
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_PREFERRED_SHARED_MEMORY_CARVEOUT = 9


@frozen
class Resources:
    """Resources of a kernel, as reported by the assembler.

    Attributes
    ----------
    registers : int
        32-bit registers per thread; 0 if not reported.
    spill_bytes : int
        Spills to and from local memory per thread.
    stack_bytes : int
        Stack frame per thread.
    shared_bytes : int
        Static shared memory per block.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@frozen
class Cubin:
    """Machine code of one kernel for one architecture; `key` identifies it everywhere."""

    key: str
    image: bytes
    resources: Resources


def compiler_version() -> str:
    """Read NVRTC's version, as ``"13.0"``.

    Raises
    ------
    CompileError
        If cuda.bindings or NVRTC's library is not installed.
    """
    major, minor = _nvrtc()[1]
    return f"{major}.{minor}"


def _remedy() -> str:
    return f"install one with {install_command('cuda13')} (cuda12 for a CUDA 12 driver)"


@functools.cache
def _nvrtc() -> tuple[Any, tuple[int, int]]:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompileError(f"no CUDA compiler: cuda.bindings is missing ({error}); {_remedy()}.") from error
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the type that cuda.bindings raises here has changed from release to release
        raise CompileError(f"no CUDA compiler: NVRTC cannot be loaded ({error}); {_remedy()}.") from error
    if int(status) != 0:
        raise CompileError(f"no CUDA compiler: NVRTC fails with status {int(status)}; {_remedy()}.")
    return nvrtc, (int(major), int(minor))


def compile_source(source: str, architecture: str, options: tuple[str, ...] = OPTIONS) -> Cubin:
    """Compile a source to machine code, without the cache.

    Parameters
    ----------
    source : str
        CUDA C++ with one ``extern "C"`` kernel and no headers.
    architecture : str
        Real architecture, as ``"sm_90"``.
    options : tuple of str
        NVRTC's options without the architecture.

    Raises
    ------
    CompileError
        With the compiler's log if it rejects the source, or with the remedy if there is no compiler.
    """
    nvrtc, _ = _nvrtc()

    def call(function_name: str, *arguments: Any) -> Any:
        status, *results = getattr(nvrtc, function_name)(*arguments)
        if int(status) != 0:
            text = nvrtc.nvrtcGetErrorString(status)[1].decode()
            raise CompileError(f"{function_name}: {text} for {architecture}, options {' '.join(options)}.")
        return results[0] if results else None

    program = call("nvrtcCreateProgram", source.encode(), b"kernel.cu", 0, [], [])
    try:
        flags = [option.encode() for option in (f"--gpu-architecture={architecture}", *options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if int(status) != 0:
            why = nvrtc.nvrtcGetErrorString(status)[1].decode()
            raise CompileError(f"NVRTC refused a kernel for {architecture} ({why}):\n{log}")
        image = bytearray(call("nvrtcGetCUBINSize", program))
        buffer = bytes(len(image))
        call("nvrtcGetCUBIN", program, buffer)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(_key(source, architecture, options), buffer, _resources(log))


def _text(get_size: Any, get_text: Any, program: Any) -> str:
    size = get_size(program)[1]
    buffer = bytes(size)  # filled in place through its address, as cuda.bindings does for output buffers
    get_text(program, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace")


def _resources(log: str) -> Resources:
    def total(pattern: str) -> int:
        return sum(int(number) for number in re.findall(pattern, log))

    return Resources(
        registers=max((int(number) for number in re.findall(r"Used (\d+) registers", log)), default=0),
        spill_bytes=total(r"(\d+) bytes spill (?:stores|loads)"),
        stack_bytes=total(r"(\d+) bytes stack frame"),
        shared_bytes=total(r"(\d+) bytes smem"),
    )


def _key(source: str, architecture: str, options: tuple[str, ...]) -> str:
    text = "\0".join((compiler_version(), architecture, *options, source))
    return hashlib.sha256(text.encode()).hexdigest()


_on_first_miss: contextvars.ContextVar[Callable[[], object] | None] = contextvars.ContextVar(
    "blockvec_on_first_miss", default=None
)


@contextlib.contextmanager
def on_first_miss(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` once inside the ``with`` block: before the first kernel that is not cached is built."""
    token = _on_first_miss.set(action)
    try:
        yield
    finally:
        _on_first_miss.reset(token)


def _begin_compiling() -> None:
    if (action := _on_first_miss.get()) is not None:
        _on_first_miss.set(None)  # first: threads of the action compile in copies of this context
        action()


def build(
    source: str, architecture: str, options: tuple[str, ...] = OPTIONS, *, cache_dir: Path | None = None
) -> Cubin:
    """Compile a source as `compile_source` does, unless it is installed with the package or cached.

    `cache_dir` is the folder of the cache; by default that of the options in force.
    """
    folder = (current_options().cache_dir if cache_dir is None else cache_dir) / "cubins"
    if (installed := _installed(source, architecture, options, folder)) is not None:
        return installed
    key = _key(source, architecture, options)
    path = folder / f"{key}.cubin"
    cubin = _read_entry(path, key)
    if cubin is None:
        _begin_compiling()
        cubin = compile_source(source, architecture, options)
        with contextlib.suppress(OSError):  # a full or read-only disk costs time, not results
            _write_entry(path, cubin)
    return cubin


def _installed(source: str, architecture: str, options: tuple[str, ...], folder: Path) -> Cubin | None:
    """Look up a kernel of the package, of a compiler whose machine code the driver loads.

    A decompressed copy is kept in a folder, for later processes: reading it takes a tenth of the time.
    """
    if (driver := driver_major()) == 0:
        return None
    key = f"{prebuilt.identity(source, architecture, options)}-{driver}"
    path = folder / f"{key}.cubin"
    if (copy := _read_entry(path, key)) is not None:
        return copy
    found = prebuilt.find(source, architecture, options)
    if found is None or int(found.compiler.partition(".")[0]) > driver:
        return None
    used = from_fields(Resources, found.resources)
    if used is None:
        return None
    cubin = Cubin(key, found.image, used)
    with contextlib.suppress(OSError):
        _write_entry(path, cubin)
    return cubin


@functools.cache
def driver_major() -> int:
    """Read the CUDA version of the driver, 13 for ``13.0``; 0 without CuPy or a driver."""
    try:
        from cupy.cuda import runtime

        return int(runtime.driverGetVersion()) // 1000
    except (ImportError, RuntimeError):
        return 0


def _write_entry(path: Path, cubin: Cubin) -> None:
    payload = json.dumps(asdict(cubin.resources)).encode() + b"\n" + cubin.image
    replace_file(path, _MAGIC + _checksum(cubin.key, payload) + b"\n" + payload)


def _checksum(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + payload).hexdigest().encode()


def _read_entry(path: Path, key: str) -> Cubin | None:
    """Read an entry; None if there is none or it is damaged."""
    data = read_file(path) or b""
    checksum, _, payload = data.removeprefix(_MAGIC).partition(b"\n")
    if not data.startswith(_MAGIC) or _checksum(key, payload) != checksum:
        return None
    report, _, image = payload.partition(b"\n")
    try:
        resources = from_fields(Resources, json.loads(report))
    except (ValueError, RecursionError):
        return None
    return None if resources is None else Cubin(key, image, resources)


def load(cubin: Cubin, name: str, dynamic_shared_bytes: int = 0, carveout: int | None = None) -> Kernel:
    """Load machine code onto CuPy's current device.

    Parameters
    ----------
    cubin : Cubin
        Machine code for that device's architecture.
    name : str
        The kernel's name.
    dynamic_shared_bytes : int
        Dynamic shared memory per block.
    carveout : int, optional
        Percentage of the largest shared memory to configure. By default all of it, or the driver's choice
        without dynamic shared memory.

    Returns
    -------
    Kernel
        Called as ``kernel(grid, block, arguments, dynamic_shared_bytes)``.
    """
    from cupy.cuda import driver, function

    module = function.Module()
    module.load(cubin.image)
    loaded = module.get_function(name)
    if dynamic_shared_bytes:
        # Also below 48 KB, the limit for static and dynamic shared memory together without this attribute.
        driver.funcSetAttribute(loaded.ptr, _MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_bytes)
        # The driver's own choice can leave room for fewer blocks than planned.
        carveout = 100 if carveout is None else carveout
    if carveout is not None:
        driver.funcSetAttribute(loaded.ptr, _PREFERRED_SHARED_MEMORY_CARVEOUT, carveout)
    return Kernel(loaded)


_functions: dict[tuple[int, str, int, int | None], Kernel] = {}
_compiling: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def function(
    source: str, name: str, architecture: str, dynamic_shared_bytes: int = 0, carveout: int | None = None
) -> Kernel:
    """Build a source's kernel and `load` it on CuPy's current device, once per process.

    Threads that need the same kernel wait for the one that compiles it.
    """
    from cupy.cuda import runtime

    key = prebuilt.identity(source, architecture, OPTIONS)
    entry = (runtime.getDevice(), key, dynamic_shared_bytes, carveout)
    with _compiling[key]:
        kernel = _functions.get(entry)
        if kernel is None:
            cubin = build(source, architecture)
            kernel = _functions[entry] = load(cubin, name, dynamic_shared_bytes, carveout)
    return kernel
