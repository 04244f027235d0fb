"""What does not fit together is refused before anything is computed, in a sentence with both values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector, as_operator
from blockvec.backends import backend_for
from blockvec.errors import BlockvecError, DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from tests.contract.blocks import host, on

REFUSED: dict[str, tuple[type[BlockvecError], str]] = {
    "zeros(5, 2).dot(zeros(4, 2))": (ShapeError, r"A has 5 rows but B has 4"),
    "V.dot(zeros(5, 3), out=small(2, 2))": (
        ShapeError,
        r"out has shape \(2, 2\) but the result has \(2, 3\)",
    ),
    "V.dot(Z, out=small(2, 2))": (DTypeError, r"out holds float64 but the result is complex128"),
    "V.dot(V, alpha=1j, out=small(2, 2))": (DTypeError, r"out holds float64 but the result is complex128"),
    "V.dot(V, beta=2)": (OptionError, r"beta=2 needs out="),
    "V.dot(V, out=V.array[:2])": (LayoutError, r"out shares memory"),
    "V.dot(V.T)": (DTypeError, r"both operands are tall"),
    "V.dot(V, alpha=small(2))": (DTypeError, r"alpha"),
    "V.dot(V, out='C')": (ShapeError, r"out is a str"),
    "V.T @ V.T": (DTypeError, r"both operands are tall"),
    "V.T @ S": (DTypeError, r"write V\.T @ \(S @ V\)"),
    "V.T @ sp.eye_array(5).tocsr()": (DTypeError, r"csr_array.*as_operator\(A\) @ V"),
    "V @ V": (DTypeError, r"2 rows.*V\.H @ W"),
    "V @ V.T": (DTypeError, r"got .*\.T; C is a small array with 2 rows.*V @ \(W\.T @ X\)"),
    "V @ S": (DTypeError, r"S @ V"),
    "S @ S": (DTypeError, r"S @ \(T @ V\)"),
    "small(2, 2) @ V.T": (DTypeError, r"asarray\(V\.T\)"),
    "small(2, 2) @ V": (ShapeError, r"C has shape \(2, 2\) but V has 5 rows.*V @ C"),
    "small(3, 5) @ V": (LayoutError, r"C of shape \(3, 5\).*BlockVector\(C\.T, copy=True\)"),
    "V @ small(3, 2)": (ShapeError, r"the block has 2 columns but C has shape \(3, 2\); C needs 2 rows"),
    "V.combine(small(2, 3), out=V)": (ShapeError, r"out has shape \(5, 2\) but the result has \(5, 3\)"),
    "V.combine(small(2, 2), out=single)": (DTypeError, r"out holds float32 but the result is float64"),
    "V.combine(small(2, 2), beta=1)": (OptionError, r"beta=1 needs out="),
    "V[:, :1].combine(small(1, 2), out=V)": (LayoutError, r"not its leading columns"),
    "V[:4].combine(small(2, 2), out=V[1:])": (LayoutError, r"not its leading columns"),
    "V.__imatmul__(small(2, 3))": (ShapeError, r"C has 3 columns but V only 2; write V = V @ C"),
    "V + zeros(5, 3)": (ShapeError, r"shapes \(5, 2\) and \(5, 3\)"),
    "V + small(3)": (ShapeError, r"shape \(3,\) does not fit a block of shape \(5, 2\)"),
    "V.axpy(1, zeros(4, 2))": (ShapeError, r"shapes \(4, 2\) and \(5, 2\)"),
    "V.axpy(1, Z)": (DTypeError, r"complex128 result does not fit into a float64 block"),
    "W[:, 1:3].axpy(1, W[:, :2])": (LayoutError, r"shares memory with an operand"),
    "V.column_dot(zeros(5, 1))": (ShapeError, r"shapes \(5, 2\) and \(5, 1\)"),
    "V.scale(small(3))": (ShapeError, r"factors of shape \(3,\) for 2 columns"),
    "V.scale(2j)": (DTypeError, r"complex128 result does not fit into a float64 block"),
    "as_operator(len, shape=5, device=d)": (ShapeError, r"shape: got 5; give two"),
    "as_operator(len, shape=(-5, 5), device=d)": (ShapeError, r"shape: got \(-5, 5\)"),
    "BlockVector(small(3, 2, dtype='int64'))": (DTypeError, r"int64 is not.*float32, .*dtype='float64'"),
    "BlockVector(small(3, 2, dtype='float16'))": (DTypeError, r"float16 is not supported"),
    "BlockVector(small(2, 2, 2))": (ShapeError, r"3 dimensions, shape \(2, 2, 2\)"),
    "BlockVector(small(2, 5).T)": (LayoutError, r"strides \(8, 40\).*copy=True"),
    "BlockVector(small(5, 4)[:, ::2])": (LayoutError, r"unit column stride \(here 8\)"),
    "BlockVector(small(5, 4)[::-1])": (LayoutError, r"copy=True"),
    "BlockVector([[1.0]])": (DTypeError, r"got a list"),
    "BlockVector.zeros(-1, 2, device=d)": (ShapeError, r"n_rows: got -1"),
    "BlockVector.zeros(3, 2.5, device=d)": (ShapeError, r"n_cols: got 2\.5"),
    "BlockVector.random(3, 2, first_row=-1, device=d)": (OptionError, r"first_row: got -1"),
    "BlockVector.random(3, 2, distribution='cauchy')": (OptionError, r"'cauchy'; give 'uniform' or 'normal'"),
    "A @ zeros(4, 2)": (ShapeError, r"A is 5 x 5 but X has 4 rows"),
    "A.apply(V, shift=small(3))": (ShapeError, r"shifts of shape \(3,\) for 2 columns"),
    "R.apply(V, shift=1)": (ShapeError, r"square operator, A is 2 x 5"),
    "A.apply(V, zeros(5, 1))": (ShapeError, r"out has shape \(5, 1\) but the result has \(5, 2\)"),
    "A.apply(V, single)": (DTypeError, r"out holds float32 but the result is float64"),
    "A.apply(V, zeros(5, 2), shift=1j)": (DTypeError, r"out holds float64 but the result is complex128"),
    "A.apply(V, V)": (LayoutError, r"out shares memory with X"),
    "A.apply(V, V, dots='xx')": (LayoutError, r"out shares memory with X"),
    "A.apply(V, beta=2)": (OptionError, r"beta=2 needs out="),
    "A.apply(V, dots=('xx', 'yx'))": (OptionError, r"dots='yx' is not known; give some of xx, xy, yy"),
    "A.apply(V, gram='xx')": (OptionError, r"gram='xx' is not known; give some of xy, yy"),
    "A.apply(V, z=zeros(5, 1))": (ShapeError, r"z has shape \(5, 1\), the result \(5, 2\)"),
    "A.apply(V, z=single)": (DTypeError, r"the result holds float64, z float32"),
    "A.apply(V, z=zeros(5, 2), eta=1j)": (DTypeError, r"z float64, delta z \+ eta y complex128"),
    "A.apply(V, z=V)": (LayoutError, r"z shares memory with X"),
    "A.apply(V, W[:5, :2], z=W[:5, 1:3])": (LayoutError, r"z shares memory with out"),
    "function(lambda X: X[:2]) @ V": (ShapeError, r"the operator returned shape \(2, 2\)"),
    "function(lambda X, out: X[:, 0]) @ V": (ShapeError, r"the operator returned shape \(5,\)"),
    "function(lambda X, out: X.astype('int64')) @ V": (DTypeError, r"int64 is not supported"),
    "V.combine_dot(small(2, 2), zeros(4, 3))": (ShapeError, r"5 rows but the basis W has 4"),
    "V.combine_dot(small(3, 2), zeros(5, 3))": (ShapeError, r"\(3, 2\) but must have \(2, 2\)"),
    "V.combine_dot(small(2, 2) * 1j, zeros(5, 3))": (DTypeError, r"complex128"),
    "V.update_gram(zeros(5, 3), small(2, 2))": (ShapeError, r"\(2, 2\) but must have \(3, 2\)"),
    "V.update_gram(zeros(5, 3), small(3, 2) * 1j)": (DTypeError, r"float64, but .* columns are complex128"),
    "W[:, :2].update_gram(W, small(4, 2))": (LayoutError, r"memory with the basis"),
    "W[:, 1:3].combine_dot(small(2, 2), W[:, :2])": (LayoutError, r"memory with the basis"),
    "BlockVector(C).combine_dot(C, zeros(2, 3))": (LayoutError, r"memory with C"),
}


@pytest.mark.parametrize("attempt", REFUSED)
def test_it_is_refused_with_both_values(device: str, attempt: str) -> None:
    def small(*shape: int, dtype: str = "float64") -> Any:
        return on(device, np.zeros(shape, dtype))

    def zeros(K: int, M: int, dtype: str = "float64") -> BlockVector:
        return BlockVector.zeros(K, M, dtype, device=device)

    names = {"d": device, "sp": sp, "BlockVector": BlockVector, "as_operator": as_operator}
    names |= {
        "V": zeros(5, 2),
        "W": zeros(6, 4),
        "Z": zeros(5, 2, "complex128"),
        "S": as_operator(small(5, 5)),
    }
    names |= {"small": small, "zeros": zeros, "single": zeros(5, 2, "float32")}
    for name, matrix in {"A": sp.eye_array(5), "R": sp.csr_array((2, 5))}.items():
        names[name] = as_operator(matrix.tocsr(), device=device)
    names |= {"C": small(2, 2), "function": lambda f: as_operator(f, shape=(5, 5), device=device)}
    error, message = REFUSED[attempt]
    with pytest.raises(error, match=message) as caught:
        eval(attempt, names)
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


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: blockvec.orthogonalize(np.ones((4, 2))), DTypeError, r"W is a ndarray; .* BlockVector\(W\)"),
        (lambda: blockvec.open_matrix(5), OptionError, "got 5; give a path, or a model"),
        (lambda: blockvec.factorize(sp.csr_array((0, 0))), ShapeError, "A has no rows"),
        (lambda: blockvec.replace(["sklearn"]).__enter__(), OptionError, "give one of"),
    ],
    ids=["orthogonalize", "open_matrix", "factorize", "replace"],
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()


def test_a_matrix_in_half_precision_is_factorised_in_double() -> None:
    A = np.diag(np.arange(1, 5)).astype(np.float16)
    assert np.allclose(blockvec.factorize(A).solve(np.ones(4)).array.ravel(), 1 / np.arange(1, 5))
