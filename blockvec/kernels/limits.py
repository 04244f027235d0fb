"""Hardware constants of CUDA GPUs, checks of a block against a device, and formulas shared by models.

Sources: [guide] NVIDIA, "CUDA C++ Programming Guide", section "Compute Capabilities"; [H200] measured on an
NVIDIA H200. Constants fitted to one family's timings are in that family's model.
"""

from __future__ import annotations

from .device import DeviceInfo

WARP = 32  # threads [guide]
MAX_THREADS = 1024  # per block [guide]
MAX_REGISTERS = 255  # 32-bit, per thread [guide]
QUADRANTS = 4  # of a multiprocessor, each with its own scheduler, registers and tensor cores
RESERVED_SHARED_BYTES = 1024  # per block, taken by the driver [guide]
STATIC_SHARED_LIMIT = 48 << 10  # bytes per block without an opt-in [guide]
BANK_ROW_BYTES = 128  # that shared memory serves per cycle: 32 banks of 4 bytes [guide]
LINE_BYTES = 128  # of a cache line, and what L1 delivers per cycle

CLOCK_HZ = 1.755e9  # of the multiprocessors under load [H200]; the unit of the models' cycles
MMA_CYCLES = 16  # per m16n8k4 (1024 flops) of a quadrant's tensor pipe on Hopper; warp w is in quadrant w % 4
LAUNCH_S = 2.5e-6  # of an empty kernel in a stream, seconds [H200]


def architecture_of(device: DeviceInfo) -> int:
    """Read the number of an architecture: 90 for ``"sm_90"``, 0 where there is none."""
    return int("".join(filter(str.isdigit, device.architecture)) or 0)


def is_slow_in_double(device: DeviceInfo) -> bool:
    """Check for a GPU whose FP64 has a 64th of the rate of FP32 [guide]."""
    return architecture_of(device) in (86, 89, 120)


def ceil_div(value: int, unit: int) -> int:
    """Divide and round up."""
    return -(-value // unit)


def round_up(value: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-value // unit) * unit


def register_limit(threads: int, device: DeviceInfo) -> int:
    """Compute the register limit per thread with `threads` threads resident on a multiprocessor.

    Each quadrant allocates a quarter of the registers, per warp and in units of 8 per thread.
    """
    warps_per_quadrant = ceil_div(threads, QUADRANTS * WARP)
    per_quadrant = device.registers_per_multiprocessor // QUADRANTS
    return min(MAX_REGISTERS, per_quadrant // warps_per_quadrant // WARP // 8 * 8)


def excess(threads: int, blocks: int, registers: int, shared_bytes: int, device: DeviceInfo) -> str | None:
    """Refuse `blocks` resident blocks that need more threads, registers or shared memory than there is.

    Registers are those per thread, and shared memory is that of a block, dynamic and static.
    """
    if threads > MAX_THREADS or threads * blocks > device.threads_per_multiprocessor:
        return f"{blocks} blocks of {threads} threads on a multiprocessor"
    if registers > (limit := register_limit(threads * blocks, device)):
        return f"needs {registers} registers of {limit}"
    if shared_bytes > device.shared_bytes_per_block:
        return f"needs {shared_bytes} bytes of shared memory of {device.shared_bytes_per_block}"
    if blocks * (shared_bytes + RESERVED_SHARED_BYTES) > device.shared_bytes_per_multiprocessor:
        return f"{blocks} blocks of {shared_bytes} bytes of shared memory do not fit a multiprocessor"
    return None


def smooth_max(*times: float) -> float:
    """Compute the 8-norm of times: close to the largest, and longer where limits are close."""
    longest = max(*times, 1e-12)
    return float(longest * sum((time / longest) ** 8 for time in times) ** (1 / 8))
