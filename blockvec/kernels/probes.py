"""Probe kernels (``cuda/probes``): rates of memory, L2, multiply-adds and FP64 tensor cores; a delay."""

from __future__ import annotations

from .source import Kernel, kernel


def _probe(name: str, threads: int, **constants: int) -> Kernel:
    return kernel(f"probes/{name}", constants, threads=threads)


def read_probe(unroll: int, threads: int = 512) -> Kernel:
    """Read memory by 16-byte accesses, `unroll` in flight per thread."""
    return _probe("read_probe", threads, THREADS=threads, UNROLL=unroll)


def mix_probe(reads: int, writes: int) -> Kernel:
    """Read and write so many vectors of 16 bytes per thread, block after block."""
    return _probe("mix_probe", 256, READS=reads, WRITES=writes, THREADS=256)


def bulk_probe(shared_bytes: int) -> Kernel:
    """Read and write as many bytes per block as it is told, by bulk copies through shared memory."""
    return kernel("probes/bulk_probe", {}, threads=32, shared_bytes=shared_bytes)


def cache_probe(unroll: int) -> Kernel:
    """Read data from the second-level cache, bypassing the first-level caches."""
    return _probe("cache_probe", 512, THREADS=512, UNROLL=unroll)


FMA, FMA_FLOPS = _probe("fma_probe", 512, THREADS=512, ACCUMULATORS=16), 16 * 2.0 * 512
"""Multiplies and adds registers in single precision, and its operations per block and repeat."""
TENSOR, TENSOR_FLOPS = _probe("tensor_probe", 512, THREADS=512, ACCUMULATORS=8), 8 * 2.0 * 16 * 8 * 4 * 16
"""The same on the FP64 tensor cores (sm_80 and later): 16 x 8 x 4 multiply-adds per warp."""
HOLD = kernel("probes/block_stream", {}, name="hold", threads=1)
"""Keeps a stream busy for a time."""
