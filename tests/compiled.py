"""Compilation of kernels in tests: another GPU, and whether there is a compiler."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.devices import A100

__all__ = ["A100", "needs_compiler"]

needs_compiler = pytest.mark.skipif(find_spec("cuda") is None, reason="needs cuda.bindings and NVRTC")
