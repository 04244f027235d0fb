"""The kernel of small Cholesky factors without a GPU: compiled, and run thread by thread on the host."""

from __future__ import annotations

import numpy as np
import pytest

from blockvec.backends.host.backend import HOST
from blockvec.kernels.elementwise import inverse_factor_kernel
from tests.blocks import address
from tests.emulator.host import HostKernel, needs_host_compiler


@needs_host_compiler
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_the_kernel_and_numpy_agree(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for width, limit in ((1, 1e9), (3, 1e9), (37, 1e9), (5, 1.0)):
        X = rng.standard_normal((2 * width + 2, width)) * np.logspace(-3, 3, width)
        if dtype == "complex128":
            X = X + 1j * rng.standard_normal(X.shape)
        G = np.ascontiguousarray((X.conj().T @ X).astype(dtype))
        T, expected = HOST.inverse_factor(G, limit)
        found, report = np.full_like(T, np.nan), np.full_like(expected, np.nan)
        described = inverse_factor_kernel(dtype, width)
        kernel = HostKernel(described.source(), readable=[G])
        arguments = *map(address, (G, found, report)), np.int32(width), float(limit)
        kernel((1,), (described.threads,), arguments, described.shared_bytes)
        assert report[-1, 0].real == pytest.approx(expected[-1, 0].real, rel=1e-10)
        scale = np.abs(expected[:-1]).max(axis=1, keepdims=True)
        assert np.all(np.abs(report[:-1] - expected[:-1]) <= 1e-10 * scale)
        assert np.allclose(found, T, rtol=1e-6)
