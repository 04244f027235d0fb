"""Probe kernels (``cuda/probes``): rates of memory, L2, multiply-adds and FP64 tensor cores; a delay."""

from __future__ import annotations

from ..system.frozen import frozen
from .source import render


@frozen
class Probe:
    """A kernel without choices."""

    name: str  # name of the function
    file: str  # file with its body, in ``cuda/probes``
    threads: int  # per block
    constants: tuple[tuple[str, int], ...] = ()
    flops: float = 0.0  # operations per block and repeat, of a probe of arithmetic

    def source(self) -> str:
        return render(self.name, f"probes/{self.file}.cu", dict(self.constants))


def read_probe(unroll: int, threads: int = 512) -> Probe:
    """Read memory by 16-byte accesses, `unroll` in flight per thread."""
    return Probe(f"read_probe_{unroll}", "read_probe", threads, (("THREADS", threads), ("UNROLL", unroll)))


def mix_probe(reads: int, writes: int, threads: int = 256) -> Probe:
    """Read and write so many vectors of 16 bytes per thread, block after block."""
    constants = (("READS", reads), ("WRITES", writes), ("THREADS", threads))
    return Probe(f"mix_probe_{reads}_{writes}", "mix_probe", threads, constants)


def cache_probe(unroll: int, threads: int = 512) -> Probe:
    """Read data from the second-level cache, bypassing the first-level caches."""
    return Probe(f"cache_probe_{unroll}", "cache_probe", threads, (("THREADS", threads), ("UNROLL", unroll)))


def _arithmetic(name: str, accumulators: int, flops: float, threads: int = 512) -> Probe:
    constants = (("THREADS", threads), ("ACCUMULATORS", accumulators))
    return Probe(name, name, threads, constants, accumulators * flops)


FMA = _arithmetic("fma_probe", 16, 2.0 * 512)
"""Multiplies and adds registers in single precision."""
TENSOR = _arithmetic("tensor_probe", 8, 2.0 * 16 * 8 * 4 * (512 // 32))
"""Multiplies registers on the FP64 tensor cores (sm_80 and later): 16 x 8 x 4 multiply-adds per warp."""
BULK = Probe("bulk_probe", "bulk_probe", 32)
"""Reads and writes as many bytes per block as it is told, by bulk copies."""
HOLD = Probe("hold", "block_stream", 1)
"""Keeps a stream busy for a time."""
