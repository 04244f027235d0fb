"""Probe kernels do all the work that is counted: run on the host, thread by thread."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from blockvec.kernels.probes import StreamProbe
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
