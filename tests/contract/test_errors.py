"""What does not fit together is refused before anything is computed, in a sentence with both values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator
from blockvec.backends import backend_for
from blockvec.errors import BlockvecError, DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from tests.contract.blocks import host, on

Attempt = Callable[[str], Any]


def zeros(device: str, K: int, M: int, dtype: str = "float64") -> BlockVector:
    return BlockVector.zeros(K, M, dtype, device=device)


def small(device: str, *shape: int, dtype: str = "float64") -> Any:
    return on(device, np.zeros(shape, dtype))


def overlapping_product(device: str) -> Any:
    V = zeros(device, 6, 4)
    return V[:, :2].combine(small(device, 2, 2), out=V[:, 1:3])


def shifted_rows(device: str) -> Any:
    V = zeros(device, 6, 2)
    return V[:5].combine(small(device, 2, 2), out=V[1:])


def result_inside_a_block(device: str) -> Any:
    V = zeros(device, 6, 2)
    return V.dot(V, out=V.array[:2])


def overlapping_sum(device: str) -> Any:
    V = zeros(device, 6, 4)
    return V[:, 1:3].axpy(1, V[:, :2])


REFUSED: list[tuple[str, type[BlockvecError], str, Attempt]] = [
    ("rows of dot", ShapeError, r"A has 5 rows but B has 4", lambda d: zeros(d, 5, 2).dot(zeros(d, 4, 2))),
    (
        "out of dot",
        ShapeError,
        r"out has shape \(2, 2\) but the result has \(2, 3\)",
        lambda d: zeros(d, 5, 2).dot(zeros(d, 5, 3), out=small(d, 2, 2)),
    ),
    (
        "type of dot's out",
        DTypeError,
        r"out holds float64 but the result is complex128",
        lambda d: zeros(d, 5, 2).dot(zeros(d, 5, 3, "complex128"), out=small(d, 2, 3)),
    ),
    (
        "complex factor into a real out",
        DTypeError,
        r"out holds float64 but the result is complex128",
        lambda d: zeros(d, 5, 2).dot(zeros(d, 5, 3), alpha=1j, out=small(d, 2, 3)),
    ),
    (
        "beta without out",
        OptionError,
        r"beta=2 needs out=",
        lambda d: zeros(d, 5, 2).dot(zeros(d, 5, 2), beta=2),
    ),
    ("dot into an operand", LayoutError, r"out shares memory", result_inside_a_block),
    (
        "marker as operand",
        DTypeError,
        r"both operands are tall",
        lambda d: zeros(d, 5, 2).dot(zeros(d, 5, 2).T),
    ),
    ("two markers", DTypeError, r"both operands are tall", lambda d: zeros(d, 5, 2).T @ zeros(d, 5, 2).T),
    ("two blocks", DTypeError, r"2 rows.*V\.H @ W", lambda d: zeros(d, 5, 2) @ zeros(d, 5, 2)),
    (
        "block times marker",
        DTypeError,
        r"got .*\.T; C is a small array with 2 rows.*V @ \(W\.T @ X\)",
        lambda d: zeros(d, 5, 2) @ zeros(d, 5, 2).T,
    ),
    ("block times operator", DTypeError, r"S @ V", lambda d: zeros(d, 5, 2) @ as_operator(small(d, 5, 5))),
    (
        "two operators",
        DTypeError,
        r"S @ \(T @ V\)",
        lambda d: as_operator(small(d, 5, 5)) @ as_operator(small(d, 5, 5)),
    ),
    ("array times marker", DTypeError, r"asarray\(V\.T\)", lambda d: small(d, 2, 2) @ zeros(d, 5, 2).T),
    (
        "small array times block",
        ShapeError,
        r"C has shape \(2, 2\) but V has 5 rows.*V @ C",
        lambda d: small(d, 2, 2) @ zeros(d, 5, 2),
    ),
    (
        "row-major array times block",
        LayoutError,
        r"C of shape \(3, 5\).*BlockVector\(C\.T, copy=True\)",
        lambda d: small(d, 3, 5) @ zeros(d, 5, 2),
    ),
    (
        "sparse matrix as a block",
        DTypeError,
        r"csr_array.*as_operator\(A\) @ V",
        lambda d: zeros(d, 5, 2).T @ sp.eye_array(5).tocsr(),
    ),
    (
        "factors in the place of one",
        DTypeError,
        r"alpha",
        lambda d: zeros(d, 5, 2).dot(zeros(d, 5, 2), alpha=small(d, 2)),
    ),
    (
        "factors of another number of columns",
        ShapeError,
        r"shape \(3,\) does not fit a block of shape \(5, 2\)",
        lambda d: zeros(d, 5, 2) + small(d, 3),
    ),
    ("text as out", ShapeError, r"out is a str", lambda d: zeros(d, 5, 2).dot(zeros(d, 5, 2), out="C")),
    (
        "shape of a function",
        ShapeError,
        r"shape: got 5; give two",
        lambda d: as_operator(lambda X: X, shape=5, device=d),  # type: ignore[arg-type]
    ),
    (
        "negative shape",
        ShapeError,
        r"shape: got \(-5, 5\)",
        lambda d: as_operator(lambda X: X, shape=(-5, 5), device=d),
    ),
    (
        "first row",
        OptionError,
        r"first_row: got -1",
        lambda d: BlockVector.random(3, 2, first_row=-1, device=d),
    ),
    (
        "marker times operator",
        DTypeError,
        r"write V\.T @ \(S @ V\)",
        lambda d: zeros(d, 5, 2).T @ as_operator(small(d, 5, 5)),
    ),
    (
        "coefficients of combine",
        ShapeError,
        r"the block has 2 columns but C has shape \(3, 2\); C needs 2 rows",
        lambda d: zeros(d, 5, 2) @ small(d, 3, 2),
    ),
    (
        "out of combine",
        ShapeError,
        r"out has shape \(5, 2\) but the result has \(5, 3\)",
        lambda d: zeros(d, 5, 2).combine(small(d, 2, 3), out=zeros(d, 5, 2)),
    ),
    (
        "type of combine's out",
        DTypeError,
        r"out holds float32 but the result is float64",
        lambda d: zeros(d, 5, 2).combine(small(d, 2, 2), out=zeros(d, 5, 2, "float32")),
    ),
    (
        "beta of combine without out",
        OptionError,
        r"beta=1 needs out=",
        lambda d: zeros(d, 5, 2).combine(small(d, 2, 2), beta=1),
    ),
    ("overlapping combine", LayoutError, r"not its leading columns", overlapping_product),
    ("combine into shifted rows", LayoutError, r"not its leading columns", shifted_rows),
    (
        "widening in place",
        ShapeError,
        r"C has 3 columns but V only 2; write V = V @ C",
        lambda d: zeros(d, 5, 2).__imatmul__(small(d, 2, 3)),
    ),
    (
        "shapes of a sum",
        ShapeError,
        r"shapes \(5, 2\) and \(5, 3\)",
        lambda d: zeros(d, 5, 2) + zeros(d, 5, 3),
    ),
    (
        "shapes of axpy",
        ShapeError,
        r"shapes \(4, 2\) and \(5, 2\)",
        lambda d: zeros(d, 5, 2).axpy(1, zeros(d, 4, 2)),
    ),
    (
        "shapes of column_dot",
        ShapeError,
        r"shapes \(5, 2\) and \(5, 1\)",
        lambda d: zeros(d, 5, 2).column_dot(zeros(d, 5, 1)),
    ),
    (
        "number of factors",
        ShapeError,
        r"factors of shape \(3,\) for 2 columns",
        lambda d: zeros(d, 5, 2).scale(small(d, 3)),
    ),
    (
        "complex sum into a real block",
        DTypeError,
        r"complex128 result does not fit into a float64 block",
        lambda d: zeros(d, 5, 2).axpy(1, zeros(d, 5, 2, "complex128")),
    ),
    (
        "complex factor on a real block",
        DTypeError,
        r"complex128 result does not fit into a float64 block",
        lambda d: zeros(d, 5, 2).scale(2j),
    ),
    ("overlapping sum", LayoutError, r"shares memory with an operand", overlapping_sum),
    (
        "integers",
        DTypeError,
        r"int64 is not supported; blocks hold float32, float64, complex64, complex128.*dtype='float64'",
        lambda d: BlockVector(on(d, np.zeros((3, 2), "int64"))),
    ),
    (
        "half precision",
        DTypeError,
        r"float16 is not supported",
        lambda d: BlockVector(on(d, np.zeros((3, 2), "float16"))),
    ),
    ("dimensions", ShapeError, r"3 dimensions, shape \(2, 2, 2\)", lambda d: BlockVector(small(d, 2, 2, 2))),
    ("column-major", LayoutError, r"strides \(8, 40\).*copy=True", lambda d: BlockVector(small(d, 2, 5).T)),
    (
        "column steps",
        LayoutError,
        r"unit column stride \(here 8\)",
        lambda d: BlockVector(small(d, 5, 4)[:, ::2]),
    ),
    ("upside down", LayoutError, r"copy=True", lambda d: BlockVector(small(d, 5, 4)[::-1])),
    ("no array", DTypeError, r"got a list", lambda d: BlockVector([[1.0]])),
    ("extent", ShapeError, r"n_rows: got -1", lambda d: BlockVector.zeros(-1, 2, device=d)),
    ("fractional extent", ShapeError, r"n_cols: got 2\.5", lambda d: BlockVector.zeros(3, 2.5, device=d)),  # type: ignore[arg-type]
    (
        "distribution",
        OptionError,
        r"got 'cauchy'; give 'uniform' or 'normal'",
        lambda d: BlockVector.random(3, 2, distribution="cauchy", device=d),  # type: ignore[arg-type]
    ),
]


@pytest.mark.parametrize(
    ("error", "message", "attempt"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_it_is_refused_with_both_values(
    device: str, error: type[BlockvecError], message: str, attempt: Attempt
) -> None:
    with pytest.raises(error, match=message) as caught:
        attempt(device)
    # A sentence, which starts by saying what was being done or given.
    assert re.fullmatch(r".*[.)]", str(caught.value), re.DOTALL)


def test_results_do_not_go_into_read_only_arrays(device: str) -> None:
    if device != "cpu":
        pytest.skip("CuPy arrays have no such flag")
    V, W = BlockVector.zeros(5, 2), BlockVector.zeros(5, 2)
    W.array.flags.writeable = False
    A = as_operator(np.eye(5))
    S = as_operator(sp.eye_array(5))
    attempts: list[Callable[[], Any]] = [
        lambda: V.combine(np.eye(2), out=W),
        lambda: V.dot(V, out=np.broadcast_to(0.0, (2, 2))),
        lambda: W.axpy(1, V),
        lambda: W.scale(2),
        lambda: W.combine_dot(np.eye(2), V),
        lambda: W.update_gram(V, np.eye(2)),
        lambda: W.__setitem__((slice(None), slice(None)), V),
        lambda: A.apply(V, out=W),
        lambda: S.apply(V, out=W),
        lambda: S.apply(V, out=W[:, :]),
        lambda: S.apply(V, z=W),
    ]
    for attempt in attempts:
        with pytest.raises(LayoutError, match="read-only; give a writable array"):
            attempt()
    assert not W.array.any()


def test_masks_are_refused_and_other_subclasses_are_arrays(device: str) -> None:
    if device != "cpu":
        pytest.skip("masked arrays are on the host")
    plain = np.arange(8.0).reshape(4, 2)
    masked = np.ma.masked_greater(plain, 5.0)
    V = BlockVector.zeros(4, 2)
    attempts: list[Callable[[], Any]] = [
        lambda: BlockVector(masked),
        lambda: BlockVector(masked, copy=True),
        lambda: V.dot(masked),
        lambda: V.combine(masked[2:]),
        lambda: as_operator(masked[2:]),
        lambda: as_operator(np.eye(4)) @ masked,
    ]
    for attempt in attempts:
        with pytest.raises(DTypeError, match=r"masked elements.*a\.filled\(0\)"):
            attempt()
    unmasked = np.ma.masked_greater(plain, 100.0)
    assert type(BlockVector(unmasked).array) is np.ndarray
    assert np.shares_memory(BlockVector(unmasked).array, plain) == np.shares_memory(unmasked.data, plain)


@pytest.mark.parametrize("device_name", [None, 0, "tpu"])
def test_what_is_no_device_is_refused(device_name: Any) -> None:
    with pytest.raises(DeviceError, match="give 'cpu', 'gpu' or 'cuda:0'"):
        BlockVector.zeros(3, 2, device=device_name)


def test_a_refused_operation_leaves_its_output_as_it_was(device: str) -> None:
    V = BlockVector.full(6, 4, 3.0, device=device)
    with pytest.raises(LayoutError):
        V[:, :2].combine(on(device, np.eye(2)), out=V[:, 1:3])
    assert (host(V) == 3).all()


@pytest.mark.parametrize("name", ["tpu", "cuda", "cuda:x", "", "gpu:0"])
def test_devices_that_nobody_knows_are_refused(device: str, name: str) -> None:
    with pytest.raises(DeviceError, match=re.escape(repr(name))):
        BlockVector.zeros(3, 2, device=name)


def test_a_device_that_is_not_there_is_refused_with_the_remedy() -> None:
    with pytest.raises(DeviceError, match=r"'cuda:99'.*(pip install|nvidia-smi|give 'cpu')"):
        backend_for("cuda:99")


@pytest.mark.gpu
def test_operands_on_different_devices_are_refused() -> None:
    V, W = BlockVector.zeros(5, 2), BlockVector.zeros(5, 2, device="gpu")
    small_cpu, small_gpu = np.eye(2), on("gpu", np.eye(2))
    attempts: list[Callable[[], Any]] = [
        lambda: V.dot(W),
        lambda: W.dot(V),
        lambda: W + V,
        lambda: V.axpy(1, W),
        lambda: V.column_dot(W),
        lambda: V @ small_gpu,
        lambda: W @ small_cpu,
        lambda: V.dot(V, out=small_gpu),
        lambda: W.combine(small_gpu, out=V),
    ]
    for attempt in attempts:
        with pytest.raises(DeviceError, match=r"cpu.*cuda:0|cuda:0.*cpu"):
            attempt()
