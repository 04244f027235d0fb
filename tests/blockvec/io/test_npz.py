"""Sparse matrices of scipy.sparse.save_npz: every format, and files that are damaged or made to do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec.errors import FormatError
from blockvec.system import memory

FORMATS = ("csr", "csc", "coo", "bsr", "dia")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "matrix.npz"


def random_matrix(dtype: str, layout: str, *, is_array: bool = True) -> Any:
    rng = np.random.default_rng(7)
    dense = rng.integers(-9, 9, (12, 8)) * (rng.random((12, 8)) < 0.3)
    dense = dense * (1 + 2j) if np.dtype(dtype).kind == "c" else dense
    return (sp.coo_array if is_array else sp.coo_matrix)(dense.astype(dtype)).asformat(layout)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("is_array", [True, False])
@pytest.mark.parametrize("is_compressed", [True, False])
def test_every_format_of_scipy_comes_back(
    layout: str, is_array: bool, is_compressed: bool, file: Path
) -> None:
    A = random_matrix("float64", layout, is_array=is_array)
    sp.save_npz(file, A, compressed=is_compressed)
    B = blockvec.open_matrix(file)
    assert isinstance(B, sp.csr_array)
    assert B.has_canonical_format
    assert B.indices.dtype == B.indptr.dtype == np.int32
    np.testing.assert_array_equal(B.toarray(), A.toarray())


@pytest.mark.parametrize(
    ("stored", "read"),
    [(name, name) for name in ("float32", "complex64", "complex128")]
    + [(name, "float64") for name in ("int8", "uint64", "float16", ">f8", "longdouble")]
    + [("clongdouble", "complex128")],
)
def test_types_are_kept_where_blocks_have_them_and_else_converted(stored: str, read: str, file: Path) -> None:
    A = abs(random_matrix("float64", "csr")).astype(read)
    B = A.copy()
    B.data = A.data.astype(stored)
    sp.save_npz(file, B)
    B = blockvec.read_matrix(file)
    assert B.dtype == read
    np.testing.assert_array_equal(B.toarray(), A.toarray())


def test_duplicate_elements_are_summed(file: Path) -> None:
    sp.save_npz(file, sp.coo_array(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2)))
    assert blockvec.read_matrix(file).toarray().tolist() == [[0, 3], [4, 0]]


def write(file: Path, **arrays: Any) -> None:
    np.savez(file, **{"format": "csr", "shape": (2, 2), "_is_array": True, **arrays})


GOOD = {"data": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2])}
BROKEN: dict[str, dict[str, Any]] = {
    "no format": {"x": np.ones(3), "format": 3},
    "unknown format": GOOD | {"format": "lil"},
    "column out of range": GOOD | {"indices": np.array([0, 2])},
    "negative column": GOOD | {"indices": np.array([0, -1])},
    "rows that overlap": GOOD | {"indptr": np.array([0, 3, 2])},
    "rows beyond the end, none at last": GOOD | {"indptr": np.array([0, 1 << 30, 0])},
    "rows of a csc": GOOD | {"indptr": np.array([0, 1 << 30, 0]), "format": "csc"},
    "too few rows": GOOD | {"indptr": np.array([0, 2])},
    "more values than columns": GOOD | {"data": np.ones(3)},
    "negative shape": GOOD | {"shape": (-2, 2)},
    "three sizes": GOOD | {"shape": (2, 2, 2)},
    "text": GOOD | {"data": np.array(["1", "2"])},
    "dates": GOOD | {"data": np.array([1, 2], "datetime64[s]")},
    "pickled": GOOD | {"data": np.array([1, None])},
    "a blown-up coo": {"format": "coo", "data": np.ones(1), "row": [9], "col": [0]},
    "a bsr with holes": {
        "format": "bsr",
        "data": np.ones((1, 2, 2)),
        "indices": np.array([1]),
        "indptr": np.array([0, 1]),
    },
    "offsets of a dia twice": {"format": "dia", "data": np.ones((2, 2)), "offsets": np.array([1, 1])},
    "a coo of one dimension": {"format": "coo", "data": np.ones(1), "coords": np.array([[1]]), "shape": (2,)},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_name(name: str, file: Path) -> None:
    write(file, **BROKEN[name])
    with pytest.raises(FormatError, match=r"matrix\.npz: ") as caught:
        blockvec.read_matrix(file)
    assert "pickle" not in str(caught.value)


def test_a_file_that_ends_early_or_is_no_archive_is_refused(file: Path) -> None:
    sp.save_npz(file, random_matrix("float64", "csr"))
    data = file.read_bytes()
    for end in range(2, len(data), 41):
        file.write_bytes(data[:end])
        with pytest.raises(FormatError, match=r"matrix\.npz: found no sparse matrix"):
            blockvec.read_matrix(file)


@pytest.mark.parametrize("shape", [(3, 3), (1 << 40, 3)])
def test_a_matrix_beyond_the_memory_is_refused(
    shape: tuple[int, int], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sp.save_npz(file, sp.coo_array((np.zeros(2000), (np.zeros(2000, int), np.zeros(2000, int))), shape=shape))
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << (16 if shape[0] == 3 else 30))
    with pytest.raises(FormatError, match="GB to read, but"):
        blockvec.read_matrix(file)
