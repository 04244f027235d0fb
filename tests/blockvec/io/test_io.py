"""Matrix Market files, sound and broken, and blocks on disk."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from blockvec import io, models, open_matrix
from blockvec.errors import DTypeError, FormatError, LayoutError, OptionError, ShapeError
from blockvec.io import matrixmarket
from blockvec.system import memory

GENERAL = "%%MatrixMarket matrix coordinate real general\n"


@pytest.fixture
def mtx(tmp_path: Path) -> Path:
    return tmp_path / "matrix.mtx"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


# Real files


def test_real_files_have_the_sizes_types_and_symmetries_on_record(matrices: Path) -> None:
    records = json.loads((matrices / "reference_eigenvalues.json").read_text())
    files = {path.stem: path for path in matrices.glob("*.mtx") if path.stem in records}
    assert len(files) >= 20
    for name, path in files.items():
        record, A = records[name], io.read_matrix(path)
        assert isinstance(A, scipy.sparse.csr_array)
        assert A.shape == (record["n"], record["n"])
        assert A.nnz == record["nnz"]
        assert A.dtype == record["dtype"]
        assert A.indices.dtype == A.indptr.dtype == np.int32
        assert A.has_canonical_format
        assert (abs(A - A.conj().T).max() <= 1e-14 * abs(A).max()) == record["hermitian"], name


# Round trips

FIELDS = {"real": np.float64, "complex": np.complex128, "integer": np.int64, "pattern": np.float64}


def random_matrix(n: int, field: str, symmetry: str, rng: np.random.Generator) -> np.ndarray:
    A = rng.standard_normal((n, n)) * 10.0 ** rng.integers(-12, 12, (n, n))
    if field == "complex":
        A = A + 1j * rng.standard_normal((n, n))
    if field == "integer":
        A = rng.integers(-1000, 1000, (n, n))
    if field == "pattern":
        A = np.ones((n, n))
    A = np.where(rng.random((n, n)) < 0.4, A, 0)
    lower = np.tril(A, -1)
    if symmetry == "symmetric":
        A = lower + lower.T + np.diag(A.diagonal())
    elif symmetry == "skew-symmetric":
        A = lower - lower.T
    elif symmetry == "hermitian":
        A = lower + lower.conj().T + np.diag(A.diagonal().real)
    return A


KINDS = [
    (field, symmetry)
    for field in FIELDS
    for symmetry in ("general", "symmetric", "skew-symmetric", "hermitian")
    if (field == "complex" or symmetry != "hermitian") and (field, symmetry) != ("pattern", "skew-symmetric")
]


@pytest.mark.parametrize("layout", ["coordinate", "packed", "array"])
@pytest.mark.parametrize(("field", "symmetry"), KINDS)
def test_files_of_every_kind_come_back(
    field: str, symmetry: str, layout: str, mtx: Path, rng: np.random.Generator
) -> None:
    if layout == "array" and field == "pattern":
        pytest.skip("an array has values")
    A = random_matrix(9, field, symmetry, rng)
    stored = A if layout == "array" else scipy.sparse.coo_array(A)
    scipy.io.mmwrite(mtx, stored, field=field, symmetry=symmetry, precision=17)
    assert f"{field} {symmetry}" in mtx.read_text().splitlines()[0]
    if layout == "packed":
        mtx.write_bytes(gzip.compress(mtx.read_bytes()))
    B = io.read_matrix(mtx)
    assert isinstance(B, np.ndarray if layout == "array" else scipy.sparse.csr_array)
    assert B.dtype == (np.complex128 if field == "complex" else np.float64)
    np.testing.assert_array_equal(B if layout == "array" else B.toarray(), A)
    assert layout != "array" or B.flags.c_contiguous


def test_elements_given_twice_are_summed(mtx: Path) -> None:
    mtx.write_text(GENERAL + "2 3 4\n2 3 1\n1 1 5\n2 3 0.5\n2 1 4\n")
    A = io.read_matrix(mtx)
    assert A.nnz == 3
    assert A.has_canonical_format
    np.testing.assert_array_equal(A.toarray(), [[5, 0, 0], [4, 0, 1.5]])


@pytest.mark.parametrize(
    "body",
    [
        "2 2 2\n1 1 1.5\n2 1 -2E-3",
        "% a comment\n%\n\n2 2 2\n\n1 1 1.5\n   2\t1   -2.e-3  \n\n\n",
        "2 2 2\r\n1 1 1.5\r\n2 1 -.2e-2\r\n",
    ],
)
def test_comments_blank_lines_line_ends_and_ways_to_write_numbers_are_read(body: str, mtx: Path) -> None:
    mtx.write_bytes((GENERAL + body).encode())
    np.testing.assert_array_equal(io.read_matrix(mtx).toarray(), [[1.5, 0], [-0.002, 0]])


def test_values_that_are_not_finite_are_read(mtx: Path) -> None:
    mtx.write_text(GENERAL + "2 2 3\n1 1 nan\n1 2 -inf\n2 2 Infinity\n")
    np.testing.assert_array_equal(io.read_matrix(mtx).toarray(), [[np.nan, -np.inf], [0, np.inf]])


def test_a_matrix_without_elements_is_read(mtx: Path) -> None:
    mtx.write_text(GENERAL + "3 4 0\n")
    assert io.read_matrix(mtx).shape == (3, 4)


# Broken files


ARRAY, SKEW = GENERAL.replace("coordinate", "array"), GENERAL.replace("general", "skew-symmetric")
COMPLEX, INTEGER, PATTERN = (GENERAL.replace("real", field) for field in ("complex", "integer", "pattern"))
HERMITIAN = COMPLEX.replace("general", "hermitian")

BROKEN = {
    "empty": ("", 1, "this is no Matrix Market file"),
    "binary": ("\x89PNG\x00\xff" * 99, 1, "this is no Matrix Market file"),
    "unknown object": (GENERAL.replace("matrix", "vector"), 1, "found '%%MatrixMarket vector"),
    "unknown field": (GENERAL.replace("real", "quaternion"), 1, "real|double|complex|integer"),
    "array pattern": (ARRAY.replace("real", "pattern") + "1 1\n", 1, "a pattern has the coordinate format"),
    "no size line": (GENERAL + "% only this\n", 3, "the numbers of rows, columns and elements"),
    "short size line": (GENERAL + "2 2\n", 2, "the numbers of rows, columns and elements"),
    "negative size": (GENERAL + "-2 2 1\n1 1 1\n", 2, "found '-2 2 1'"),
    "array size line": (ARRAY + "2 2 4\n1\n2\n3\n4\n", 2, "the numbers of rows and columns"),
    "not square": (GENERAL.replace("general", "symmetric") + "2 3 1\n2 1 1\n", 2, "as many rows as columns"),
    "truncated": (GENERAL + "2 2 3\n1 1 1\n2 2 2\n", 4, "expected 3 as line 2 says: it is truncated"),
    "truncated in a line": (GENERAL + "2 2 2\n1 1 1\n2 2", 4, "found '2 2', expected a row"),
    "too many": (GENERAL + "2 2 1\n1 1 1\n\n2 2 2\n", 5, "expected the end of the file after 1"),
    "bad value": (GENERAL + "2 2 1\n1 1 x\n", 3, "found '1 1 x', expected a row"),
    "Fortran exponent": (GENERAL + "2 2 1\n1 1 1.0D+3\n", 3, "write exponents with E"),
    "leading plus": (GENERAL + "2 2 1\n1 1 +1.0\n", 3, "a number without a leading +"),
    "real value in a complex file": (COMPLEX + "1 1 1\n1 1 1\n", 3, "a real and an imaginary part"),
    "value in a pattern": (PATTERN + "1 1 1\n1 1 1\n", 3, "expected a row and a column index."),
    "fraction in an integer file": (INTEGER + "2 2 1\n1 2 5.5\n", 3, "a column index and an integer"),
    "integer too large": (INTEGER + "2 2 1\n1 2 99999999999999999999\n", 3, "Integer out of range"),
    "row too large": (GENERAL + "2 3 1\n3 1 1\n", 3, "found '3 1 1', expected a row index between 1 and 2"),
    "column zero": (GENERAL + "2 3 1\n1 0 1\n", 3, "found '1 0 1', expected a column index between 1 and 3"),
    "comment in the body": (GENERAL + "1 1 1\n% here\n1 1 1\n", 3, "found '% here'"),
    "skew diagonal": (SKEW + "2 2 2\n2 1 1\n2 2 3\n", 4, "no diagonal elements but zeros"),
    "complex diagonal": (HERMITIAN + "1 1 1\n1 1 1 2\n", 3, "a real diagonal"),
    "array too short": (ARRAY + "2 2\n1\n2\n3\n", 5, "expected 4 as line 2 says"),
    "array too long": (ARRAY + "1 2\n1\n2\n3\n", 5, "the end of the file"),
    "a count beyond all memory": (GENERAL + f"2 2 {10**14}\n1 1 1\n", 3, "expected 100000000000000"),
    "an array beyond all memory": (ARRAY + f"{10**7} {10**7}\n1\n", 3, "it is truncated"),
    "sizes of too many digits": (GENERAL + "9" * 5000 + " 1 1\n1 1 1\n", 2, "of at most 18 digits"),
    "unsigned skew-symmetric": (
        SKEW.replace("real", "unsigned-integer") + "2 2 1\n2 1 1\n",
        1,
        "signed values",
    ),
    "a line longer than a mebibyte": (
        GENERAL + "2 2 400000\n" + "1 1 1 " * 400000,
        3,
        "a line of at most 1048576",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_path_line_and_what_was_expected(name: str, mtx: Path) -> None:
    content, line, message = BROKEN[name]
    mtx.write_bytes(content.encode("latin-1"))
    with pytest.raises(FormatError) as caught:
        io.read_matrix(mtx)
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"{mtx}:{line}: ") or f"Line {line}: " in text


@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric", "hermitian"])
def test_both_triangles_of_a_symmetric_matrix_are_refused_and_either_one_is_read(
    symmetry: str, mtx: Path, rng: np.random.Generator
) -> None:
    field = "complex" if symmetry == "hermitian" else "real"
    A = scipy.sparse.coo_array(random_matrix(9, field, symmetry, rng))
    general = GENERAL.replace("real", field)
    for part in (scipy.sparse.tril(A), scipy.sparse.triu(A), A):
        scipy.io.mmwrite(mtx, part, field=field, symmetry="general", precision=17)
        text = mtx.read_text()
        assert text.startswith(general)
        mtx.write_text(text.replace("general", symmetry, 1))
        if part is not A:
            np.testing.assert_array_equal(io.read_matrix(mtx).toarray(), A.toarray())
    with pytest.raises(
        FormatError, match=rf"both sides of the diagonal, expected one triangle of a {symmetry}"
    ):
        io.read_matrix(mtx)


BOMBS = {
    "spaces": (b"", b" " * (1 << 25), r"matrix\.mtx:3: .* a line of at most 1048576"),
    "blank lines": (b"", b"\n" * (1 << 25), r"found \d+ characters with 0 elements"),
    "a comment": (
        b"%" * (1 << 25) + b"\n",
        b"",
        r"matrix\.mtx:2: .* the sizes within the first 1048576 bytes",
    ),
    "comments": (b"% a comment\n" * (1 << 17), b"", r"the sizes within the first 1048576 bytes"),
    "a line of numbers": (b"", b"1 " * (1 << 24), r"matrix\.mtx:3: .* a line of at most 1048576"),
    "a number": (b"", b"1" * (1 << 25), r"matrix\.mtx:3: .* a line of at most 1048576"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_packed_file_takes_little_memory(name: str, mtx: Path) -> None:
    comment, blanks, message = BOMBS[name]
    mtx.write_bytes(gzip.compress(GENERAL.encode() + comment + b"1 1 1\n" + blanks + b"1 1 1\n"))
    assert mtx.stat().st_size < 1 << 18
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=message):
            io.read_matrix(mtx)
        assert tracemalloc.get_traced_memory()[1] < 3 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("layout", "sizes", "elements"),
    [("coordinate", "1000000000 9 1", "9 9 1"), ("array", "20000 1", "1\n" * 20000)],
)
def test_a_matrix_beyond_the_memory_is_refused_before_anything_is_allocated(
    layout: str, sizes: str, elements: str, mtx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 400_000)
    mtx.write_text(f"%%MatrixMarket matrix {layout} real general\n{sizes}\n{elements}\n")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"matrix\.mtx:2: .* GB to read, but 0\.0004 GB of memory are"):
            io.read_matrix(mtx)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize("factor", [1, 1 + 1j])
def test_reading_takes_no_more_memory_than_was_checked(
    factor: complex, layout: str, symmetry: str, mtx: Path, rng: np.random.Generator
) -> None:
    n = 700
    A: Any = rng.integers(1, 9, (n, n)) * (0.5 * factor)
    A = A + A.T if symmetry == "symmetric" else A
    scipy.io.mmwrite(mtx, A if layout == "array" else scipy.sparse.coo_array(A), symmetry=symmetry)
    header = matrixmarket.read_header(mtx)
    tracemalloc.start()
    try:
        io.read_matrix(mtx)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    buffers = 12 << 20  # of the check, a chunk at a time
    assert peak < header.needed_bytes + buffers
    assert header.needed_bytes < 3 * peak


def packed_matrix() -> bytes:
    lines = (f"{i % 200 + 1} {i // 200 + 1} {math.sin(i)!r}\n" for i in range(10000))
    return gzip.compress((GENERAL + "200 200 10000\n" + "".join(lines)).encode(), mtime=0)


def test_a_packed_file_that_breaks_off_is_refused(mtx: Path) -> None:
    whole = packed_matrix()
    for length in (2, 15, len(whole) // 2, len(whole) - 1):
        mtx.write_bytes(whole[:length])
        with pytest.raises(
            FormatError, match=r"matrix\.mtx:\d+: the gzip data break off or are damaged here"
        ):
            io.read_matrix(mtx)


def test_a_damaged_packed_file_is_refused(mtx: Path) -> None:
    damaged = bytearray(packed_matrix())
    damaged[len(damaged) // 2] ^= 0xFF
    mtx.write_bytes(damaged)
    with pytest.raises(FormatError, match=r"matrix\.mtx:\d+: "):
        io.read_matrix(mtx)


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.mtx: there is no such file .*; check the path"):
        io.read_matrix(tmp_path / "no.mtx")
    for path in (tmp_path, os.devnull):
        with pytest.raises(FormatError, match="is no regular file"):
            io.read_matrix(path)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7])
def test_the_check_does_not_depend_on_where_chunks_end(
    chunk_bytes: int, mtx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrixmarket, "_CHUNK_BYTES", chunk_bytes)
    mtx.write_text(GENERAL + "2 2 3\n1 1 -1.25e-10\n2 2 5.\n1 2 .5E1")
    np.testing.assert_array_equal(io.read_matrix(mtx).toarray(), [[-1.25e-10, 5], [0, 5]])
    for value in ("1.5.5", "1e5e5", "1e5.5", "1.5-10", "1d5", "1 1", "1e"):
        mtx.write_text(GENERAL + f"2 2 1\n1 1 {value}\n")
        with pytest.raises(FormatError, match=re.escape(f":3: found '1 1 {value}'")):
            io.read_matrix(mtx)


def strictly_read(text: str) -> np.ndarray:
    """Read a real general coordinate file the slow way, or raise ValueError."""
    lines = [line.split() for line in text.splitlines()[1:] if line.strip()]
    size = lines.pop(0)
    if not all(number.isdecimal() for number in size + [index for line in lines for index in line[:2]]):
        raise ValueError(text)
    n_rows, n_cols, n_lines = map(int, size)
    if n_lines != len(lines):
        raise ValueError(text)
    A = np.zeros((n_rows, n_cols))
    for row, column, value in lines:
        if not (0 < int(row) <= n_rows and 0 < int(column) <= n_cols and value[0] != "+"):
            raise ValueError(text)
        A[int(row) - 1, int(column) - 1] += float(value)
    return A


@hypothesis.settings(max_examples=300)
@hypothesis.given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_refused_or_read_as_it_stands_but_never_wrong(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = random.Random(seed)
    lines = [
        f"{draw.randint(1, 3)} {draw.randint(1, 3)} {draw.gauss(0, 1)!r}" for _ in range(draw.randint(0, 4))
    ]
    text = GENERAL + f"3 3 {len(lines)}\n" + "\n".join(lines) + draw.choice(["", "\n"])
    for _ in range(draw.randint(0, 3)):
        at = draw.randrange(len(GENERAL), len(text) + 1)
        text = text[:at] + draw.choice(["", *"0123.-+eE \nDx\t"]) + text[at + draw.randint(0, 2) :]
    path = tmp_path_factory.getbasetemp() / "damaged.mtx"
    path.write_text(text)
    try:
        expected = strictly_read(text)
    except (ValueError, IndexError):
        with pytest.raises(FormatError, match=r"damaged\.mtx:\d+: "):
            io.read_matrix(path)
    else:
        np.testing.assert_array_equal(io.read_matrix(path).toarray(), expected)


# The front door of the command line


def test_a_description_opens_a_model_and_a_path_a_file(mtx: Path) -> None:
    scipy.io.mmwrite(mtx, models.laplace1d(n=5), precision=17)
    for spec in ("laplace1d:n=5", " Laplace1D:N=5", str(mtx), mtx):
        np.testing.assert_array_equal(open_matrix(spec).toarray(), models.laplace1d(n=5).toarray())


def test_a_file_wins_over_a_model_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "laplace1d:n=5").write_text(GENERAL + "1 1 1\n1 1 7\n")
    np.testing.assert_array_equal(open_matrix("laplace1d:n=5").toarray(), [[7]])


def test_what_is_neither_file_nor_model_is_explained() -> None:
    with pytest.raises(OptionError, match=r"did you mean 'laplace3d'\?"):
        open_matrix("laplas3d:n=4")
    with pytest.raises(OptionError, match="no value is given for sites, up"):
        open_matrix("xxz")
    with pytest.raises(
        FileNotFoundError, match=r"matrix\.mtx: there is no such file, and no model of that name; .*xxz"
    ):
        open_matrix("matrix.mtx")


# Blocks

DTYPES = ["float32", "float64", "complex64", "complex128"]


def block(shape: tuple[int, int], dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(7)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if "complex" in dtype else values).astype(dtype)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1000, 7), (1, 1), (0, 3), (5, 0)])
def test_a_block_comes_back_bit_for_bit(
    shape: tuple[int, int], dtype: str, mmap: bool, tmp_path: Path
) -> None:
    V = block(shape, dtype)
    io.save_block(tmp_path / "V.npy", V)
    W = io.load_block(tmp_path / "V.npy", mmap=mmap)
    assert type(W) is np.ndarray
    assert W.dtype == V.dtype
    assert W.flags.c_contiguous
    assert W.flags.writeable or mmap
    np.testing.assert_array_equal(W, V)
    np.testing.assert_array_equal(np.load(tmp_path / "V.npy"), V)


def test_views_are_written_panel_by_panel(tmp_path: Path) -> None:
    V = block((100_003, 9))  # several panels of a mebibyte, and rows left over
    for view in (V[:, 2:5], V[3:50_000], V[::2, ::3], V.T, V[:0]):
        io.save_block(tmp_path / "V.npy", view)
        np.testing.assert_array_equal(io.load_block(tmp_path / "V.npy"), view)


def test_a_column_major_file_is_read_row_major_and_not_mapped(tmp_path: Path) -> None:
    V = block((20, 3))
    np.save(tmp_path / "V.npy", np.asfortranarray(V))
    W = io.load_block(tmp_path / "V.npy")
    assert W.flags.c_contiguous
    np.testing.assert_array_equal(W, V)
    with pytest.raises(LayoutError, match=r"V\.npy: its array is column-major .* load it with mmap=False"):
        io.load_block(tmp_path / "V.npy", mmap=True)


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros(3), ShapeError, r"V\.npy: the shape is \(3,\); a block has two dimensions"),
        (np.zeros((2, 2, 2)), ShapeError, r"the shape is \(2, 2, 2\)"),
        (
            np.zeros((3, 2), int),
            DTypeError,
            r"V\.npy: the type is int64; a block is one of float32, float64, ",
        ),
        (np.zeros((3, 2), ">f8"), DTypeError, "the type is >f8"),
        (np.array([["a"]], object), DTypeError, "the type is object"),
    ],
)
def test_what_is_no_block_is_neither_written_nor_read(
    array: np.ndarray, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        io.save_block(tmp_path / "V.npy", array)
    assert not os.listdir(tmp_path)
    np.save(tmp_path / "V.npy", array)
    with pytest.raises(error, match=message):
        io.load_block(tmp_path / "V.npy")


def test_every_truncation_of_a_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "V.npy"
    io.save_block(path, block((4, 2)))
    whole = path.read_bytes()
    for length, mmap in itertools.product(range(len(whole)), (False, True)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"V\.npy: .*(truncated|this is no \.npy file)"):
            io.load_block(path, mmap=mmap)


def test_another_file_is_no_block(tmp_path: Path) -> None:
    np.savez(tmp_path / "V.npz", V=block((2, 2)))
    with pytest.raises(FormatError, match=r"V\.npz: this is no \.npy file"):
        io.load_block(tmp_path / "V.npz")
    with pytest.raises(FileNotFoundError, match=r"W\.npy: there is no such file"):
        io.load_block(tmp_path / "W.npy")
