"""Ways to drive a GPU to its ceilings: streams over memory, dense products, registers; one to hold it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...kernels.compile import function
from ...kernels.measure import CeilingProbe
from ...kernels.probes import (
    BulkProbe,
    CacheProbe,
    FmaProbe,
    Hold,
    MixProbe,
    StreamKind,
    StreamProbe,
    TensorProbe,
)
from ..base import DeviceArray as Array
from .cublas import square_product
from .device import Gpu
from .elementwise import copy, fill_random

__all__ = ["block_stream", "ceiling_probes", "stream_probes"]

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

# What a stream does, and how often it moves a buffer.
_STREAMS: tuple[tuple[StreamKind, int], ...] = (("read", 1), ("write", 1), ("scale", 2))
# Reads and writes of a mix, and the ceiling it tells of.
_MIXES = (
    *((4, 0, "read"), (1, 1, "copy"), (0, 1, "write")),
    *((64, 1, "mix"), (16, 1, "mix"), (8, 1, "mix"), (4, 1, "mix"), (2, 1, "mix")),
    *((1, 2, "mix"), (1, 4, "mix"), (1, 8, "mix"), (1, 16, "mix"), (1, 64, "mix")),
)


def block_stream(gpu: Gpu) -> None:
    """Keep CuPy's current stream busy while a burst of calls is queued, so that these follow without gaps."""
    kernel = Hold()
    gpu.launch(kernel, (1,), kernel.threads, HOLD_NS)


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
    fma, fma_blocks, never = FmaProbe(), 4 * gpu.info.multiprocessors, _uncached((1,), "float32")
    launch = functools.partial(gpu.launch, fma, (fma_blocks,), fma.threads, never, np.int32(FMA_REPEATS))
    probes.append(CeilingProbe("float32", launch, fma.flops(fma_blocks, FMA_REPEATS)))
    if _architecture(gpu) >= FIRST_TENSOR_ARCHITECTURE:
        tensor, blocks, sink = TensorProbe(), 2 * gpu.info.multiprocessors, _uncached((1,), "float64")
        launch = functools.partial(
            gpu.launch, tensor, (blocks,), tensor.threads, sink, np.int32(TENSOR_REPEATS)
        )
        probes.append(CeilingProbe("float64", launch, tensor.flops(blocks, TENSOR_REPEATS)))
    return [dataclasses.replace(probe, call=gpu.on_device(probe.call)) for probe in probes]


def stream_probes(gpu: Gpu) -> Sequence[tuple[dict[str, Any], CeilingProbe]]:
    """Return streams with 1, 4 and 16 accesses of 16 bytes in flight a thread, from one block to all warps.

    Each comes with its ``operation``, ``unroll`` and ``warps`` of a multiprocessor, 0 for a block of 4.
    """
    n_bytes = STREAM_BYTES
    source, target = (_uncached((n_bytes // 16, 2), "float64") for _ in range(2))
    fill_random(gpu, source, 0, 0)
    threads = 128
    most = gpu.info.threads_per_multiprocessor // threads
    probes = []
    for kind, passes in _STREAMS:
        for unroll in (1, 4, 16):
            for blocks in (0, *(1 << i for i in range(most.bit_length()))):
                kernel = StreamProbe(kind, unroll, threads)
                units = n_bytes // 16 if blocks else n_bytes // 16 // gpu.info.multiprocessors
                grid = (max(1, blocks * gpu.info.multiprocessors),)
                launch = functools.partial(gpu.launch, kernel, grid, threads, source, units, target)
                probe = CeilingProbe(kind, gpu.on_device(launch), passes * units * 16)
                probes.append(({"operation": kind, "unroll": unroll, "warps": 4 * blocks}, probe))
    return probes


def _stream_probes(gpu: Gpu, n_bytes: int) -> list[CeilingProbe]:
    source, target = (_uncached((n_bytes // 16, 2), "float64") for _ in range(2))
    fill_random(gpu, source, 0, 0)
    probes = [
        CeilingProbe("copy", functools.partial(copy, gpu, source, target), 2 * n_bytes),
        CeilingProbe("copy", _memory_copy(source, target), 2 * n_bytes),
        CeilingProbe("write", _memory_set(target), n_bytes),
    ]
    for unroll in (4, 8):
        for blocks in (2, 4, 8):
            kernel = StreamProbe("read", unroll)
            grid = (blocks * gpu.info.multiprocessors,)
            launch = functools.partial(
                gpu.launch, kernel, grid, kernel.threads, source, n_bytes // 16, target
            )
            probes.append(CeilingProbe("read", launch, n_bytes))
    for reads, writes, ceiling in _MIXES:
        for stream, moved in _mixes(gpu, reads, writes, source, target):
            probes.append(CeilingProbe(ceiling, stream, moved, writes / (reads + writes)))
    return probes


def _mixes(
    gpu: Gpu, reads: int, writes: int, source: Array, target: Array
) -> Iterator[tuple[Callable[[], Any], int]]:
    """Yield ways to stream a mix of reads and writes, and the bytes they move."""
    wider, both = max(reads, writes), reads + writes
    plain = MixProbe(reads, writes)
    vectors = 16 * plain.threads
    blocks = source.nbytes // (vectors * wider)
    launch = functools.partial(gpu.launch, plain, (blocks,), plain.threads, source, target)
    yield launch, blocks * vectors * both
    if _architecture(gpu) < FIRST_BULK_ARCHITECTURE or not reads:
        return
    for n_bytes in BULK_BYTES:
        bulk = BulkProbe(n_bytes // wider * reads, n_bytes // wider * writes)
        blocks = source.nbytes // n_bytes
        kernel = function(bulk.source(), bulk.name, gpu.info.architecture, bulk.shared_bytes)
        arguments = (source, target, np.uint32(bulk.read_bytes), np.uint32(bulk.write_bytes))
        grid, block = (blocks,), (bulk.threads,)
        launch = functools.partial(kernel, grid, block, arguments, shared_mem=bulk.shared_bytes)
        yield launch, blocks * (bulk.read_bytes + bulk.write_bytes)


def _cache_probes(gpu: Gpu) -> list[CeilingProbe]:
    buffer = _uncached((gpu.info.l2_bytes // CACHE_PARTS[-1] // 16, 2), "float64")
    fill_random(gpu, buffer, 0, 0)
    probes = []
    for part in CACHE_PARTS:
        units = gpu.info.l2_bytes // part // 16
        passes = max(1, CACHE_READ_BYTES // (16 * units))
        for unroll in (4, 8):
            for resident in (2, 4):
                kernel, blocks = CacheProbe(unroll), resident * gpu.info.multiprocessors
                arguments = (buffer, units, np.int32(passes), buffer)
                launch = functools.partial(gpu.launch, kernel, (blocks,), kernel.threads, *arguments)
                probes.append(CeilingProbe("l2", launch, kernel.bytes_read(units, blocks, passes)))
    return probes


def _architecture(gpu: Gpu) -> int:
    return int(gpu.info.architecture.removeprefix("sm_"))


def _uncached(shape: tuple[int, ...], dtype: str) -> Array:
    """Return memory that goes back to the device with the array, past CuPy's pool."""
    import cupy

    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(n_bytes), 0)
    return cupy.ndarray(shape, dtype, memptr=memory)


def _memory_copy(source: Array, target: Array) -> Callable[[], Any]:
    def call() -> None:
        target.data.copy_from_device_async(source.data, source.nbytes)

    return call


def _memory_set(target: Array) -> Callable[[], Any]:
    def call() -> None:
        target.data.memset_async(0, target.nbytes)

    return call
