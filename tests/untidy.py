"""Sparse matrices of duplicate entries in no order, and whether they are still as their user left them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

FORMS = (sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.csc_matrix, sp.coo_matrix)


def untidy(dense: np.ndarray, form: Any, *, writeable: bool = True) -> Any:
    """A sparse matrix with each entry a in two parts, 3 a and -2 a, at random places of its row or column."""
    entries = sp.coo_array(dense)
    data = np.concatenate([3 * entries.data, -2 * entries.data])
    rows, columns = (np.tile(places, 2) for places in entries.coords)
    kind = form(dense.shape).format
    major, minor = (columns, rows) if kind == "csc" else (rows, columns)
    keys = np.random.default_rng(0).random(len(data))
    order = np.argsort(keys) if kind == "coo" else np.lexsort((keys, major))
    data, major, minor = data[order], major[order], minor[order]
    if kind == "coo":
        A = form((data, (major, minor)), shape=dense.shape)
    else:
        pointers = np.searchsorted(major, np.arange(dense.shape[kind == "csc"] + 1))
        A = form((data, minor, pointers), shape=dense.shape)
    assert not A.has_canonical_format
    for array in arrays_of(A):
        array.flags.writeable = writeable
    return A


def arrays_of(A: Any) -> tuple[np.ndarray, ...]:
    """What a matrix consists of."""
    return (A.data, *A.coords) if A.format == "coo" else (A.data, A.indices, A.indptr)


@contextmanager
def kept(*matrices: Any) -> Iterator[None]:
    """Assert that matrices consist of the same arrays afterwards, and these of the same bits."""
    before = [[(array, array.tobytes()) for array in arrays_of(A)] for A in matrices]
    yield
    for A, arrays in zip(matrices, before, strict=True):
        for now, (array, bits) in zip(arrays_of(A), arrays, strict=True):
            assert now is array, f"{type(A).__name__}: an array is another one"
            assert now.tobytes() == bits, f"{type(A).__name__}: an array was written to"
