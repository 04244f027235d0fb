"""Kernels of a benchmark are compiled before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blockvec
from blockvec.bench.precompile import compile_ahead
from blockvec.kernels.device import H200
from tests.compiled import needs_compiler


class _Backend:
    device = H200


@needs_compiler
def test_each_source_is_compiled_once_and_wrong_ones_wait_for_their_run(tmp_path: Path) -> None:
    good = 'extern "C" __global__ void good() {}\n'
    backend: Any = _Backend()
    with blockvec.option_context(cache_dir=tmp_path):
        compile_ahead([good, "", "this is no CUDA\n", good], backend)
    assert len(list((tmp_path / "cubins").iterdir())) == 1
