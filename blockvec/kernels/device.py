"""Fixed properties of a device, and the fingerprint under which its measurements are stored."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ..system.frozen import frozen


@frozen
class DeviceInfo:
    """Fixed properties of a processor or a GPU."""

    kind: Literal["cpu", "cuda"]
    name: str  # the vendor's name of the device
    multiprocessors: int  # SMs of a GPU, cores of a CPU that this process may use
    architecture: str  # ``"sm_90"`` and the like on a GPU, the machine type on a CPU
    driver: str = ""  # driver version of a GPU, the operating system's release on a CPU
    l2_bytes: int = 0  # last-level cache of a GPU, L2 of one core on a CPU; 0 where unknown
    # Most shared memory of a block, and that of an SM; 0 on a CPU.
    shared_bytes_per_block: int = 0
    shared_bytes_per_multiprocessor: int = 0
    registers_per_multiprocessor: int = 0  # 32-bit registers of an SM; 0 on a CPU
    threads_per_multiprocessor: int = 0  # resident threads of an SM; 0 on a CPU

    @property
    def fingerprint(self) -> str:
        """Short stable key of this device and its driver."""
        text = repr(sorted(asdict(self).items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def host_device(cores: int) -> DeviceInfo:
    """Describe this machine's processor, used with `cores` cores."""
    name, l2_bytes = platform.processor() or platform.machine(), 0
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        name = next(names, name)
    with contextlib.suppress(AttributeError, ValueError, OSError):
        l2_bytes = max(os.sysconf("SC_LEVEL2_CACHE_SIZE"), 0)
    return DeviceInfo("cpu", name, cores, platform.machine(), platform.release(), l2_bytes)


def cuda_device(properties: dict[str, Any], driver: str) -> DeviceInfo:
    """Describe a GPU from the property record of CUDA's runtime (`cudaGetDeviceProperties`)."""
    name = properties["name"]
    return DeviceInfo(
        kind="cuda",
        name=name.decode() if isinstance(name, bytes) else str(name),
        multiprocessors=int(properties["multiProcessorCount"]),
        architecture=f"sm_{properties['major']}{properties['minor']}",
        driver=driver,
        l2_bytes=int(properties["l2CacheSize"]),
        shared_bytes_per_block=int(properties["sharedMemPerBlockOptin"]),
        shared_bytes_per_multiprocessor=int(properties["sharedMemPerMultiprocessor"]),
        registers_per_multiprocessor=int(properties["regsPerMultiprocessor"]),
        threads_per_multiprocessor=int(properties["maxThreadsPerMultiProcessor"]),
    )
