"""What has to hold for orthogonalisation with rows that are split over processes; see `tests.distributed`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, RowLayout
from blockvec.errors import BreakdownError, ShapeError
from blockvec.parallel import share
from solvers.orthogonalization import orthogonalize
from tests.distributed import Work, layouts, listed_in

WORKS: dict[str, Work] = {}
work = listed_in(WORKS)


def numbers(rows: int, columns: int, dtype: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((2, rows, columns))
    return (parts[0] + 1j * parts[1] if "complex" in dtype else parts[0]).astype(dtype)


def graded(rows: int, columns: int, dtype: str, exponent: int) -> Any:
    """A block of condition number 10^exponent."""
    Q = np.linalg.qr(numbers(rows, columns, dtype, 1).astype(np.complex128 if "complex" in dtype else float))[
        0
    ]
    U = np.linalg.qr(numbers(columns, columns, "float64", 2))[0]
    return ((Q * np.logspace(0, -exponent, columns)) @ U).astype(dtype)


def check(W: Any, V: Any, layout: RowLayout) -> None:
    """Check the identities, and that all processes have the same factors and ranks as one alone."""
    Q = BlockVector(np.array(W[layout.rows]), layout=layout)
    basis = None if V is None else BlockVector(np.array(V[layout.rows]), layout=layout)
    found = orthogonalize(Q, basis, rng=3)
    assert len(set(share(layout.comm, found.R.tobytes() + found.S.tobytes()))) == 1
    alone_in = BlockVector(np.array(W))
    alone = orthogonalize(alone_in, None if V is None else BlockVector(np.array(V)), rng=3)
    assert found.lost.sum() == alone.lost.sum()
    whole, eps = Q.gather().array, np.finfo(W.dtype).eps
    scale = max(float(np.abs(W).max(initial=0.0)), 1e-30)
    assert np.abs(whole.conj().T @ whole - np.eye(W.shape[1])).max() <= 100 * eps
    product = whole @ found.R
    if V is not None:
        assert np.abs(V.conj().T @ whole).max(initial=0.0) <= 100 * eps
        product = product + V @ found.S
    assert np.abs(product - W).max(initial=0.0) <= 100 * eps * scale


@work
def orthogonalisation_gives_the_identities(comm: Any, folder: Path) -> None:
    for dtype in ("float32", "float64", "complex64", "complex128"):
        V = np.linalg.qr(numbers(50, 4, dtype, 7))[0]
        W = numbers(50, 3, dtype, 8)
        doubled = np.concatenate([W, W[:, :1], np.zeros((50, 1), dtype)], axis=1)
        for layout in layouts(50, comm):
            for block in (W, doubled):
                check(block, None, layout)
                check(block, V, layout)


@work
def no_condition_number_costs_orthogonality(comm: Any, folder: Path) -> None:
    layout = layouts(60, comm)[1]
    for dtype in ("float64", "complex128"):
        for exponent in (4, 8, 12, 15):
            W = graded(60, 5, dtype, exponent)
            check(W, None, layout)


@work
def one_row_per_process_is_enough(comm: Any, folder: Path) -> None:
    n = comm.size
    V, W = np.eye(n, 1), numbers(n, n - 1, "float64", 5)
    for layout in (RowLayout.equal(n, comm), RowLayout([0] * n + [n], comm)):
        check(W, V, layout)
        check(W, None, layout)
        with pytest.raises(ShapeError, match="columns"):
            orthogonalize(BlockVector.zeros(n, n + 1, layout=layout))


@work
def a_number_that_is_none_ends_it_on_all_processes(comm: Any, folder: Path) -> None:
    layout = RowLayout.equal(30, comm)
    W = numbers(30, 3, "float64", 6)
    W[-1, 0] = np.nan
    with pytest.raises(BreakdownError):
        orthogonalize(BlockVector(np.array(W[layout.rows]), layout=layout))
