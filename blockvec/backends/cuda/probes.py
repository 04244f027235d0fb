"""Calls that reach the ceilings of a GPU: memory streams, dense products, registers; one blocks a stream."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...kernels.limits import architecture_of
from ...kernels.measure import CeilingProbe
from ...kernels.source import Kernel, kernel
from ..base import DeviceArray as Array
from .cublas import square_product
from .device import Gpu
from .elementwise import copy, fill_random

STREAM_BYTES = 2 << 30  # of a buffer, as of the wider operand of a timed product: far beyond any L2 cache
MATRIX_SIZES = (4096, 8192)
TENSOR_REPEATS = 4096
FMA_REPEATS = 1 << 15
CACHE_PARTS = (8, 4, 2)  # of L2 that a buffer fills
CACHE_READ_BYTES = 2 << 30  # of a launch
HOLD_NS = 1_500_000  # a burst of short calls is queued meanwhile, also by a slow host
FIRST_TENSOR_ARCHITECTURE = 80  # compute capability 8.0 brought FP64 tensor products
FIRST_BULK_ARCHITECTURE = 90  # and 9.0 bulk copies
BULK_BYTES = (4096, 8192, 16384, 32768)  # of the wider side of a thread block's bulk copies

# Reads and writes of a mix, and the ceiling it tells of.
_MIXES = (
    *((4, 0, "read"), (1, 1, "copy"), (0, 1, "write")),
    *((64, 1, "mix"), (16, 1, "mix"), (8, 1, "mix"), (4, 1, "mix"), (2, 1, "mix")),
    *((1, 2, "mix"), (1, 4, "mix"), (1, 8, "mix"), (1, 16, "mix"), (1, 64, "mix")),
)


def _probe(name: str, threads: int = 512, **constants: int) -> Kernel:
    return kernel(f"probes/{name}", {"THREADS": threads, **constants}, threads=threads)


def read_probe(unroll: int, threads: int = 512) -> Kernel:
    """Read memory by 16-byte accesses, `unroll` in flight per thread."""
    return _probe("read_probe", threads, UNROLL=unroll)


def mix_probe(reads: int, writes: int) -> Kernel:
    """Read and write so many vectors of 16 bytes per thread, block after block."""
    return _probe("mix_probe", 256, READS=reads, WRITES=writes)


def bulk_probe(shared_bytes: int) -> Kernel:
    """Read and write as many bytes per block as it is told, by bulk copies through shared memory."""
    return kernel("probes/bulk_probe", {}, threads=32, shared_bytes=shared_bytes)


def cache_probe(unroll: int) -> Kernel:
    """Read data from the second-level cache, bypassing the first-level caches."""
    return _probe("cache_probe", UNROLL=unroll)


FMA, FMA_FLOPS = _probe("fma_probe", ACCUMULATORS=16), 16 * 2.0 * 512
"""Multiplies and adds registers in single precision, and its operations per block and repeat."""
TENSOR, TENSOR_FLOPS = _probe("tensor_probe", ACCUMULATORS=8), 8 * 2.0 * 16 * 8 * 4 * 16
"""The same on the FP64 tensor cores (sm_80 and later): 16 x 8 x 4 multiply-adds per warp."""
HOLD = kernel("probes/block_stream", {}, name="hold", threads=1)
"""Keeps a stream busy for a time."""


def block_stream(gpu: Gpu) -> None:
    """Keep CuPy's current stream busy while a burst of calls is queued, so that these follow without gaps."""
    gpu.launch(HOLD, (1,), HOLD_NS)


def ceiling_probes(gpu: Gpu) -> Sequence[CeilingProbe]:
    """Return the probes; they hold about 6 GB of memory until they are dropped, less on small devices."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()  # the probes' memory is not taken from it
    free_bytes = cupy.cuda.runtime.memGetInfo()[0]
    probes = _stream_probes(gpu, min(STREAM_BYTES, free_bytes // 4 // 4096 * 4096))
    probes += _cache_probes(gpu)
    for dtype in ("float64", "float32"):
        for size in MATRIX_SIZES:
            if 16 * 8 * size**2 > free_bytes:
                continue
            factors = [_uncached((size, size), dtype) for _ in range(3)]
            for key, factor in enumerate(factors):
                fill_random(gpu, factor, key, 0)
            probes.append(CeilingProbe(dtype, functools.partial(square_product, *factors), 2.0 * size**3))
    arithmetic = [("float32", FMA, FMA_FLOPS, 4, FMA_REPEATS)]
    if architecture_of(gpu.info) >= FIRST_TENSOR_ARCHITECTURE:
        arithmetic.append(("float64", TENSOR, TENSOR_FLOPS, 2, TENSOR_REPEATS))
    for dtype, probe, flops, resident, repeats in arithmetic:
        blocks, never = resident * gpu.info.multiprocessors, _uncached((1,), dtype)
        launch = _launch(gpu, probe, blocks, never, np.int32(repeats))
        probes.append(CeilingProbe(dtype, launch, flops * blocks * repeats))
    return [dataclasses.replace(each, call=gpu.on_device(each.call)) for each in probes]


def _launch(gpu: Gpu, kernel: Kernel, blocks: int, *arguments: Any) -> Callable[[], None]:
    return functools.partial(gpu.launch, kernel, (blocks,), *arguments)


def _stream_probes(gpu: Gpu, n_bytes: int) -> list[CeilingProbe]:
    source, target = (_uncached((n_bytes // 16, 2), "float64") for _ in range(2))
    fill_random(gpu, source, 0, 0)
    probes = [
        CeilingProbe("copy", functools.partial(copy, gpu, source, target), 2 * n_bytes),
        CeilingProbe("copy", lambda: target.data.copy_from_device_async(source.data, n_bytes), 2 * n_bytes),
        CeilingProbe("write", lambda: target.data.memset_async(0, n_bytes), n_bytes),
    ]
    for unroll, resident in itertools.product((4, 8), (2, 4, 8)):
        arguments = resident * gpu.info.multiprocessors, source, n_bytes // 16, target
        probes.append(CeilingProbe("read", _launch(gpu, read_probe(unroll), *arguments), n_bytes))
    for reads, writes, ceiling in _MIXES:
        for stream, moved in _mixes(gpu, reads, writes, source, target):
            probes.append(CeilingProbe(ceiling, stream, moved, writes / (reads + writes)))
    return probes


def _mixes(
    gpu: Gpu, reads: int, writes: int, source: Array, target: Array
) -> Iterator[tuple[Callable[[], Any], int]]:
    """Yield streams with a mix of reads and writes, and the bytes that they move."""
    wider, both = max(reads, writes), reads + writes
    plain = mix_probe(reads, writes)
    vectors = 16 * plain.threads
    blocks = source.nbytes // (vectors * wider)
    yield _launch(gpu, plain, blocks, source, target), blocks * vectors * both
    if architecture_of(gpu.info) < FIRST_BULK_ARCHITECTURE or not reads:
        return
    for n_bytes in BULK_BYTES:
        read_bytes, write_bytes = n_bytes // wider * reads, n_bytes // wider * writes
        blocks, shared = source.nbytes // n_bytes, max(read_bytes, write_bytes)
        arguments = source, target, np.uint32(read_bytes), np.uint32(write_bytes)
        yield _launch(gpu, bulk_probe(shared), blocks, *arguments), blocks * (read_bytes + write_bytes)


def _cache_probes(gpu: Gpu) -> list[CeilingProbe]:
    buffer = _uncached((gpu.info.l2_bytes // CACHE_PARTS[-1] // 16, 2), "float64")
    fill_random(gpu, buffer, 0, 0)
    probes = []
    for part in CACHE_PARTS:
        units = gpu.info.l2_bytes // part // 16
        passes = max(1, CACHE_READ_BYTES // (16 * units))
        for unroll, resident in itertools.product((4, 8), (2, 4)):
            probe, blocks = cache_probe(unroll), resident * gpu.info.multiprocessors
            launch = _launch(gpu, probe, blocks, buffer, units, np.int32(passes), buffer)
            stride = unroll * blocks * probe.threads  # units; whole strides are read
            probes.append(CeilingProbe("l2", launch, units // stride * stride * 16 * passes))
    return probes


def _uncached(shape: tuple[int, ...], dtype: str) -> Array:
    """Allocate memory outside CuPy's pool, which is freed together with the array."""
    import cupy

    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(n_bytes), 0)
    return cupy.ndarray(shape, dtype, memptr=memory)
