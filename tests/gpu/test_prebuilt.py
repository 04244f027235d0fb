"""Kernels that are installed with the package run on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec.backends import backend_for
from blockvec.kernels import compile as compiler
from blockvec.kernels import prebuilt
from blockvec.kernels.elementwise import PhiloxKernel

pytestmark = pytest.mark.gpu


def test_a_kernel_of_the_package_computes_what_the_compiled_one_does(tmp_path: Path) -> None:
    import cupy

    backend: Any = backend_for("gpu")
    kernel = PhiloxKernel("float64")
    if prebuilt.find(kernel.source(), backend.device.architecture, compiler.OPTIONS) is None:
        pytest.skip(f"there are no kernels for {backend.device.architecture}")
    built = compiler.build(kernel.source(), backend.device.architecture, cache_dir=tmp_path)
    (copy,) = (tmp_path / "cubins").iterdir()  # decompressed, for later processes
    assert built.key in copy.name
    assert compiler.build(kernel.source(), backend.device.architecture, cache_dir=tmp_path) == built
    compiled = compiler.compile_source(kernel.source(), backend.device.architecture)
    results = []
    for cubin in (built, compiled):
        out = cupy.zeros((1000, 4))
        numbers = (np.uint64(0), np.uint64(7), np.uint64(0))
        compiler.load(cubin, kernel.name)((4,), (kernel.threads,), (out, 4, 4, out.size, *numbers))
        results.append(out.get())
    assert np.array_equal(*results)
    assert results[0].all()
