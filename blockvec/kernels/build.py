"""Kernels from their sources: those of this process, the cache on disk, an installed package, NVRTC.

NVRTC is called directly, because CuPy's ``RawModule`` flushes float32 denormals to zero and hides the
compiler's report. It needs neither a GPU nor CUDA's headers.

A kernel has one key everywhere, a hash of all that its machine code depends on. On disk it is one record
(`records`), which is named by its key. The package ``blockvec_kernels`` (``make kernels``) contains such
records.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import importlib.util
import json
import re
import threading
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import CompileError
from ..system.config import options as current_options
from ..system.frozen import frozen
from ..system.installation import install_command
from .launch import LoadedKernel
from .records import load as load_record
from .records import store, unpacked
from .source import Kernel

# Functions without an execution space are device functions; denormals are kept. ptxas reports registers and
# spills into the program log.
OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ftz=false", "--ptxas-options=-v")

# CUfunction_attribute values of the driver API
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_PREFERRED_SHARED_MEMORY_CARVEOUT = 9


@frozen
class Cubin:
    """Machine code of a kernel for one architecture, by a version of NVRTC; `key` identifies it."""

    key: str
    image: bytes
    compiler: str
    log: str = ""  # report of the compiler: registers, spills and shared memory

    def record(self) -> tuple[dict[str, Any], bytes]:
        """Return its fields and its payload as a record."""
        return {"compiler": self.compiler, "log": self.log}, self.image


def compiler_version() -> str:
    """Read NVRTC's version, as ``"13.0"``; empty if it is not installed."""
    try:
        return _nvrtc()[1]
    except CompileError:
        return ""


def _remedy() -> str:
    return f"install one with {install_command('cuda13')} (cuda12 for a CUDA 12 driver)"


@functools.cache
def _nvrtc() -> tuple[Any, str]:
    """Load NVRTC, and read its version; a `CompileError` is raised if it or its bindings are missing."""
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
    return nvrtc, f"{major}.{minor}"


def compile_source(source: str, architecture: str) -> Cubin:
    """Compile CUDA C++ with one ``extern "C"`` kernel and no headers for an architecture, without the cache.

    Raises
    ------
    CompileError
        With the compiler's log if it rejects the source, or with the remedy if there is no compiler.
    """
    nvrtc, version = _nvrtc()

    def call(function_name: str, *arguments: Any) -> Any:
        status, *results = getattr(nvrtc, function_name)(*arguments)
        if int(status) != 0:
            text = nvrtc.nvrtcGetErrorString(status)[1].decode()
            raise CompileError(f"{function_name}: {text} for {architecture}, options {' '.join(OPTIONS)}.")
        return results[0] if results else None

    program = call("nvrtcCreateProgram", source.encode(), b"kernel.cu", 0, [], [])
    try:
        flags = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        # Filled in place through their addresses, as cuda.bindings does for output buffers.
        text = bytes(call("nvrtcGetProgramLogSize", program))
        call("nvrtcGetProgramLog", program, text)
        log = text.rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            why = nvrtc.nvrtcGetErrorString(status)[1].decode()
            raise CompileError(f"NVRTC refused a kernel for {architecture} ({why}):\n{log}")
        image = bytes(call("nvrtcGetCUBINSize", program))
        call("nvrtcGetCUBIN", program, image)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    report = re.sub(r".*Compile time.*\n?", "", log)  # so that records repeat
    return Cubin(key_of(source, architecture, version), image, version, report)


def key_of(source: str, architecture: str, compiler: str) -> str:
    """Hash all that machine code depends on: the code of a source without comments, options, the compiler."""
    constants, line, body = source.partition("#line ")
    text = "\0".join((compiler, architecture, *OPTIONS, constants, _code(line + body)))
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=64)  # of some thirty bodies
def _code(body: str) -> str:
    """Leave out comments, numbers of lines, and empty lines."""
    lines = (re.sub(r"//.*", "", line).strip() for line in body.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#line "))


_on_first_miss: contextvars.ContextVar[Callable[[], object] | None] = contextvars.ContextVar(
    "blockvec_on_first_miss", default=None
)


@contextlib.contextmanager
def on_first_miss(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` once inside the ``with`` block: before the first kernel that is compiled or waited for.

    An action of a block around this one is called after it.
    """
    once, around = functools.cache(action), _on_first_miss.get()
    token = _on_first_miss.set(once if around is None else lambda: (once(), around()))
    try:
        yield
    finally:
        _on_first_miss.reset(token)


def _begin_compiling() -> None:
    if (action := _on_first_miss.get()) is not None:
        _on_first_miss.set(None)  # first: threads of the action compile in copies of this context
        action()


def machine_code(source: str, architecture: str, *, cache_dir: Path | None = None) -> Cubin:
    """Find or compile a source: in the cache on disk, in the installed package, by NVRTC.

    `cache_dir` is the folder of the cache; by default that of the options in force.
    """
    folder = (current_options().cache_dir if cache_dir is None else cache_dir) / "kernels"
    version = compiler_version()  # without one only kernels of the package can run
    key = key_of(source, architecture, version)
    path = folder / key
    cubin = _cubin(load_record(path, key), key) if version else None
    if cubin is None and (package := kernel_package()) is not None:
        cubin = package.find(source, architecture)
    if cubin is None:
        _begin_compiling()
        cubin = compile_source(source, architecture)
        store(path, key, *cubin.record())  # a full or read-only disk costs time, not results
    return cubin


def _cubin(record: tuple[dict[str, Any], bytes] | None, key: str) -> Cubin | None:
    fields, image = record or ({}, b"")
    return Cubin(key, image, fields["compiler"], fields.get("log", "")) if "compiler" in fields else None


PACKAGE = "blockvec_kernels"
PACKAGE_FORMAT = 1  # of its files; raise it if they change


@frozen
class KernelPackage:
    """An installed package of compiled kernels: a zip archive of records per architecture, by their keys."""

    folder: Path
    version: str  # the version of blockvec that it was made for
    compiler: str  # NVRTC's version

    def find(self, source: str, architecture: str) -> Cubin | None:
        """Look up a kernel; None if it is not there, or the driver is older than the compiler."""
        archive = _archive(self.folder / f"{architecture}.zip")
        key = key_of(source, architecture, self.compiler)
        if archive is None or int(self.compiler.partition(".")[0]) > driver_major():
            return None
        try:
            return _cubin(unpacked(archive.read(key), key), key)
        except (KeyError, zipfile.BadZipFile):
            return None


@functools.cache
def kernel_package() -> KernelPackage | None:
    """Find the installed package of kernels, without importing it; None if there is none of this format."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        try:
            about = json.loads((Path(folder) / "about.json").read_text(encoding="utf-8"))
            if about["format"] == PACKAGE_FORMAT:
                return KernelPackage(Path(folder), str(about["blockvec"]), str(about["compiler"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


@functools.cache
def _archive(path: Path) -> zipfile.ZipFile | None:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile):
        return None


def compiler_of(source: str, architecture: str) -> str:
    """Say which compiler's machine code a source has or will have, for `explain`; nothing is compiled."""
    package = kernel_package()
    found = package and package.find(source, architecture)
    return f"NVRTC {found.compiler}, of the package of kernels" if found else f"NVRTC {compiler_version()}"


@functools.cache
def driver_major() -> int:
    """Read the CUDA version of the driver, 13 for ``13.0``; 0 without CuPy or a driver."""
    try:
        from cupy.cuda import runtime

        return int(runtime.driverGetVersion()) // 1000
    except (ImportError, RuntimeError):
        return 0


def load(cubin: Cubin, kernel: Kernel) -> LoadedKernel:
    """Load a kernel onto CuPy's current device, which has the architecture of the machine code.

    Without a carveout all of shared memory is configured, or the driver's choice where it is not dynamic.
    """
    from cupy.cuda import driver, function

    module = function.Module()
    module.load(cubin.image)
    loaded, carveout = module.get_function(kernel.name), kernel.carveout
    if kernel.shared_bytes:
        # Also below 48 KB, the limit for static and dynamic shared memory together without this attribute.
        driver.funcSetAttribute(loaded.ptr, _MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes)
        # The driver's own choice can leave room for fewer blocks than planned.
        carveout = 100 if carveout is None else carveout
    if carveout is not None:
        driver.funcSetAttribute(loaded.ptr, _PREFERRED_SHARED_MEMORY_CARVEOUT, carveout)
    return LoadedKernel(loaded)


_loaded: dict[tuple[int, Kernel], LoadedKernel] = {}
_building: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def build(kernel: Kernel, architecture: str) -> LoadedKernel:
    """Build a kernel and `load` it on CuPy's current device, once per process.

    Threads that need the same source wait for the one that compiles it.
    """
    from cupy.cuda import runtime

    entry = runtime.getDevice(), kernel
    if (loaded := _loaded.get(entry)) is not None:
        return loaded
    source = kernel.source()
    key = key_of(source, architecture, "")
    if _building[key].locked():  # time for others
        _begin_compiling()
    with _building[key]:
        if entry not in _loaded:
            _loaded[entry] = load(machine_code(source, architecture), kernel)
    return _loaded[entry]
