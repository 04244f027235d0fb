"""Functions of rows: their kernels compute what the functions do with NumPy; kernels that fill blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from blockvec.backends.host.backend import HOST
from blockvec.blocks.blockvector import INVERSES, ROOTS
from blockvec.kernels.elementwise import fill_kernel, within_kernel
from blockvec.kernels.rows import trace
from blockvec.kernels.source import Kernel
from blockvec.operations.elementwise import NORMAL
from blockvec.operators.sparse import DIFFER, _are_equal
from solvers.iterations.spectrum import SIGNS, _divided
from solvers.linear import minres
from solvers.transform.inner_product import LENGTHS
from tests.emulator.host import HostKernel, needs_host_compiler
from tests.pretended_cupy import Array
from tests.pretended_gpu import pretended_gpu

UNIT = 2.0**-53
FUNCTIONS: dict[str, tuple[Any, int]] = {  # with the number of rows that each takes
    "roots": (ROOTS, 1),
    "normal": (NORMAL, 2),
    "differ": (DIFFER, 2),
    "inverses": (INVERSES, 1),
    "lengths": (LENGTHS, 1),
    "signs": (SIGNS, 1),
    "divided": (_divided(2.0**-1022), 1),
    "kept": (minres.KEPT, 3),
    "opening": (minres.OPENING, 10),
    "closing": (minres.closing(UNIT, 10 * UNIT), 12),
}
MASKS = {"kept": (0, 1), "opening": (9,), "closing": (11,)}  # rows that are masks, by function


def every(xp: Any, a: Any, b: Any, mask: Any) -> tuple[Any, ...]:
    """Use everything that a function may."""
    least = xp.maximum(a, b)
    chosen = xp.where(mask & ~(a <= b) | (b > 2.0), xp.abs(a - 1) / (1 + b**2), -least)
    return chosen, 2 * a + b * 3, 1.0 - b, mask


def kernel_of(name: str) -> Kernel:
    return _described(name)[0]


def _described(name: str) -> tuple[Kernel, list[str]]:
    """Translate a function; return the kernel and the types of its results."""
    function, count = FUNCTIONS[name]
    kinds = ["bool" if i in MASKS.get(name, ()) else "float64" for i in range(count)]
    rows = [np.full(2, 0.5).astype(kind) for kind in kinds]
    results = function.function(np, *rows)
    types = [np.asarray(result).dtype.name for result in results]
    return trace(function.function, kinds, types), types


def run(kernel: Kernel, types: Sequence[str], rows: list[Any], step: int = 1) -> list[Any]:
    """Run a kernel on the host, with gaps between numbers; what it does not write stays as it is."""
    count = len(rows[0])
    spread = [np.repeat(row, step) for row in rows]
    outputs = [np.full(count * step, 7).astype(dtype) for dtype in types]
    arguments = [number for row in (*spread, *outputs) for number in (row.ctypes.data, np.int64(step))]
    HostKernel(kernel.source(), spread, outputs)(
        (-(-count // kernel.threads),), (kernel.threads,), (np.int64(count), *arguments)
    )
    for output in outputs:
        assert (output.reshape(count, step)[:, 1:] == np.array(7).astype(output.dtype)).all()
    return [output[::step] for output in outputs]


@needs_host_compiler
@pytest.mark.parametrize(("step", "count"), [(1, 1), (1, 300), (3, 130)])
def test_every_operation_is_translated(step: int, count: int) -> None:
    rng = np.random.default_rng(0)
    rows: list[Any] = [np.round(4 * rng.standard_normal(count)), 3 * rng.standard_normal(count)]
    rows.append(rng.random(count) < 0.5)
    rows[0][::7], rows[1][::5] = np.nan, np.inf
    types = ("float64", "float32", "float64", "bool")
    kernel = trace(every, ("float64", "float64", "bool"), types)
    with np.errstate(invalid="ignore"):
        expected = every(np, *rows)
        found = run(kernel, types, rows, step)
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one, np.asarray(other).astype(one.dtype), equal_nan=one.dtype != bool)


@needs_host_compiler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_solvers_compute_the_same(name: str) -> None:
    rng = np.random.default_rng(1)
    function, count = FUNCTIONS[name]
    rows = [rng.random(40) < 0.7 if i in MASKS.get(name, ()) else rng.random(40) for i in range(count)]
    found = run(*_described(name), rows)
    for one, other in zip(found, function.function(np, *rows), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "complex128"])
def test_arrays_of_a_gpu_are_equal_if_all_their_numbers_are(dtype: str) -> None:
    most = 2**31 - 2**24 if dtype[0] == "i" else 1e30
    numbers = np.array([0, 1, 2, 5, 5, 1000, most], dtype)
    with pretended_gpu(modules=()) as watched:
        assert _are_equal(Array(numbers), Array(numbers.copy()))
        assert not _are_equal(Array(numbers), Array(numbers[:-1].copy()))
        for place in range(len(numbers)):
            others = numbers.copy()
            others[place] += 1 if dtype[0] == "i" else max(abs(others[place]) * 1e-6, 1e-37)
            assert not _are_equal(Array(numbers), Array(others))
        assert dict(watched.compiled) == {}


@needs_host_compiler
@pytest.mark.parametrize(("dtype", "parts"), [("float32", 1), ("float64", 1), ("float32", 2), ("float64", 2)])
def test_a_fill_leaves_the_gaps_between_rows(dtype: str, parts: int) -> None:
    rows, width, ld = 37, 3 * parts, 5 * parts
    out = np.full((rows, ld), np.nan, dtype)
    kernel = fill_kernel(dtype)
    numbers = (1.5, -2.0 if parts == 2 else 1.5)
    sizes = (np.int64(ld), np.int64(width), np.int64(rows * width))
    HostKernel(kernel.source(), [], [out])((2,), (kernel.threads,), (out.ctypes.data, *sizes, *numbers))
    assert np.isnan(out[:, width:]).all()
    assert (out[:, :width].reshape(rows, -1, parts) == numbers[:parts]).all()


@needs_host_compiler
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_outside_of_a_range_are_found(dtype: str) -> None:
    kernel, outside = within_kernel(dtype), np.zeros(1, np.int32)
    values = np.minimum(np.arange(1000) // 2, 480).astype(dtype)
    run = HostKernel(kernel.source(), [values], [outside])

    def is_found(bound: int, ascends: bool) -> bool:
        outside[0] = 0
        numbers = np.int64(len(values)), np.int64(bound), np.int32(ascends), outside.ctypes.data
        run((3,), (kernel.threads,), (values.ctypes.data, *numbers))
        expected = values.min() < 0 or values.max() >= bound
        if ascends:
            expected |= values[0] != 0 or (np.diff(values) < 0).any()
        assert bool(outside[0]) == expected == (not HOST.are_within([(values, bound, ascends)]))
        return bool(outside[0])

    assert not is_found(481, True)
    assert is_found(480, True)
    assert is_found(480, False)
    for place, value in ((0, 1), (0, -1), (500, 3), (999, 481)):
        kept, values[place] = int(values[place]), value
        assert is_found(481, True)
        values[place] = kept
    values[500] = 3
    assert not is_found(481, False)


@pytest.mark.parametrize("function", [lambda xp, a: (a**3,), lambda xp, a: (xp.exp(a),)])
def test_other_operations_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        trace(function, ("float64",), ("float64",))
