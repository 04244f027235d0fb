"""Kernels of a benchmark are compiled before it begins."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import blockvec
from blockvec.bench.precompile import compile_ahead
from blockvec.kernels.device import H200


class _Backend:
    device = H200


@pytest.mark.skipif(find_spec("cuda") is None, reason="needs cuda.bindings and NVRTC")
def test_each_source_is_compiled_once_and_wrong_ones_wait_for_their_run(tmp_path: Path) -> None:
    good = 'extern "C" __global__ void good() {}\n'
    backend: Any = _Backend()
    with blockvec.option_context(cache_dir=tmp_path):
        compile_ahead([good, "", "this is no CUDA\n", good], backend)
    assert len(list((tmp_path / "cubins").iterdir())) == 1
