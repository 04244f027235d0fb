"""Y = alpha (A - shift I) X + beta Y for everything that can be an operator, on every backend."""

from __future__ import annotations

import functools
import gc
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator
from blockvec.errors import BreakdownError, DTypeError, LayoutError, OptionError, ShapeError
from blockvec.operations.arrays import overlaps
from blockvec.operators import adapters
from blockvec.operators.sparse import SparseOperator
from tests.contract.blocks import (
    DTYPES,
    FORMS,
    Reference,
    dtypes,
    exact_values,
    host,
    kept,
    on,
    random_matrix,
    seeds,
    untidy,
    values,
)
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("jit")
widths = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33])


def linalg(device: str) -> Any:
    """The module of linear operators for arrays of a device."""
    return importlib.import_module("scipy.sparse.linalg" if device == "cpu" else "cupyx.scipy.sparse.linalg")


matrices_sizes = st.tuples(st.integers(0, 70), st.integers(0, 70))


@pytest.mark.parametrize(
    ("dtype", "kind", "shift", "turns", "width"),
    pairwise(
        DTYPES,
        ("short rows", "long rows", "dense", "function", "affine", "multiple", "sum"),
        (2, (1, 2, 0, -1)),
        (1, 2, 3, 5),
        (1, 3, 4),
    ),
)
def test_a_prepared_product_repeats_the_product(
    device: str, dtype: str, kind: str, shift: Any, turns: int, width: int
) -> None:
    """Two blocks take turns in a call; a single product of each call is repeated until it is converted."""
    rng = np.random.default_rng(turns)
    A = exact_values(rng, (90, 90), dtype)
    turns = (
        turns if dtype in ("float64", "complex128") else min(turns, 2)
    )  # numbers grow, and are to be exact
    if kind not in ("long rows", "dense"):
        A *= rng.random(A.shape) < 0.1
    x, y = (exact_values(rng, (90, width), dtype) for _ in range(2))
    matrix = on(device, A)
    op: Any = as_operator(matrix) if kind == "dense" else as_operator(sp.csr_array(A), device=device)
    if kind == "function":
        op = as_operator(lambda X: matrix @ X, shape=A.shape, dtype=A.dtype, device=device)
    elif kind == "affine":
        op, A = op.affine(2, 1), (2 * (A - np.eye(90))).astype(dtype)
    elif kind == "multiple":
        op, A = 2 * op, 2 * A
    elif kind == "sum":
        op, A = op + as_operator(matrix), 2 * A
    shifts = np.full(width, shift, x.real.dtype) if shift == 2 else np.array(shift[:width], x.real.dtype)
    X, Y = BlockVector(on(device, x)), BlockVector(on(device, y))
    given = 2 if shift == 2 else on(device, shifts)
    again = op.prepare(X, Y, alpha=1, beta=-1, shift=given, repeat=turns)
    for call in range(60 if turns == 1 else 2):
        again()
        for _ in range(turns):
            x, y = (A @ x - shifts * x) - y, x
        if turns % 2:
            x, y = y, x  # each call begins with X
        if call < 2 or call > 57:
            assert np.array_equal(host(X), x), call
            assert np.array_equal(host(Y), y), call
    X[:, :] = 0
    if turns == 1:
        again()
        assert np.array_equal(host(Y), -y)


def test_a_prepared_product_keeps_its_operator(device: str) -> None:
    A = sp.diags_array(np.arange(1.0, 1001.0)).tocsr()
    X, Y = (BlockVector(on(device, np.ones((1000, 2)))) for _ in range(2))
    products = [as_operator(A, device=device).prepare(X, Y, repeat=turns) for turns in (1, 3)]
    gc.collect()
    taken = [on(device, np.full(size, 7.0)) for size in (1000, 1001, 2000) for _ in range(50)]
    for product, power in zip(products, (1, 3), strict=True):
        X[:, :] = 1
        product()
        assert np.array_equal(host(Y)[:, 0], np.arange(1.0, 1001.0) ** power), len(taken)


def test_factors_of_a_prepared_product_are_those_of_a_product(device: str) -> None:
    A = as_operator(sp.eye_array(4, format="csr") * 2.0, device=device)
    X, Y = (BlockVector(on(device, np.ones((4, 3)))) for _ in range(2))
    A.prepare(X, Y, shift=on(device, np.array([1.0, 2.0, 3.0])))()
    assert host(Y).tolist() == 4 * [[1, 0, -1]]
    for wrong in ({"alpha": 2j}, {"beta": 2j}, {"shift": 1j}, {"shift": [1.0, 2.0]}):
        with pytest.raises((DTypeError, ShapeError)):
            A.prepare(X, Y, **wrong)()
        with pytest.raises((DTypeError, ShapeError)):
            A.prepare(X, Y, **wrong, repeat=2)()
    with pytest.raises(DTypeError):
        A.affine(2j, 0).prepare(X, Y)()


def test_a_prepared_product_is_the_one_that_its_user_wrote_and_checks_its_operands(device: str) -> None:
    class Doubled(SparseOperator):
        def apply(self, X: Any, out: Any = None, *arguments: Any, **options: Any) -> Any:
            return super().apply(X, out, *arguments, **options).scale(2)

    matrix = sp.eye_array(4, format="csr")
    X, Y = (BlockVector(on(device, np.ones((4, 1)))) for _ in range(2))
    op = as_operator(matrix, device=device)
    Doubled(matrix, as_operator(np.eye(2)).backend).prepare(X.to_host(), out := Y.to_host())()
    assert out.array.tolist() == 4 * [[2]]
    for wrong, error in ((X, LayoutError), (BlockVector(on(device, np.ones((3, 1)))), ShapeError)):
        with pytest.raises(error, match="out"):
            op.prepare(X, wrong)()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("density", [0.1, 1.0], ids=["short rows", "long rows"])
@pytest.mark.parametrize(("alpha", "shift"), [(2j, 0.5), (2, 0.5j), (np.float64(2), 1), (2, np.float64(1))])
def test_affine_factors_may_widen_the_type(
    device: str, dtype: str, density: float, alpha: complex, shift: complex
) -> None:
    rng = np.random.default_rng(4)
    A, X = (exact_values(rng, shape, dtype) for shape in ((60, 60), (60, 7)))
    A *= rng.random(A.shape) < density
    op = as_operator(sp.csr_array(A), device=device)
    V = on(device, X)
    for affine in (op.affine(alpha, shift), op.affine(1, 0).affine(alpha, shift)):
        Y = affine @ V
        assert Y.dtype == op.apply(V, alpha=alpha, shift=shift).dtype == affine.dtype
        assert np.array_equal(host(Y), alpha * (A @ X - shift * X))
        assert np.array_equal(host(affine.apply(V, alpha=2, shift=1)), 2 * (host(Y) - X))


def test_an_affine_operator_applies_what_its_user_wrote() -> None:
    class Projected(SparseOperator):
        def apply(self, X: Any, *arguments: Any, **options: Any) -> Any:
            Y = super().apply(X, *arguments, **options)
            Y.array[0] = 0
            return Y

    op = Projected(sp.eye_array(4, format="csr"), as_operator(np.eye(2)).backend)
    assert (op.affine(2, 0) @ np.ones((4, 1))).array.tolist() == [[0], [2], [2], [2]]


@given(matrices_sizes, widths, dtypes, dtypes, st.integers(-300, 300), seeds)
def test_a_converted_operator_has_the_entries_of_the_converted_matrix(
    device: str, sizes: tuple[int, int], width: int, dtype: str, wanted: str, exponent: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    single = np.dtype(dtype).char in "fF"
    A = random_matrix(rng, sizes, dtype, 0.2) * np.dtype(dtype).type(1 if single else 2.0**exponent)
    factor = 1.0 if single else 2.0**-exponent
    op = as_operator(A, device=device)
    if np.dtype(dtype).kind == "c" and np.dtype(wanted).kind != "c":
        with pytest.raises(DTypeError, match=f"converted: A is {dtype}, got dtype={wanted}; give a complex"):
            op.converted(wanted, factor)
        return
    X = values(rng, (sizes[1], width), wanted)
    made = op.converted(wanted, factor)
    assert (made.shape, made.dtype, made.device, made.nnz) == (op.shape, np.dtype(wanted), op.device, op.nnz)
    expected = as_operator((A * factor).astype(wanted)) @ BlockVector(X)
    Y = made @ BlockVector(on(device, X))
    assert Reference.of((A * factor).astype(wanted).toarray(), X, wanted).accepts(Y)
    assert device != "cpu" or np.array_equal(host(Y), host(expected))
    assert op.dtype == dtype


def with_indices(dense: Any, index: str) -> Any:
    A = sp.csr_array(dense)
    return sp.csr_array((A.data, A.indices.astype(index), A.indptr.astype(index)), shape=A.shape)


MADE: dict[str, Callable[[Any], Any]] = {
    **{form.__name__: form for form in (*FORMS, sp.dia_matrix, sp.lil_array)},
    **{index: functools.partial(with_indices, index=index) for index in ("int32", "int64")},
    **{f"sparse {kind}": lambda A, kind=kind: sp.csr_array(A.astype(kind)) for kind in ("int8", "int32")},
    **{f"dense {kind}": lambda A, kind=kind: A.astype(kind) for kind in ("int8", "int64", "float32")},
    "bool": lambda A: sp.csr_array(A == 1),
}


@pytest.mark.parametrize("name", MADE)
def test_every_form_of_a_matrix_is_taken_and_integers_are_promoted(device: str, name: str) -> None:
    rng = np.random.default_rng(2)
    A, X = MADE[name](exact_values(rng, (40, 30), "float64")), exact_values(rng, (30, 3), "float64")
    op = as_operator(A, device=device)
    assert (op.shape, op.dtype) == ((40, 30), A.dtype if A.dtype.kind == "f" else np.float64)
    assert np.array_equal(host(op @ BlockVector(on(device, X))), A @ X)


@pytest.mark.parametrize(
    ("form", "dtype", "writeable"), pairwise(FORMS, ("float64", "complex128"), (True, False))
)
def test_products_leave_the_users_matrix_as_it_is(
    device: str, form: Any, dtype: str, writeable: bool
) -> None:
    half = exact_values(np.random.default_rng(8), (30, 30), dtype)
    dense = half + half.conj().T
    A = untidy(dense, form, writeable=writeable)
    X = exact_values(np.random.default_rng(9), (30, 3), dtype)
    block = BlockVector(on(device, X))
    with kept(A):
        op = as_operator(A, device=device)
        op.check_hermitian(0)
        assert np.array_equal(host(op @ block), dense @ X)
        assert np.array_equal(host(op.affine(2, 3) @ block), 2 * (dense @ X - 3 * X))
        shifted = op.apply(block, shift=1, dots="xy", gram="xy").Y
        assert np.array_equal(host(shifted), dense @ X - X)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_matrices_of_cupy_share_their_arrays(dtype: str) -> None:
    import cupyx.scipy.sparse as csp

    A = random_matrix(np.random.default_rng(8), (50, 50), dtype, 0.2)
    there = csp.csr_matrix(sp.csr_matrix(A))
    op = as_operator(there)
    assert op.device == "cuda:0"
    X = values(np.random.default_rng(9), (50, 3), dtype)
    V = BlockVector(on("gpu", X))
    assert Reference.of(A.toarray(), X, dtype).accepts(op @ V)
    there.data *= 2
    assert Reference.of(2 * A.toarray(), X, dtype).accepts(op @ V)
    assert Reference.of(2 * A.toarray(), X, dtype).accepts(as_operator(there.tocsc()) @ V)
    on_host = as_operator(there, device="cpu") @ BlockVector(X)
    assert on_host.device == "cpu"
    assert Reference.of(2 * A.toarray(), X, dtype).accepts(on_host)


def test_a_linear_operator_is_called_once_a_block(device: str) -> None:
    A = exact_values(np.random.default_rng(13), (10, 10), "float64")
    here, calls = on(device, A), []

    def matmat(X: Any) -> Any:
        calls.append(X.shape)
        assert X.flags.c_contiguous or X.shape[1] < 4
        return here @ X

    operator = linalg(device).LinearOperator(
        (10, 10), matvec=lambda x: here @ x, matmat=matmat, dtype="float64"
    )
    op = as_operator(operator)
    X, Y = (exact_values(np.random.default_rng(seed), (10, 4), "float64") for seed in (14, 15))
    out = BlockVector(on(device, Y))
    op.apply(BlockVector(on(device, X)), out, alpha=2, beta=3, shift=4)
    assert calls == [(10, 4)]
    assert np.array_equal(host(out), 2 * (A @ X - 4 * X) + 3 * Y)


def test_a_linear_operator_with_matvec_alone_works_and_warns_once(device: str) -> None:
    A = exact_values(np.random.default_rng(16), (10, 8), "float64")
    here = on(device, A)
    operator = linalg(device).LinearOperator((10, 8), matvec=lambda x: here @ x, dtype="float64")
    with pytest.warns(UserWarning, match="matvec only.*Define matmat"):
        op = as_operator(operator)
    X = exact_values(np.random.default_rng(17), (8, 3), "float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert np.array_equal(host(op @ BlockVector(on(device, X))), A @ X)


@pytest.mark.parametrize("returns", ["nothing", "out", "another array"])
@pytest.mark.parametrize("beta", [0, 2])
@pytest.mark.parametrize("columns", [slice(0, 3), slice(1, 4)], ids=["contiguous", "view"])
def test_a_function_may_write_its_result_where_it_belongs(
    device: str, columns: slice, beta: int, returns: str
) -> None:
    A = exact_values(np.random.default_rng(18), (6, 6), "float64")
    X, Y = (exact_values(np.random.default_rng(seed), (6, 3), "float64") for seed in (19, 20))
    given = []

    def double(B: Any, out: Any) -> Any:
        given.append(out)
        product = on(device, A) @ B
        if returns == "another array":
            return product
        out[...] = product
        return None if returns == "nothing" else out[:, :]

    wide = BlockVector.zeros(6, 3 if columns.start == 0 else 5, device=device)
    out = wide[:, columns]
    out[:, :] = on(device, Y)
    op = as_operator(double, shape=(6, 6), device=device)
    op.apply(on(device, X), out, alpha=-1, beta=beta, shift=3)
    assert np.array_equal(host(out), -(A @ X - 3 * X) + beta * Y)
    assert given[0].flags.c_contiguous
    assert overlaps(given[0], out.array) == (beta == 0 and columns.start == 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hermitian_matrices_pass_the_check_and_others_do_not(device: str, dtype: str) -> None:
    rng = np.random.default_rng(22)
    B = values(rng, (80, 80), dtype)
    H = B + B.conj().T
    as_operator(sp.csr_array(H), device=device).check_hermitian()
    as_operator(on(device, H)).check_hermitian()
    symmetric = H + 1j * np.abs(H).max() * (np.eye(80, k=1) + np.eye(80, k=-1))  # not Hermitian
    H[3, 5] *= 1 + 100 * np.sqrt(np.finfo(dtype).eps)
    H[3, 5] += np.abs(H).max()
    for A in (H, symmetric.astype(np.result_type(dtype, np.complex64))):
        for op in (as_operator(sp.csr_array(A), device=device), as_operator(on(device, A))):
            with pytest.raises(OptionError, match="A is not Hermitian"):
                op.check_hermitian()


def test_nan_fails_the_check_with_its_own_error_and_what_is_empty_passes(device: str) -> None:
    broken = sp.csr_array(np.diag([1.0, np.nan, 2.0]))
    with pytest.raises(BreakdownError, match="NaN or Inf"):
        as_operator(broken, device=device).check_hermitian()
    as_operator(sp.csr_array((0, 0)), device=device).check_hermitian()
    as_operator(sp.csr_array(np.zeros((4, 4))), device=device).check_hermitian()


def broken(form: str, name: str, place: int, value: int, *, of_cupy: bool = False) -> Any:
    """A sparse matrix of 6 x 4 in a format, changed in place after its library's own checks."""
    matrix = sp.random_array((6, 4), density=0.5, format="csr", rng=np.random.default_rng(0))
    if of_cupy:
        matrix = importlib.import_module("cupyx.scipy.sparse").csr_matrix(sp.csr_matrix(matrix))
    matrix = matrix.tobsr((2, 2)) if form == "bsr" else matrix.asformat(form)
    getattr(matrix, name)[place] = value
    return matrix


@pytest.mark.parametrize(
    ("form", "name", "place", "value"),
    [
        *(("csr", "indices", *change) for change in ((3, 4), (0, -1), (-1, 2**31 - 1))),
        *(("csr", "indptr", *change) for change in ((0, 1), (-1, 1000), (2, 12), (2, -1))),
        *(("csc", "indices", 3, 6), ("csc", "indptr", -1, 1000), ("bsr", "indices", 0, 2)),
        *(("coo", "row", 0, 6), ("coo", "col", 0, 4), ("coo", "col", 0, -5)),
    ],
)
def test_indices_outside_of_a_sparse_matrix_are_refused(
    device: str, form: str, name: str, place: int, value: int
) -> None:
    for of_cupy in (False,) if device == "cpu" or form == "bsr" else (False, True):
        with pytest.raises(OptionError, match=r"indices from -?\d+ to \d+ for [234 6]+ (row|column)s"):
            as_operator(broken(form, name, place, value, of_cupy=of_cupy), device=device)


def test_a_sparse_matrix_with_too_few_row_pointers_is_refused(device: str) -> None:
    matrix = sp.random_array((6, 4), density=0.5, format="csr")
    matrix.indptr = matrix.indptr[:-1]
    with pytest.raises(OptionError, match=r"6 row pointers \(indptr\) for 6 rows"):
        as_operator(matrix, device=device)


def test_the_check_of_indices_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(A: Any) -> None:
        raise AssertionError("checked")

    monkeypatch.setattr(adapters, "_check_indices", refuse)
    matrix = sp.eye_array(3).tocsr()
    assert (as_operator(matrix, check_indices=False) @ np.eye(3)).array.tolist() == np.eye(3).tolist()


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 2)])
def test_empty_matrices_pass_the_check_of_indices(form: str, shape: tuple[int, int]) -> None:
    assert as_operator(sp.csr_array(shape).asformat(form)).nnz == 0


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_products_keep_denormal_numbers(device: str, dtype: str) -> None:
    tiny, n = np.finfo(dtype).tiny / 8, 300
    A = sp.diags_array([np.ones(n - 1), np.full(n, 2.0), np.ones(n - 1)], offsets=[-1, 0, 1], format="csr")
    for matrix in (A.astype(dtype), sp.csr_array(A.toarray().astype(dtype) * tiny)):
        ones = np.full((n, 3), tiny if matrix[0, 0] == 2 else 1, dtype)
        expected = np.full((n, 3), 4 * tiny, dtype)
        expected[[0, -1]] = 3 * tiny
        assert np.array_equal(
            host(as_operator(matrix, device=device) @ BlockVector(on(device, ones))), expected
        )


def test_products_of_blocks_without_columns_touch_no_memory(device: str) -> None:
    A = as_operator(
        sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(12, 12)).tocsr(), device=device
    )
    guarded = BlockVector.full(24, 2, 7.0, device=device)
    empty = guarded[:12, :0]
    A.apply(empty, out=guarded[12:, 1:1])
    assert (A @ empty).shape == (12, 0)
    assert bool((guarded == 7).all())


def test_a_function_that_takes_columns_is_given_them_without_a_copy() -> None:
    X, seen = np.asfortranarray(np.eye(4, 2)), []

    def double(Y: Any) -> Any:
        seen.append(Y)
        return 2 * Y

    for order in ("C", "A"):
        operator = as_operator(double, shape=(4, 4), order=order)
        Y = np.ones((4, 2), order="F")
        operator.apply_columns(X, Y, beta=1)
        assert np.array_equal(Y, 1 + 2 * X)
        assert np.shares_memory(seen[-1], X) == (order == "A")
        assert np.array_equal(operator.apply(BlockVector(np.ones((4, 2)))).array, np.full((4, 2), 2.0))
