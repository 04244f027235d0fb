"""Text of ``blockvec info``: devices with measured ceilings, libraries, options."""

from __future__ import annotations

import importlib.metadata
import platform
import warnings
from collections.abc import Callable, Iterator

import threadpoolctl

from .. import __version__
from ..backends import Backend, backend_for
from ..backends.host import llvm
from ..kernels.build import compiler_version, kernel_package
from ..operations.profile import ceilings
from ..system.config import options

OLD_FOLDERS = ("cubins", "choices", "tuned", "precompiled", "measured")  # parts of older caches


def _cupy() -> tuple[str, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns on import if it finds no CUDA
        try:
            import cupy
        except ImportError:
            return "not installed", 0
        if not cupy.cuda.is_available():
            return f"{cupy.__version__}, finds no GPU", 0
        return str(cupy.__version__), cupy.cuda.runtime.getDeviceCount()


def gpus() -> list[Backend]:
    """Create the backends of all GPUs that CuPy can use."""
    return [backend_for(f"cuda:{index}") for index in range(_cupy()[1])]


def describe(*, measure: bool = False, notice: Callable[[str], None] = lambda text: None) -> Iterator[str]:
    """Yield the lines of the description; a device's lines follow as soon as its ceilings are known.

    Ceilings are measured again on request; before each device, `notice` is called with its name.
    """
    yield f"blockvec  {__version__}"
    yield f"python    {platform.python_version()}"
    for package in ("numpy", "scipy"):
        yield f"{package:9} {importlib.metadata.version(package)}"
    for library in _blas_libraries():
        yield f"blas      {library}"
    found = gpus()
    yield f"cupy      {_cupy()[0]}"
    if found:
        yield f"cuda      {cuda_runtime(found[0])}, driver {found[0].device.driver}"
    yield f"nvrtc     {compiler_version() or 'not installed'}"
    yield f"kernels   {_kernels()}"
    yield f"llvm      {llvm.missing() or llvm.describe()}"
    current = options()
    yield f"options   threads={current.threads} jit={current.jit}"
    yield f"cache     {current.cache_dir}"
    if old := [name for name in OLD_FOLDERS if (current.cache_dir / name).exists()]:
        yield f"          of earlier versions and no longer read, to be deleted: {', '.join(old)}"
    for backend in (backend_for("cpu"), *found):
        yield from _device_lines(backend, measure, notice)


def _device_lines(backend: Backend, measure: bool, notice: Callable[[str], None]) -> Iterator[str]:
    device = backend.device
    units = "cores" if device.kind == "cpu" else "multiprocessors"
    cache = f", L2 {device.l2_bytes / 2**20:.0f} MiB" if device.l2_bytes else ""
    yield ""
    yield f"{backend.name}: {device.name}, {device.multiprocessors} {units}, {device.architecture}{cache}"
    notice(f"measuring the ceilings of {backend.name}")
    limits = ceilings(backend, refresh=measure)
    streams = {"read": limits.read_gb_s, "write": limits.write_gb_s, "copy": limits.copy_gb_s}
    yield f"  memory      {', '.join(f'{name} {rate:.1f}' for name, rate in streams.items())} GB/s"
    rates = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in sorted(limits.gflop_s.items()))
    yield f"  arithmetic  {rates} Gflop/s"


def cuda_runtime(backend: Backend) -> str:
    """Determine the version of the CUDA runtime."""
    version = int(backend.xp.cuda.runtime.runtimeGetVersion())
    return f"{version // 1000}.{version % 1000 // 10}"


def _kernels() -> str:
    package = kernel_package()
    if package is None:
        return "compiled when they are needed; the package of kernels is not installed"
    if package.version != __version__:
        return f"of the package for blockvec {package.version}, few of which serve {__version__}"
    return f"of the package for blockvec {package.version}, compiled by NVRTC {package.compiler}"


def _blas_libraries() -> list[str]:
    names = []
    for library in threadpoolctl.threadpool_info():
        if library["user_api"] != "blas":
            continue
        kind = f" for {library['architecture']}" if library.get("architecture") else ""
        names.append(
            f"{library['internal_api']} {library['version'] or ''}{kind}, {library['num_threads']} threads"
        )
    return list(dict.fromkeys(names))
