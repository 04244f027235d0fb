"""Probe kernels do all the work that is counted: run on the host, thread by thread."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from blockvec.kernels.probes import StreamProbe, ViewProbe
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
