"""The CUDA backend queues work on CuPy's current stream, without waiting, and into graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector, as_operator
from blockvec.backends import backend_for
from blockvec.kernels.limits import ceil_div
from blockvec.kernels.sparse import interface

pytestmark = pytest.mark.gpu


OPERATIONS = (
    *("V.dot(W)", "V.gram()", "V[:, 0].dot(W[:, 1])", "V.combine(C, out=out)", "W.combine(C, out=W)"),
    *("V[:, 0] @ C[:1, :1]", "W.axpy(0.5, V)", "W.axpy(factors, V)", "W.scale(C[0, 0])", "V + W"),
    *("V.norms()", "W.normalize()", "V.column_dot(W)", "V[:, 1:3].copy()", "S.apply(V, out, shift=0.5)"),
    *("S.apply(V, out, beta=1, shift=factors)", "BlockVector.random(100, 3, V.dtype, rng=2, device='gpu')"),
)


def all_operations(V: BlockVector) -> dict[str, Callable[[], Any]]:
    """One call per operation, on V and on operands that exist already."""
    S = as_operator(sp.eye_array(V.n_rows, format="csr", dtype=V.dtype), device="gpu")
    names = {"V": V, "W": V.copy(), "C": V.gram(), "S": S, "out": V.copy(), "BlockVector": BlockVector}
    names["factors"] = V.backend.xp.arange(6.0).astype(V.dtype)
    return {text: functools.partial(eval, compile(text, text, "eval"), names) for text in OPERATIONS}


@pytest.mark.filterwarnings("ignore:cupyx.allow_synchronize will be removed:UserWarning")
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_nothing_waits_for_the_device(dtype: str) -> None:
    import cupyx

    V = BlockVector.random(20000, 6, dtype, rng=1, device="gpu")
    for operation in all_operations(V).values():  # kernels are compiled and loaded once
        operation()
    operations = all_operations(V)
    with cupyx.allow_synchronize(False):
        for operation in operations.values():
            operation()
        with blockvec.profile():
            operations["V.gram()"]()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_work_goes_to_the_current_stream(dtype: str) -> None:
    import cupy

    V = BlockVector.random(20000, 6, dtype, rng=1, device="gpu")
    content = V.array.copy()
    expected = {name: _host(all_operations(V)[name]()) for name in all_operations(V)}
    stream = cupy.cuda.Stream(non_blocking=True)
    busy = cupy.random.random((4096, 4096))
    for name in expected:
        V.array[...] = content
        operation = all_operations(V)[name]
        V.array[...] = cupy.nan
        cupy.cuda.Device().synchronize()
        with stream:
            # Milliseconds, after which V gets its numbers: work on another stream would miss them.
            for _ in range(3):
                busy @ busy
            V.array[...] = content
            result = operation()
            stream.synchronize()
        np.testing.assert_array_equal(_host(result), expected[name], err_msg=name)


def _host(result: Any) -> Any:
    array = result.array if isinstance(result, BlockVector) else result
    return array.get()


def test_sums_of_a_sparse_product_outlive_what_another_thread_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    V = BlockVector.random(30000, 5, rng=1, device="gpu")
    S = as_operator(sp.eye_array(V.n_rows, format="csr"), device="gpu")
    expected = _host(S.apply(V, dots="xy").dots["xy"])

    def between(a: int, b: int) -> int:  # the grid of the kernel that adds up what the first one left
        V.gram()
        return ceil_div(a, b)

    monkeypatch.setattr(interface, "ceil_div", between)
    assert np.array_equal(_host(S.apply(V, dots="xy").dots["xy"]), expected)


def test_a_stopwatch_measures_the_stream() -> None:
    import cupy

    backend = backend_for("gpu")
    busy = cupy.ones((8192, 8192))
    busy @ busy
    watch = backend.stopwatch()
    busy @ busy
    watch.stop()
    seconds = watch.seconds()
    # 1.1e12 operations: no GPU does them in a millisecond in double precision, or takes a minute.
    assert 1e-3 < seconds < 60
