"""Recorded properties of GPUs, for tests and for kernels that are compiled without one."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from typing import NamedTuple

import pytest

from blockvec.kernels.device import DeviceInfo

__all__ = [
    *("A10", "A100", "B200", "DEVICES", "H200", "L40S", "RTX_5090", "SMALL_DEVICES"),
    *("needs_compiler", "resources_of"),
]

H200 = DeviceInfo(
    kind="cuda",
    name="NVIDIA H200",
    multiprocessors=132,
    architecture="sm_90",
    l2_bytes=60 << 20,
    shared_bytes_per_block=232448,
    shared_bytes_per_multiprocessor=233472,
    registers_per_multiprocessor=65536,
    threads_per_multiprocessor=2048,
)
A100 = replace(
    H200,
    name="NVIDIA A100",
    architecture="sm_80",
    multiprocessors=108,
    l2_bytes=40 << 20,
    shared_bytes_per_block=166912,
    shared_bytes_per_multiprocessor=167936,
)
A10 = replace(
    H200,
    name="NVIDIA A10",
    architecture="sm_86",
    multiprocessors=72,
    l2_bytes=6 << 20,
    shared_bytes_per_block=101376,
    shared_bytes_per_multiprocessor=102400,
    threads_per_multiprocessor=1536,
)
L40S = replace(A10, name="NVIDIA L40S", architecture="sm_89", multiprocessors=142, l2_bytes=96 << 20)
RTX_5090 = replace(
    A10, name="NVIDIA GeForce RTX 5090", architecture="sm_120", multiprocessors=170, l2_bytes=96 << 20
)
B200 = replace(H200, name="NVIDIA B200", architecture="sm_100", multiprocessors=148, l2_bytes=126 << 20)

DEVICES: tuple[DeviceInfo, ...] = (A100, A10, L40S, H200, B200, RTX_5090)
"""One device per architecture that kernels are compiled for."""
SMALL_DEVICES = (A10, L40S, RTX_5090)
"""Those with 99 KB of shared memory per block and slow double precision."""

needs_compiler = pytest.mark.skipif(find_spec("cuda") is None, reason="needs cuda.bindings and NVRTC")


class Resources(NamedTuple):
    """Resources of a kernel: registers, spills and stack per thread, static shared memory per block."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def resources_of(log: str) -> Resources:
    """Read what the assembler reports of a kernel."""
    patterns = r"bytes spill (?:stores|loads)", r"bytes stack frame", r"bytes smem"
    found = (sum(map(int, re.findall(rf"(\d+) {pattern}", log))) for pattern in patterns)
    return Resources(max(map(int, re.findall(r"Used (\d+) registers", log)), default=0), *found)
