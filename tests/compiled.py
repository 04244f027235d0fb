"""Compilation of kernels in tests: another GPU, and whether there is a compiler."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from blockvec.kernels.device import H200

A100 = replace(
    H200,
    name="NVIDIA A100",
    architecture="sm_80",
    multiprocessors=108,
    shared_bytes_per_block=166912,
    shared_bytes_per_multiprocessor=167936,
)

needs_compiler = pytest.mark.skipif(find_spec("cuda") is None, reason="needs cuda.bindings and NVRTC")
