"""Probe kernels do all the work that is counted: run on the host, thread by thread."""

from __future__ import annotations

import numpy as np
import pytest

from blockvec.backends.cuda.probes import bulk_probe, mix_probe, read_probe
from tests.blocks import address
from tests.emulator.host import HostKernel, needs_host_compiler


@needs_host_compiler
@pytest.mark.parametrize("unroll", [1, 4])
def test_a_stream_reads_every_byte_of_its_buffer_once_and_no_other(unroll: int) -> None:
    text = read_probe(unroll, threads=32).source().replace("1.2345678", "7.0")
    for units in (0, 1, 63, 64, 500, 513):
        for unit in range(0, units, 61):  # whose number alone makes the sum of its thread
            source, target = np.zeros(2 * units), np.zeros(1)
            source[2 * unit + unit % 2] = 7.0
            kernel = HostKernel(text, [source], [target])
            kernel((2,), (32,), (address(source), units, address(target)))
            assert target[0] == 7.0


@needs_host_compiler
@pytest.mark.parametrize(("reads", "writes"), [(3, 2), (1, 4), (2, 0), (0, 1)])
def test_a_mix_reads_and_writes_every_vector_once(reads: int, writes: int) -> None:
    probe, blocks = mix_probe(reads, writes), 3
    threads = blocks * probe.threads
    source = np.random.default_rng(1).integers(0, 2**32, (blocks, reads, probe.threads, 4), np.uint32)
    target = np.zeros((blocks, max(writes, 1), probe.threads, 4), np.uint32)
    kernel = HostKernel(probe.source(), [source], [target])
    kernel((blocks,), (probe.threads,), (address(source), address(target)))
    words = np.outer(np.arange(threads), [0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F]).astype(np.uint32)
    expected = words.reshape(blocks, 1, probe.threads, 4) ^ np.bitwise_xor.reduce(source, axis=1)[:, None]
    expected = np.repeat(expected, max(writes, 1), axis=1)
    expected[..., 0] ^= np.arange(max(writes, 1), dtype=np.uint32)[None, :, None]
    assert np.array_equal(target, expected if writes else np.zeros_like(target))


@needs_host_compiler
def test_bulk_copies_of_a_mix_read_and_write_what_they_say() -> None:
    for read, write in ((64, 64), (256, 32), (16, 128), (48, 0)):
        blocks = 5
        source = np.random.default_rng(read).integers(0, 256, (blocks, read), np.uint8)
        target = np.zeros((blocks, write + 1), np.uint8)
        probe = bulk_probe(max(read, write))
        kernel = HostKernel(probe.source(), [source], [target.ravel()[: blocks * write]])
        arguments = address(source), address(target), np.uint32(read), np.uint32(write)
        kernel((blocks,), (probe.threads,), arguments, probe.shared_bytes)
        written, copied = target.ravel()[: blocks * write].reshape(blocks, write), min(read, write)
        assert np.array_equal(written[:, :copied], source[:, :copied])
