"""Probe kernels do all the work that is counted: run on the host, thread by thread."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from blockvec.kernels.probes import BulkProbe, MixProbe, StreamProbe, ViewProbe
from tests.emulator import host as emulator
from tests.emulator.pieces import build

_RUN = """
extern "C" int run(u32 blocks, int threads, const void* source, i64 units, void* target) {
    emulator::readable = {{static_cast<const char*>(source), static_cast<const char*>(source) + 16 * units}};
    return emulator::launch(blocks, threads, 16, 1, [=] {
        KERNEL(static_cast<const Unit*>(source), units, static_cast<Unit*>(target));
    });
}
"""


@pytest.mark.skipif(emulator.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("unroll", [1, 4])
def test_a_stream_touches_every_byte_of_its_buffer_and_no_other(unroll: int, tmp_path: Path) -> None:
    library = build(StreamProbe("scale", unroll, threads=32).source(), _RUN, tmp_path)
    for units in (0, 1, 63, 64, 500, 513):
        source = np.random.default_rng(units).uniform(-1, 1, 2 * units + 2)
        target = np.full(2 * units + 2, np.nan)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (source, target))
        status = library.run(2, 32, next(pointers), ctypes.c_longlong(units), next(pointers))
        assert status == 0
        np.testing.assert_array_equal(target[: 2 * units], 1.5 * source[: 2 * units])
        assert np.isnan(target[2 * units :]).all()


_RUN_VIEWS = """
extern "C" int run(u32 blocks, int threads, const void* A, i64 lda, void* B, i64 ldb, i64 K) {
    return emulator::launch(blocks, threads, 16, 1, [=] {
        KERNEL(static_cast<const Element*>(A), lda, static_cast<Element*>(B), ldb, K);
    });
}
"""


@pytest.mark.skipif(emulator.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(("M", "N", "reads_b"), [(5, 3, False), (3, 5, False), (4, 4, True)])
def test_a_view_s_probe_writes_every_row_and_nothing_between(
    M: int, N: int, reads_b: bool, tmp_path: Path
) -> None:
    probe = ViewProbe(8, M, N, reads_b, writes_b=True, unroll=4)
    library = build(probe.source(), _RUN_VIEWS, tmp_path)
    K, lda, ldb = 700, 9, 7
    A = np.random.default_rng(1).uniform(1, 2, (K, lda))
    B = np.full((K, ldb), np.nan)
    B[:, 1 : 1 + N] = 0
    long, pointer = ctypes.c_longlong, ctypes.c_void_p
    places = pointer(A.ctypes.data + 8), long(lda), pointer(B.ctypes.data + 8), long(ldb), long(K)
    assert library.run(3, probe.threads, *places) == 0
    shared = min(M, N)
    np.testing.assert_array_equal(B[:, 1 : 1 + shared], A[:, 1 : 1 + shared])
    assert np.isnan(B[:, 0]).all()
    assert np.isnan(B[:, 1 + N :]).all()


_RUN_MIX = """
extern "C" int run(u32 blocks, int threads, const void* source, i64 bytes, void* target) {
    emulator::readable = {{static_cast<const char*>(source), static_cast<const char*>(source) + bytes}};
    return emulator::launch(blocks, threads, 16, 1, [=] {
        KERNEL(static_cast<const Vector*>(source), static_cast<Vector*>(target));
    });
}
"""


@pytest.mark.skipif(emulator.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(("reads", "writes"), [(3, 2), (1, 4), (2, 0), (0, 1)])
def test_a_mix_reads_and_writes_every_vector_once(reads: int, writes: int, tmp_path: Path) -> None:
    probe, blocks = MixProbe(reads, writes), 3
    library = build(probe.source(), _RUN_MIX, tmp_path)
    threads = blocks * probe.threads
    source = np.random.default_rng(1).integers(0, 2**32, (blocks, reads, probe.threads, 4), np.uint32)
    target = np.zeros((blocks, max(writes, 1), probe.threads, 4), np.uint32)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (source, target))
    status = library.run(
        blocks, probe.threads, next(pointers), ctypes.c_longlong(source.nbytes), next(pointers)
    )
    assert status == 0
    words = np.outer(np.arange(threads), [0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F]).astype(np.uint32)
    expected = words.reshape(blocks, 1, probe.threads, 4) ^ np.bitwise_xor.reduce(source, axis=1)[:, None]
    expected = np.repeat(expected, max(writes, 1), axis=1)
    expected[..., 0] ^= np.arange(max(writes, 1), dtype=np.uint32)[None, :, None]
    assert np.array_equal(target, expected if writes else np.zeros_like(target))


_RUN_BULK = """
extern "C" int run(u32 blocks, size_t shared_bytes, const char* source, char* target, u32 read, u32 write) {
    emulator::readable = {{source, source + static_cast<i64>(blocks) * read}};
    emulator::writable = {target, target + static_cast<i64>(blocks) * write};
    return emulator::launch(blocks, 32, shared_bytes, 1, [=] { KERNEL(source, target, read, write); });
}
"""


@pytest.mark.skipif(emulator.COMPILER is None, reason="needs g++")
def test_bulk_copies_of_a_mix_read_and_write_what_they_say(tmp_path: Path) -> None:
    text = emulator.host_source(BulkProbe(0, 0).source()).replace("emulator.hpp", "stores.hpp", 1)
    library = emulator.compile_library(text + _RUN_BULK, tmp_path)
    for read, write in ((64, 64), (256, 32), (16, 128), (48, 0)):
        probe, blocks = BulkProbe(read, write), 5
        source = np.random.default_rng(read).integers(0, 256, (blocks, read), np.uint8)
        target = np.zeros((blocks, write + 1), np.uint8)
        sizes = (ctypes.c_uint(blocks), ctypes.c_size_t(probe.shared_bytes))
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (source, target))
        assert library.run(*sizes, *pointers, ctypes.c_uint(read), ctypes.c_uint(write)) == 0
        written, copied = target.ravel()[: blocks * write].reshape(blocks, write), min(read, write)
        assert np.array_equal(written[:, :copied], source[:, :copied])
