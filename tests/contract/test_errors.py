"""What does not fit together is refused before anything is computed, in a sentence with both values."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

import blockvec
from blockvec import BlockVector, RowFunction, as_operator, models
from blockvec.backends import backend_for
from blockvec.errors import BlockvecError, DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from tests.contract.blocks import host, on

bare = LinearOperator((4, 3), matvec=lambda x: np.zeros(4), matmat=lambda X: np.zeros((4, X.shape[1])))
REFUSED: dict[type[Exception], dict[str, str]] = {
    ShapeError: {
        "zeros(5, 2).dot(zeros(4, 2))": "A has 5 rows but B has 4",
        "V.dot(zeros(5, 3), out=small(2, 2))": r"out has shape \(2, 2\) but the result has \(2, 3\)",
        "V.dot(V, out='C')": "out is a str",
        "small(2, 2) @ V": r"C has shape \(2, 2\) but V has 5 rows.*V @ C",
        "V @ small(3, 2)": r"the block has 2 columns but C has shape \(3, 2\); C needs 2 rows",
        "V.combine(small(2, 3), out=V)": r"out has shape \(5, 2\) but the result has \(5, 3\)",
        "V.__imatmul__(small(2, 3))": "C has 3 columns but V only 2; write V = V @ C",
        "V + zeros(5, 3)": r"shapes \(5, 2\) and \(5, 3\)",
        "V + small(3)": r"shape \(3,\) does not fit a block of shape \(5, 2\)",
        "V.axpy(1, zeros(4, 2))": r"shapes \(4, 2\) and \(5, 2\)",
        "V.column_dot(zeros(5, 1))": r"shapes \(5, 2\) and \(5, 1\)",
        "V.scale(small(3))": r"factors of shape \(3,\) for 2 columns",
        "as_operator(len, shape=5, device=d)": "shape: got 5; give two",
        "as_operator(len, shape=(-5, 5), device=d)": r"shape: got \(-5, 5\)",
        "BlockVector(small(2, 2, 2))": r"3 dimensions, shape \(2, 2, 2\)",
        "BlockVector.zeros(-1, 2, device=d)": "n_rows: got -1",
        "BlockVector.zeros(3, 2.5, device=d)": r"n_cols: got 2\.5",
        "A @ zeros(4, 2)": "A is 5 x 5 but X has 4 rows",
        "A.apply(V, shift=small(3))": r"shifts of shape \(3,\) for 2 columns",
        "R.apply(V, shift=1)": "square operator, A is 2 x 5",
        "A.apply(V, zeros(5, 1))": r"out has shape \(5, 1\) but the result has \(5, 2\)",
        "A.apply(V, z=zeros(5, 1))": r"z has shape \(5, 1\), the result \(5, 2\)",
        "function(lambda X: X[:2]) @ V": r"the operator returned shape \(2, 2\)",
        "function(lambda X, out: X[:, 0]) @ V": r"the operator returned shape \(5,\)",
        "V.combine_dot(small(2, 2), zeros(4, 3))": "5 rows but the basis W has 4",
        "V.combine_dot(small(3, 2), zeros(5, 3))": r"\(3, 2\) but must have \(2, 2\)",
        "V.update_gram(zeros(5, 3), small(2, 2))": r"\(2, 2\) but must have \(3, 2\)",
        "as_operator(np.zeros((2, 2, 2)))": "3 dimensions",
        "R.affine(1, 0)": "affine: A is 2 x 5; a shift needs a square one",
        "R.check_hermitian()": "A is 2 x 5",
        "R.apply(V, dots='xx')": "X has 5 rows and Y 2; 'x[xy]' is for square operators",
        "R.apply(V, dots='xy')": "X has 5 rows and Y 2; 'x[xy]' is for square operators",
        "R.apply(V, gram='xy')": "X has 5 rows and Y 2; 'x[xy]' is for square operators",
        "as_operator(small(2, 5)).apply(V, dots='xx')": "X has 5 rows and Y 2",
        "A + as_operator(small(4, 4))": r"A \+ B: got shapes \(5, 5\) and \(4, 4\)",
        "blockvec.inverse_factor(small(2, 3))": r"\(2, 3\) but must be square",
        "RowFunction(lambda xp, x, y: (x,))(small(3), small(2), out=(small(3),))": r"\(3,\), \(2,\), \(3,\)",
        "blockvec.factorize(sp.csr_array((0, 0)))": "A has no rows",
        "blockvec.factorize(lattice, sp.eye_array(3), device=d)": "factorize: A is 9 x 9, M 3 x 3",
        "blockvec.factorize(lattice, device=d).solve(zeros(3, 3))": r"solve: B is \(3, 3\)",
    },
    DTypeError: {
        "V.dot(Z, out=small(2, 2))": "out holds float64 but the result is complex128",
        "V.dot(V, alpha=1j, out=small(2, 2))": "out holds float64 but the result is complex128",
        "V.dot(V.T)": "both operands are tall",
        "V.dot(V, alpha=small(2))": "alpha",
        "V.T @ V.T": "both operands are tall",
        "V.T @ S": r"write V\.T @ \(S @ V\)",
        "V.T @ sp.eye_array(5).tocsr()": r"csr_array.*as_operator\(A\) @ V",
        "V @ V": r"2 rows.*V\.H @ W",
        "V @ V.T": r"got .*\.T; C is a small array with 2 rows.*V @ \(W\.T @ X\)",
        "V @ S": "S @ V",
        "S @ S": r"S @ \(T @ V\)",
        "small(2, 2) @ V.T": r"asarray\(V\.T\)",
        "V.combine(small(2, 2), out=single)": "out holds float32 but the result is float64",
        "V.axpy(1, Z)": "complex128 result does not fit into a float64 block",
        "V.scale(2j)": "complex128 result does not fit into a float64 block",
        "BlockVector(small(3, 2, dtype='int64'))": "int64 is not.*float32, .*dtype='float64'",
        "BlockVector(small(3, 2, dtype='float16'))": "float16 is not supported",
        "BlockVector([[1.0]])": "got a list",
        "A.apply(V, single)": "out holds float32 but the result is float64",
        "A.apply(V, zeros(5, 2), shift=1j)": "out holds float64 but the result is complex128",
        "A.apply(V, z=single)": "the result holds float64, z float32",
        "A.apply(V, z=zeros(5, 2), eta=1j)": r"z float64, delta z \+ eta y complex128",
        "function(lambda X, out: X.astype('int64')) @ V": "int64 is not supported",
        "V.combine_dot(small(2, 2) * 1j, zeros(5, 3))": "complex128",
        "V.update_gram(zeros(5, 3), small(3, 2) * 1j)": "float64, but .* columns are complex128",
        "Z.astype('float64')": r"V\.array\.real",
        "V.dot(V, alpha=Fraction(1, 2))": "alpha: got a Fraction",
        "V.dot(V, alpha='2')": "alpha: got a str",
        "V.dot(V, alpha=None)": "alpha: got a NoneType",
        "as_operator('matrix')": "A is a str",
        "as_operator(np.zeros((2, 2), object))": "object is not supported",
        "A.converted('float16')": "float16",
        "blockvec.inverse_factor([[1.0]])": r"got a list; .* convert with numpy\.asarray first",
        "blockvec.start_copy([[1.0]])": r"got a list; .* convert with numpy\.asarray first",
        "blockvec.inverse_factor(small(2, 2, dtype='int64'))": "int64",
        "chain.converted('complex64')": "elements are real, got dtype=complex64",
        "blockvec.orthogonalize(np.ones((4, 2)))": r"W is a ndarray; .* BlockVector\(W\)",
    },
    LayoutError: {
        "V.dot(V, out=V.array[:2])": "out shares memory",
        "small(3, 5) @ V": r"C of shape \(3, 5\).*BlockVector\(C\.T, copy=True\)",
        "V[:, :1].combine(small(1, 2), out=V)": "not its leading columns",
        "V[:4].combine(small(2, 2), out=V[1:])": "not its leading columns",
        "W[:, 1:3].axpy(1, W[:, :2])": "shares memory with an operand",
        "BlockVector(small(2, 5).T)": r"strides \(8, 40\).*copy=True",
        "BlockVector(small(5, 4)[:, ::2])": r"unit column stride \(here 8\)",
        "BlockVector(small(5, 4)[::-1])": "copy=True",
        "A.apply(V, V)": "out shares memory with X",
        "A.apply(V, V, dots='xx')": "out shares memory with X",
        "A.apply(V, z=V)": "z shares memory with X",
        "A.apply(V, W[:5, :2], z=W[:5, 1:3])": "z shares memory with out",
        "W[:, :2].update_gram(W, small(4, 2))": "memory with the basis",
        "W[:, 1:3].combine_dot(small(2, 2), W[:, :2])": "memory with the basis",
        "BlockVector(C).combine_dot(C, zeros(2, 3))": "memory with C",
        "V[::2]": "range with step 2.*copy=True",
        "V[:, ::-1]": "range with step -1",
    },
    OptionError: {
        "V.dot(V, beta=2)": "beta=2 needs out=",
        "V.combine(small(2, 2), beta=1)": "beta=1 needs out=",
        "BlockVector.random(3, 2, first_row=-1, device=d)": "first_row: got -1",
        "BlockVector.random(3, 2, distribution='cauchy')": "'cauchy'; give 'uniform' or 'normal'",
        "A.apply(V, beta=2)": "beta=2 needs out=",
        "A.apply(V, dots=('xx', 'yx'))": "dots='yx' is not known; give some of xx, xy, yy",
        "A.apply(V, gram='xx')": "gram='xx' is not known; give some of xy, yy",
        "as_operator(lambda X: X)": r"give shape=\(n, n\)",
        "as_operator(len, shape=(4, 4), order='F')": "order: got 'F'",
        "as_operator(np.eye(4), order='A')": "order: tells what a function takes",
        "A.affine(1, np.arange(5))": r"affine: shift has shape \(5,\); give a number",
        "A.affine(0, 1)": "affine: got alpha=0; give another factor",
        "np.nan * A": "give a finite number",
        "np.inf * A": "give a finite number",
        "1e200 * (1e200 * A)": "finite number",
        "10**400 * A": "finite number",
        "A / 0": "give another divisor than zero",
        "function(len).H": r"A\.H: FunctionOperator.* no adjoint; give .*is_hermitian = True",
        "as_operator(bare).H": "LinearOperator with rmatmat",
        "blockvec.explain('gram', V, V)": "got 'gram'.*'dot' or 'combine'",
        "blockvec.explain('apply', S, V)": "user's function",
        "blockvec.factorize(np.nan * lattice, device=d)": "A holds NaN or Inf",
        "blockvec.factorize(lattice, sigma=np.nan, device=d)": "sigma: got nan",
        "blockvec.open_matrix(5)": "got 5; give a path, or a model",
        "blockvec.replace(['sklearn']).__enter__()": "give one of",
        "models.operator('laplace1d:n=4')": r"stored as a matrix; use model\(\), or one of xxz and hubbard",
        "models.operator('xxz:sites=4,up=5')": "up=5; it must be between 0 and sites=4",
        "models.operator('xxz:sites=4,up=2,j=1e308,delta=100')": "elements exceed the largest float64",
        "models.operator('hubbard:sites=40,up=1,down=1,u=1')": "states of at most 62 bits, this one of 80",
        "models.operator('xxz:sites=60,up=30').prepared.cuts(1)": "at most 16777216 blocks",
        "A.prepare(V, zeros(5, 2), repeat=0)": "repeat=0",
        "A.prepare(V, zeros(5, 2), repeat=-1)": "repeat=-1",
    },
    DeviceError: {
        "chain.to_host()": "are not stored",
        "backend_for('cuda:99')": "'cuda:99'.*(pip install|nvidia-smi|give 'cpu')",
        "BlockVector.zeros(3, 2, device=None)": "None.*give 'cpu', 'gpu' or 'cuda:0'",
        "BlockVector.zeros(3, 2, device=0)": "0.*give 'cpu', 'gpu' or 'cuda:0'",
        "BlockVector.zeros(3, 2, device='tpu')": "'tpu'.*give 'cpu', 'gpu' or 'cuda:0'",
        "BlockVector.zeros(3, 2, device='cuda')": "'cuda'",
        "BlockVector.zeros(3, 2, device='cuda:x')": "'cuda:x'",
        "BlockVector.zeros(3, 2, device='')": "''",
        "BlockVector.zeros(3, 2, device='gpu:0')": "'gpu:0'",
    },
    IndexError: {"V[:, 2]": "2 is out of range for"},
    AttributeError: {
        "V.reshape(2, 5)": r"no attribute 'reshape'; V\.array\.reshape",
        "V.rows": r"no attribute 'rows'\.$",
    },
    TypeError: {
        "iter(V)": ".",
        "len(V)": ".",
        "V + 'text'": ".",
        "V @ 'text'": ".",
        "A + None": ".",
        "A + '2'": ".",
        "A + np.ones(3)": ".",
        "A * '2'": ".",
        "A * None": ".",
    },
    ValueError: {"bool(V)": "ambiguous", "bool(V == W[:5, :2])": "ambiguous"},
}
ATTEMPTS = [
    pytest.param(attempt, error, message, id=attempt)
    for error, attempts in REFUSED.items()
    for attempt, message in attempts.items()
]


def names_on(device: str) -> dict[str, Any]:
    """Return what attempts are made of."""

    def small(*shape: int, dtype: str = "float64") -> Any:
        return on(device, np.zeros(shape, dtype))

    def zeros(K: int, M: int, dtype: str = "float64") -> BlockVector:
        return BlockVector.zeros(K, M, dtype, device=device)

    def function(f: Any) -> Any:
        return as_operator(f, shape=(5, 5), device=device)

    matrices = {"A": sp.eye_array(5, format="csr"), "R": sp.csr_array((2, 5))}
    return {
        **{"np": np, "sp": sp, "Fraction": Fraction, "bare": bare, "backend_for": backend_for},
        **{"blockvec": blockvec, "BlockVector": BlockVector, "RowFunction": RowFunction},
        **{"as_operator": as_operator, "models": models},
        **{"d": device, "small": small, "zeros": zeros, "function": function, "C": small(2, 2)},
        **{"V": zeros(5, 2), "W": zeros(6, 4), "Z": zeros(5, 2, "complex128")},
        **{"single": zeros(5, 2, "float32"), "S": as_operator(small(5, 5))},
        **{name: as_operator(matrix, device=device) for name, matrix in matrices.items()},
        **{"lattice": models.laplace2d(n=3), "chain": models.operator("xxz:sites=4,up=2", device=device)},
    }


@pytest.mark.parametrize(("attempt", "error", "message"), ATTEMPTS)
def test_it_is_refused_with_both_values(
    device: str, attempt: str, error: type[Exception], message: str
) -> None:
    names = names_on(device)
    with pytest.raises(error, match=message) as caught:
        eval(attempt, names)
    if issubclass(error, BlockvecError):  # a sentence, which starts by saying what was being done or given
        assert re.fullmatch(r".*([.)]|Example: \S+)", str(caught.value), re.DOTALL)


def test_results_do_not_go_into_read_only_arrays() -> None:
    names = names_on("cpu") | {"I": np.eye(2), "fixed": BlockVector.zeros(5, 2)}
    names["fixed"].array.flags.writeable = False
    for attempt in (
        *("V.combine(I, out=fixed)", "V.dot(V, out=np.broadcast_to(0.0, (2, 2)))", "fixed.axpy(1, V)"),
        *("fixed.scale(2)", "fixed.combine_dot(I, V)", "fixed.update_gram(V, I)"),
        *("fixed.__setitem__((slice(None), slice(None)), V)", "S.apply(V, out=fixed)"),
        *("A.apply(V, out=fixed)", "A.apply(V, out=fixed[:, :])", "A.apply(V, z=fixed)"),
    ):
        with pytest.raises(LayoutError, match="read-only; give a writable array"):
            eval(attempt, names)
    assert not names["fixed"].array.any()


def test_masks_are_refused_and_other_subclasses_are_arrays() -> None:
    plain = np.arange(10.0).reshape(5, 2)
    names = names_on("cpu") | {"masked": np.ma.masked_greater(plain, 5.0)}
    for attempt in (
        *("BlockVector(masked)", "BlockVector(masked, copy=True)", "V.dot(masked)", "V.combine(masked[2:4])"),
        *("as_operator(masked[2:4])", "S @ masked"),
    ):
        with pytest.raises(DTypeError, match=r"masked elements.*a\.filled\(0\)"):
            eval(attempt, names)
    unmasked = np.ma.masked_greater(plain, 100.0)
    assert type(BlockVector(unmasked).array) is np.ndarray
    assert np.shares_memory(BlockVector(unmasked).array, plain) == np.shares_memory(unmasked.data, plain)


@pytest.mark.gpu
def test_operands_on_different_devices_are_refused() -> None:
    names = names_on("cpu") | {f"{name}_gpu": value for name, value in names_on("gpu").items()}
    for attempt in (
        *("V.dot(V_gpu)", "V_gpu.dot(V)", "V_gpu + V", "V.axpy(1, V_gpu)", "V.column_dot(V_gpu)"),
        *("V @ C_gpu", "V_gpu @ C", "V.dot(V, out=C_gpu)", "V_gpu.combine(C_gpu, out=V)", "A_gpu @ V"),
        *("A.apply(V, V_gpu)", "A_gpu.apply(V_gpu, z=V)", "A + A_gpu", "V_gpu.update_gram(V, C_gpu)"),
    ):
        with pytest.raises(DeviceError, match=r"cpu.*cuda:0|cuda:0.*cpu|one operand is on"):
            eval(attempt, names)


def test_a_refused_operation_leaves_its_output_as_it_was(device: str) -> None:
    V = BlockVector.full(6, 4, 3.0, device=device)
    with pytest.raises(LayoutError):
        V[:, :2].combine(on(device, np.eye(2)), out=V[:, 1:3])
    assert (host(V) == 3).all()


def test_a_matrix_in_half_precision_is_factorised_in_double() -> None:
    A = np.diag(np.arange(1, 5)).astype(np.float16)
    assert np.allclose(blockvec.factorize(A).solve(np.ones(4)).array.ravel(), 1 / np.arange(1, 5))
