"""Elementwise kernels without a GPU: sources, launch geometry, and what the compiler makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.elementwise import THREADS, ColumnDots, axpby_kernel, fold_kernel, philox_kernel
from blockvec.kernels.problem import is_complex, promote
from blockvec.kernels.source import Kernel

DTYPES = ("float32", "float64", "complex64", "complex128")


def all_kernels() -> Iterator[Kernel]:
    """Yield a kernel of every kind that the backend creates.

    Types are mixed in all ways once; the other choices are combined for uniform types.
    """
    factors = ["real", "complex", "float64", "complex64"]
    layouts = list(itertools.product((True, False), repeat=2))
    for dtype, dtype_y in itertools.product(DTYPES, (None, *DTYPES)):
        dtypes = dtype, dtype_y, promote(dtype, *([dtype_y] if dtype_y else []))
        yield axpby_kernel(*dtypes)
        yield axpby_kernel(*dtypes, flat=False, aligned=False)
    for dtype, alpha, beta, (flat, aligned) in itertools.product(DTYPES, factors, factors, layouts):
        if is_complex(dtype) or not (is_complex(alpha) or is_complex(beta)):
            yield axpby_kernel(dtype, dtype, dtype, alpha, beta, flat=flat, aligned=aligned)
    for dtype, dtype_y, conj, aligned in itertools.product(DTYPES, DTYPES, (True, False), (True, False)):
        yield ColumnDots(dtype, dtype_y, False, conj, aligned).kernel()
        if dtype == dtype_y and conj:
            yield ColumnDots(dtype, dtype, True, conj, aligned).kernel()
    for dtype, hermitian, beta_zero in itertools.product(DTYPES, (True, False), (True, False)):
        wide = promote(dtype, "float64")
        yield fold_kernel(dtype, dtype, hermitian, beta_zero)
        yield fold_kernel(wide, dtype, hermitian, beta_zero)
        yield fold_kernel(dtype, wide, hermitian, beta_zero)
    for dtype in DTYPES:
        yield philox_kernel(dtype)


KERNELS = list(dict.fromkeys(all_kernels()))


@given(st.integers(1, 10**9), st.integers(1, 5000), st.sampled_from(DTYPES), st.booleans(), st.booleans())
def test_column_dots_deal_out_every_row_and_column_once(
    rows: int, width: int, dtype: str, same: bool, aligned: bool
) -> None:
    dots = ColumnDots(dtype, dtype, same, aligned=aligned)
    if width % dots.vector:
        dots = ColumnDots(dtype, dtype, same, aligned=False)
    lanes, groups, tiles, blocks, threads = dots.tiling(rows, width, 132)
    assert (tiles - 1) * lanes * dots.vector < width <= tiles * lanes * dots.vector
    assert 1 <= groups * lanes <= threads <= THREADS
    assert threads % 32 == 0
    assert 1 <= blocks <= 132 * 8
    assert blocks == 1 or (blocks - 1) * groups < rows
