"""PETSc's binary matrices: of every build, followed by other objects, and damaged."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec.errors import FormatError
from blockvec.system import memory

VECTOR = 1211214
BUILDS = list(itertools.product((">i4", ">i8"), (">f8", ">c16")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "matrix.petsc"


def example(value: str) -> sp.csr_array:
    rng = np.random.default_rng(3)
    dense = rng.standard_normal((9, 7)) * (rng.random((9, 7)) < 0.4)
    return sp.csr_array(dense * (1 - 2j) if value == ">c16" else dense)


def stored(A: sp.csr_array, index: str, value: str) -> bytes:
    """Write a matrix as PETSc does."""
    header = np.array([1211216, *A.shape, A.nnz], index)
    parts = header, np.diff(A.indptr).astype(index), A.indices.astype(index), A.data.astype(value)
    return b"".join(part.tobytes() for part in parts)


@pytest.mark.parametrize(("index", "value"), BUILDS)
def test_a_matrix_of_every_build_comes_back(index: str, value: str, file: Path) -> None:
    A = example(value)
    file.write_bytes(stored(A, index, value))
    B = blockvec.open_matrix(file)
    assert isinstance(B, sp.csr_array)
    assert B.dtype == np.dtype(value).newbyteorder("=")
    assert B.indices.dtype == B.indptr.dtype == np.int32
    assert B.has_canonical_format
    np.testing.assert_array_equal(B.toarray(), A.toarray())


@pytest.mark.parametrize(("index", "value"), BUILDS)
def test_the_first_of_several_objects_is_read(index: str, value: str, file: Path) -> None:
    A = example(value)
    vector = np.array([VECTOR, 7], index).tobytes() + np.ones(7, value).tobytes()
    for following in vector, stored(2 * A, index, value):
        file.write_bytes(stored(A, index, value) + following)
        np.testing.assert_array_equal(blockvec.read_matrix(file).toarray(), A.toarray())


def test_known_bytes_are_the_matrix_they_stand_for(file: Path) -> None:
    integers = "00127b50 00000002 00000003 00000003 00000002 00000001 00000000 00000002 00000001"
    values = "3ff0000000000000 c000000000000000 3fe0000000000000"
    file.write_bytes(bytes.fromhex(integers + values))
    assert blockvec.read_matrix(file).toarray().tolist() == [[1, 0, -2], [0, 0.5, 0]]


@pytest.mark.parametrize("index", [">i4", ">i8"])
@pytest.mark.parametrize("shape", [(0, 0), (3, 3), (0, 4)])
def test_a_matrix_without_elements_comes_back(shape: tuple[int, int], index: str, file: Path) -> None:
    file.write_bytes(stored(sp.csr_array(shape), index, ">f8"))
    B = blockvec.read_matrix(file)
    assert (B.shape, B.nnz) == (shape, 0)


@pytest.mark.parametrize(("index", "value"), BUILDS)
def test_a_file_that_ends_early_or_late_is_refused(index: str, value: str, file: Path) -> None:
    data = stored(example(value), index, value)
    size = np.dtype(index).itemsize
    real_end = (
        len(data) - 8 * example(value).nnz if value == ">c16" else 0
    )  # there it is a matrix of real numbers
    for end in set(range(size, len(data))) - {real_end}:
        file.write_bytes(data[:end])
        with pytest.raises(FormatError, match=r"matrix\.petsc: "):
            blockvec.read_matrix(file)
    file.write_bytes(data + bytes(size))
    with pytest.raises(FormatError, match="damaged or of another precision"):
        blockvec.read_matrix(file)


@pytest.mark.parametrize("index", [">i4", ">i8"])
@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (1, -1, "found -1 rows"),
        (1, 2**31 - 1, "truncated"),
        (2, 1, "column index that is not from 0 to 0"),
        (3, -1, "convert a dense one to MATAIJ"),
        (3, 2**31 - 1, "truncated"),
        (4, -1, "do not add up"),
        (4, 2**31 - 1, "do not add up"),
        (7, -1, "column index that is not from 0 to 2"),
        (7, 3, "column index that is not from 0 to 2"),
    ],
)
def test_impossible_numbers_are_refused(
    number: int, value: int, message: str, index: str, file: Path
) -> None:
    data = bytearray(stored(sp.csr_array(np.eye(3)), index, ">f8"))
    size = np.dtype(index).itemsize
    data[number * size : (number + 1) * size] = value.to_bytes(size, "big", signed=True)
    file.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        blockvec.read_matrix(file)


def test_a_matrix_beyond_the_memory_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(stored(example(">f8"), ">i4", ">f8"))
    monkeypatch.setattr(memory, "available_memory", lambda: 500)
    with pytest.raises(FormatError, match=r"matrix\.petsc: 9 rows with \d+ elements take .* GB to read, but"):
        blockvec.read_matrix(file)
