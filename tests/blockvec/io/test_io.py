"""Matrix Market files, sound and broken, and blocks on disk."""

from __future__ import annotations

import gzip
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

from blockvec import BlockVector, io, models, open_matrix
from blockvec.errors import DTypeError, FormatError, OptionError, ShapeError
from blockvec.io import matrixmarket
from blockvec.system import memory
from tests.matrices import normal

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


READ = {
    "twice": (GENERAL + "2 3 4\n2 3 1\n1 1 5\n2 3 0.5\n2 1 4\n", [[5, 0, 0], [4, 0, 1.5]]),
    "no last line end": (GENERAL + "2 2 2\n1 1 1.5\n2 1 -2E-3", [[1.5, 0], [-0.002, 0]]),
    "comments": (
        GENERAL + "% a comment\n%\n\n2 2 2\n\n1 1 1.5\n   2\t1   -2.e-3  \n\n\n",
        [[1.5, 0], [-0.002, 0]],
    ),
    "windows": (GENERAL + "2 2 2\r\n1 1 1.5\r\n2 1 -.2e-2\r\n", [[1.5, 0], [-0.002, 0]]),
    "not finite": (GENERAL + "2 2 3\n1 1 nan\n1 2 -inf\n2 2 Infinity\n", [[np.nan, -np.inf], [0, np.inf]]),
    "empty": (GENERAL + "3 4 0\n", np.zeros((3, 4))),
}


@pytest.mark.parametrize("name", READ)
def test_what_the_format_allows_is_read(name: str, mtx: Path) -> None:
    text, expected = READ[name]
    mtx.write_bytes(text.encode())
    A = io.read_matrix(mtx)
    assert A.has_canonical_format
    np.testing.assert_array_equal(A.toarray(), expected)


# Broken files


ARRAY, SKEW = GENERAL.replace("coordinate", "array"), GENERAL.replace("general", "skew-symmetric")
COMPLEX, INTEGER, PATTERN = (GENERAL.replace("real", field) for field in ("complex", "integer", "pattern"))
HERMITIAN = COMPLEX.replace("general", "hermitian")

SILENT = {  # SciPy reads another matrix from these
    "value with a tail": GENERAL + "2 2 1\n1 1 1.5abc\n",
    "two points": GENERAL + "2 2 1\n1 1 1.5.5",
    "two exponents": GENERAL + "2 2 1\n1 1 1e5e5\n",
    "point after the exponent": GENERAL + "2 2 1\n1 1 1e5.5\n",
    "Fortran exponent": GENERAL + "2 2 1\n1 1 1.0D+3\n",
    "Fortran exponent without a letter": GENERAL + "2 2 1\n1 1 1.0-100\n",
    "underscore": GENERAL + "2 2 1\n1 1 1_0\n",
    "hexadecimal": GENERAL + "2 2 1\n1 1 0x1A\n",
    "complex value in a real file": GENERAL + "2 2 1\n1 1 1 2\n",
    "value in a pattern": PATTERN + "1 1 1\n1 1 1\n",
    "fraction in an integer file": INTEGER + "2 2 1\n1 2 5.5\n",
    "elements on one line": GENERAL + "2 2 2\n1 1 1 2 2 2\n2 2 1\n",
    "array row by row": ARRAY + "2 2\n1 2\n3 4\n5\n6\n",
}


@pytest.mark.parametrize("name", SILENT)
def test_lines_that_scipy_reads_in_part_are_refused_and_shown(name: str, mtx: Path) -> None:
    mtx.write_text(SILENT[name])
    line = SILENT[name].splitlines()[2]
    with pytest.raises(FormatError, match=re.escape(f"{mtx}:3: found {line!r}, expected ")):
        io.read_matrix(mtx)


BROKEN = {
    "empty": "",
    "another format": "hello\n1 2\n",
    "binary": "\x89PNG\x00\xff" * 99,
    "unknown object": GENERAL.replace("matrix", "vector"),
    "unknown field": GENERAL.replace("real", "quaternion"),
    "array pattern": ARRAY.replace("real", "pattern") + "1 1\n",
    "no size line": GENERAL + "% only this\n",
    "short size line": GENERAL + "2 2\n",
    "negative size": GENERAL + "-2 2 1\n1 1 1\n",
    "not square": GENERAL.replace("general", "symmetric") + "2 3 1\n2 1 1\n",
    "truncated": GENERAL + "2 2 3\n1 1 1\n2 2 2\n",
    "truncated in an exponent": GENERAL + "2 2 1\n1 1 1e",
    "too many": GENERAL + "2 2 1\n1 1 1\n\n2 2 2\n",
    "row too large": GENERAL + "2 3 1\n3 1 1\n",
    "column zero": GENERAL + "2 3 1\n1 0 1\n",
    "skew diagonal": SKEW + "2 2 2\n2 1 1\n2 2 3\n",
    "complex diagonal": HERMITIAN + "1 1 1\n1 1 1 2\n",
    "array too short": ARRAY + "2 2\n1\n2\n3\n",
    "array too long": ARRAY + "1 2\n1\n2\n3\n",
    "a count beyond all memory": GENERAL + f"2 2 {10**14}\n1 1 1\n",
    "sizes of too many digits": GENERAL + "9" * 5000 + " 1 1\n1 1 1\n",
    "an integer of too many digits": INTEGER + f"1 1 1\n1 1 {'9' * 5000}\n",
    "unsigned skew-symmetric": SKEW.replace("real", "unsigned-integer") + "2 2 1\n2 1 1\n",
    "a line longer than a mebibyte": GENERAL + "2 2 400000\n" + "1 1 1 " * 400000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_its_path(name: str, mtx: Path) -> None:
    mtx.write_bytes(BROKEN[name].encode("latin-1"))
    with pytest.raises(FormatError) as caught:
        io.read_matrix(mtx)
    assert str(caught.value).startswith(f"{mtx}:")


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
        with pytest.raises(FormatError, match=r"matrix\.mtx: .* GB to read, but 0\.0004 GB of memory are"):
            io.read_matrix(mtx)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize("factor", [1, 1 + 1j])
def test_reading_takes_no_more_memory_than_was_checked(
    factor: complex,
    layout: str,
    symmetry: str,
    mtx: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n = 700
    A: Any = rng.integers(1, 9, (n, n)) * (0.5 * factor)
    A = A + A.T if symmetry == "symmetric" else A
    scipy.io.mmwrite(mtx, A if layout == "array" else scipy.sparse.coo_array(A), symmetry=symmetry)
    checked: list[int] = []
    monkeypatch.setattr(matrixmarket, "check_readable", lambda what, needed: checked.append(needed))
    tracemalloc.start()
    try:
        io.read_matrix(mtx)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    buffers = 12 << 20  # of the check, a chunk at a time
    assert peak < checked[0] + buffers
    assert checked[0] < 3 * peak


def packed_matrix() -> bytes:
    lines = (f"{i % 200 + 1} {i // 200 + 1} {math.sin(i)!r}\n" for i in range(10000))
    return gzip.compress((GENERAL + "200 200 10000\n" + "".join(lines)).encode(), mtime=0)


def test_a_packed_file_that_breaks_off_or_is_damaged_is_refused(mtx: Path) -> None:
    whole = packed_matrix()
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
    for data in (damaged, *(whole[:length] for length in (2, 15, middle, len(whole) - 1))):
        mtx.write_bytes(data)
        with pytest.raises(FormatError, match=r"matrix\.mtx: "):
            io.read_matrix(mtx)


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.mtx: there is no such file .*; check the path"):
        io.read_matrix(tmp_path / "no.mtx")
    for path in (tmp_path, os.devnull):
        with pytest.raises(FormatError, match="is no regular file"):
            io.read_matrix(path)


@pytest.mark.parametrize("chunk_bytes", [48, 49, 50, 55])
def test_the_check_does_not_depend_on_where_chunks_end(
    chunk_bytes: int, mtx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrixmarket, "_CHUNK_BYTES", chunk_bytes)
    elements = "1 1 -1.25e-1\n2 2 5.\n1 2 .5E1\n"
    mtx.write_text(GENERAL + "2 2 24\n" + (8 * elements).rstrip())
    np.testing.assert_array_equal(io.read_matrix(mtx).toarray(), [[-1, 40], [0, 40]])
    for value in ("1.5.5", "1e5e5", "1e5.5", "1.5-10", "1d5", "1 1", "1e"):
        mtx.write_text(GENERAL + f"2 2 25\n{8 * elements}1 1 {value}\n")
        with pytest.raises(FormatError, match=re.escape(f":27: found '1 1 {value}'")):
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
        with pytest.raises(FormatError, match=r"damaged\.mtx:"):
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


def block(shape: tuple[int, int], dtype: str = "float64") -> np.ndarray:
    return normal(7, *shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_blocks_and_views_come_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    V, path = block((100_003, 9), dtype), tmp_path / "V.npy"  # several panels of a mebibyte, and rows left
    for view in V[:, 2:5], V[3:50_000], V[:0], V[:, :0], V[:1, :1]:
        BlockVector(view).save(path)
        W = BlockVector.load(path).array
        assert type(W) is np.ndarray
        assert W.dtype == dtype
        assert W.flags.c_contiguous
        assert W.flags.writeable
        np.testing.assert_array_equal(W, view)
        np.testing.assert_array_equal(np.load(path), view)


def test_a_column_major_file_is_read_row_major(tmp_path: Path) -> None:
    V = block((20, 3))
    np.save(tmp_path / "V.npy", np.asfortranarray(V))
    np.testing.assert_array_equal(BlockVector.load(tmp_path / "V.npy").array, V)


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
    ],
)
def test_what_is_no_block_is_not_read(
    array: np.ndarray, error: type[Exception], message: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "V.npy", array)
    with pytest.raises(error, match=message):
        BlockVector.load(tmp_path / "V.npy")


def test_every_truncation_of_a_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "V.npy"
    BlockVector(block((4, 2))).save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"V\.npy: .*(truncated|this is no \.npy file)"):
            BlockVector.load(path)


def test_another_file_is_no_block(tmp_path: Path) -> None:
    np.savez(tmp_path / "V.npz", V=block((2, 2)))
    with pytest.raises(FormatError, match=r"V\.npz: this is no \.npy file"):
        BlockVector.load(tmp_path / "V.npz")
    with pytest.raises(FileNotFoundError, match=r"W\.npy: there is no such file"):
        BlockVector.load(tmp_path / "W.npy")
