"""Problems of all operations, types, widths, layouts and factors, drawn for tests of kernel families."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import CSR, families_of, sparse_families_of
from blockvec.kernels.problem import (
    DOTS,
    GRAMS,
    SpmmvProblem,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
)
from blockvec.kernels.sparse.csr_plan import CODE_BIT, MAX_VALUES, Codes, Plan
from blockvec.kernels.sparse.pieces import TASK_ENTRIES
from tests.devices import H200

__all__ = [
    *("TYPES", "assert_summed_up_in_order", "chain", "coded", "dense", "drawn", "families_for"),
    *("fused", "pointers", "sparse", "supporting", "sweep", "wide"),
]

_WIDTHS = range(1, 65)
TYPES = ("float64", "complex128", "float32", "complex64")
ROWS = (1 << 12, 1 << 16, 1 << 20)
ENTRIES = {"lines": (3, 5, 9, 16), "planes": (7, 14, 27), "scattered": (1, 4, 12, 64, 256), "uneven": (6, 20)}


def _layout(draw: random.Random, M: int, N: int, size: int) -> dict[str, Any]:
    """Draw pitches and alignments of contiguous rows, aligned ones and others."""
    layout: dict[str, Any] = {}
    for letter, width in (("a", M), ("b", N)):
        kind = draw.choice(("whole", "whole", "apart", "odd"))
        ld = width if kind == "whole" else (width + 4) // 4 * 4 if kind == "apart" else width + 5
        odd = min(size, 16) if kind == "odd" else 16
        layout |= {f"ld{letter}": ld, f"align_{letter}": odd}
    return layout


def dense(draw: random.Random, M: int, N: int, dtype: str, other: str = "") -> Any:
    """Draw a product of blocks of M and N columns; `other` is the type of the second operand."""
    K, second = draw.choice(ROWS), other or dtype
    layout = _layout(draw, M, N, itemsize(dtype))
    alpha = draw.choice(("one", "general"))
    if draw.random() < 0.5:
        conj, beta = is_complex(dtype), draw.choice(("zero", "general"))
        p = TsmttsmProblem(K, M, N, dtype, second, **layout, conj=conj, alpha=alpha, beta=beta)
        if M == N and not other and draw.random() < 0.5:
            p = replace(p, same=True, ldb=p.lda, align_b=p.align_a)
        return p
    beta = draw.choice(("zero", "one", "general"))
    combined = TsmmProblem(K, M, N, dtype, second, **layout, alpha=alpha, beta=beta)
    if N <= M and not other and draw.random() < 0.3:
        return replace(combined, inplace=True, ldb=combined.lda, align_b=combined.align_a)
    return combined


def wide(draw: random.Random, dtype: str) -> Any:
    """Draw a product of a basis of more columns than blocks have."""
    M, N = draw.choice((65, 96, 128, 200, 320, 512)), draw.choice((1, 2, 4, 7, 8, 16, 32))
    K, conj = draw.choice(ROWS), is_complex(dtype)
    return draw.choice(
        (
            TsmttsmProblem(K, M, N, dtype, dtype, M, N, conj=conj),
            TsmttsmProblem(K, N, M, dtype, dtype, N, M, conj=conj),
            TsmmProblem(K, M, N, dtype, dtype, M, N, alpha="general", beta="one"),
        )
    )


def sweep(draw: random.Random, dtype: str) -> SweepProblem:
    """Draw a sweep over a basis and a block."""
    M, N = draw.choice((1, 5, 8, 24, 48, 64, 100, 256, 512)), draw.choice((1, 2, 3, 4, 8, 16, 32))
    ldw = M + draw.choice((0, 0, 8, 5))
    align = 16 if ldw * itemsize(dtype) % 16 == 0 else 8
    return SweepProblem(draw.choice(ROWS), M, N, *(dtype,) * 3, ldw, N, align)


def sparse(draw: random.Random, width: int, dtype: str) -> SpmmvProblem:
    """Draw a product with a stored matrix, plain or fused."""
    pattern: Any = draw.choice(tuple(ENTRIES))
    entries, rows = draw.choice(ENTRIES[pattern]), draw.choice(ROWS)
    matrix = draw.choice(
        (dtype, dtype, dtype.replace("complex128", "float64").replace("complex64", "float32"))
    )
    fused: dict[str, Any] = draw.choice(
        (
            {},
            {"alpha": "general", "beta": "general", "shift": "scalar", "dots": ("xy", "yy")},
            {"shift": "column", "dots": ("xy",)},
            {"alpha": "general", "beta": "general", "shift": "scalar"},
            {"gram": GRAMS} if 1 < width <= 16 else {},
        )
    )
    odd = draw.random() < 0.2
    return SpmmvProblem(
        *(rows, rows, rows * entries, width, matrix, dtype, width + (3 if odd else 0), width),
        align_x=min(16, itemsize(dtype)) if odd else 16,
        pattern=pattern,
        longest=40 * entries if pattern == "uneven" else entries,
        coded=rows > 1 << 12 and draw.random() < 0.3,
        index_bytes=8 if draw.random() < 0.1 else 4,
        **fused,
    )


def chain(draw: random.Random, width: int, dtype: str) -> SpmmvProblem:
    """Draw a product with a chain that is not stored."""
    rows, entries = draw.choice((1 << 12, 1 << 20, 1 << 24)), draw.choice((8, 16, 24))
    pattern: Any = draw.choice(("spins", "electrons"))
    matrix = "float32" if dtype in ("float32", "complex64") else "float64"
    return SpmmvProblem(
        *(rows, rows, rows * entries, width, matrix, dtype, width, width),
        pattern=pattern,
        longest=2 * entries,
        index_bytes=8 if rows > 1 << 20 else 4,
    )


def fused(width: int) -> Iterator[SpmmvProblem]:
    """Yield sparse products of all pairs of types with all operands and sums that one pass may have.

    Nothing takes more registers and shared memory.
    """
    everything: dict[str, Any] = {
        "alpha": "general",
        "beta": "general",
        "shift": "column",
        "chain": "general",
    }
    rows, patterns = 1 << 20, (("planes", 27), ("scattered", 16), ("uneven", 20), ("spins", 13))
    for matrix, x, (pattern, entries) in itertools.product(TYPES, TYPES, patterns):
        if pattern == "spins" and is_complex(matrix):
            continue
        for dots, coded in ((DOTS, False), ((), False), ((), pattern != "spins")):
            yield SpmmvProblem(
                *(rows, rows, rows * entries, width, matrix, x, width, width),
                **everything,
                ldz=width,
                dots=dots,
                pattern=pattern,
                longest=2 * entries if pattern == "spins" else entries,
                coded=coded,
                index_bytes=8 if dots or coded else 4,
            )


def coded(plan: Plan) -> Codes:
    """Encode the entries of a matrix of few different values."""
    table, places = np.unique(plan.data, return_inverse=True)
    padded = np.concatenate([table, np.zeros(MAX_VALUES - len(table), table.dtype)])
    return Codes(plan.indices + (places << CODE_BIT).astype(plan.indices.dtype), padded)


def assert_summed_up_in_order(p: SpmmvProblem) -> None:
    """Rows are summed entry after entry by `spmmv_csr`, which runs until the matrix has its form."""
    in_order = CSR.in_order(p, H200)
    assert in_order is not None
    assert (in_order.split, in_order.flat) == (1, False)
    assert p.longest <= in_order.long_row


def families_for(problem: Any) -> list[Any]:
    """List the families for a problem, the preferred one first."""
    is_sparse = isinstance(problem, SpmmvProblem)
    return list(sparse_families_of(problem) if is_sparse else families_of(problem))


def supporting(problem: Any, device: DeviceInfo) -> list[Any]:
    """List the families that take a problem, the preferred one first."""
    return [family for family in families_for(problem) if family.supports(problem, device) is None]


def drawn(count: int, seed: int) -> Iterator[Any]:
    """Draw problems of every kind in turn."""
    draw = random.Random(seed)
    for _ in range(count):
        dtype, width = draw.choice(TYPES), draw.choice((*_WIDTHS, *range(1, 17)))
        yield dense(draw, width, draw.choice((width, draw.choice(_WIDTHS))), dtype)
        yield sparse(draw, width, dtype)
        yield draw.choice(
            (
                sweep(draw, draw.choice(TYPES[:2])),
                wide(draw, draw.choice(TYPES[:2])),
                chain(draw, min(width, 32), dtype),
                dense(draw, width, draw.choice(_WIDTHS), dtype, draw.choice(TYPES)),
            )
        )


@st.composite
def pointers(draw: st.DrawFn) -> np.ndarray:
    """Row pointers with empty rows, crowded stretches, full units, long rows and those of several tasks."""
    length = st.one_of(
        *(st.integers(0, 9), st.just(0), st.integers(30, 90), st.integers(500, 3 * TASK_ENTRIES)),
        *(st.just(size) for size in (8, 20, TASK_ENTRIES, 2 * TASK_ENTRIES)),
    )
    runs = draw(st.lists(st.tuples(length, st.integers(1, 400)), min_size=1, max_size=12))
    lengths = np.concatenate([np.full(count if size < 500 else 1 + count % 3, size) for size, count in runs])
    return np.concatenate([[0], np.cumsum(lengths)]).astype(draw(st.sampled_from(["int32", "int64"])))
