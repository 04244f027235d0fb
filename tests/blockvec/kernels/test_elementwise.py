"""Elementwise kernels without a GPU: sources, launch geometry, and what the compiler makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.elementwise import (
    AxpbyKernel,
    ColumnDotKernel,
    Factor,
    FoldKernel,
    Kernel,
    PhiloxKernel,
)
from blockvec.kernels.problem import is_complex, promote

DTYPES = ("float32", "float64", "complex64", "complex128")


def all_kernels() -> Iterator[Kernel]:
    """Yield a kernel of every kind that the backend creates.

    Types are mixed in all ways once; the other choices are combined for uniform types.
    """
    factors = [Factor(), Factor(is_complex=True), Factor(columns="float64"), Factor(columns="complex64")]
    layouts = list(itertools.product((True, False), repeat=2))
    for dtype, dtype_y in itertools.product(DTYPES, (None, *DTYPES)):
        plain = AxpbyKernel(dtype, dtype_y, promote(dtype, *([dtype_y] if dtype_y else [])))
        yield plain
        yield replace(plain, flat=False, aligned=False)
    for dtype, alpha, beta, (flat, aligned) in itertools.product(DTYPES, factors, factors, layouts):
        kinds = (alpha.is_complex, beta.is_complex, alpha.columns == "complex64", beta.columns == "complex64")
        if is_complex(dtype) or not any(kinds):
            yield AxpbyKernel(dtype, dtype, dtype, alpha, beta, flat, aligned)
    for dtype, dtype_y, conj, aligned in itertools.product(DTYPES, DTYPES, (True, False), (True, False)):
        yield ColumnDotKernel(dtype, dtype_y, False, conj, aligned)
        if dtype == dtype_y and conj:
            yield ColumnDotKernel(dtype, dtype, True, conj, aligned)
    for dtype, lanes, hermitian, beta_zero in itertools.product(
        DTYPES, (1, 32), (True, False), (True, False)
    ):
        wide = promote(dtype, "float64")
        yield FoldKernel(dtype, dtype, lanes, hermitian, beta_zero)
        yield FoldKernel(wide, dtype, lanes, hermitian, beta_zero)
        yield FoldKernel(dtype, wide, lanes, hermitian, beta_zero)
    for dtype in DTYPES:
        yield PhiloxKernel(dtype)


KERNELS = list(dict.fromkeys(all_kernels()))


@given(st.integers(1, 10**9), st.integers(1, 5000), st.sampled_from(DTYPES), st.booleans(), st.booleans())
def test_column_dots_deal_out_every_row_and_column_once(
    rows: int, width: int, dtype: str, same: bool, aligned: bool
) -> None:
    kernel = ColumnDotKernel(dtype, dtype, same, aligned=aligned)
    if width % kernel.vector:
        kernel = ColumnDotKernel(dtype, dtype, same, aligned=False)
    tiling = kernel.tiling(rows, width, 132)
    assert tiling.tiles * tiling.lanes * kernel.vector >= width
    assert (tiling.tiles - 1) * tiling.lanes * kernel.vector < width
    assert 1 <= tiling.groups * tiling.lanes <= tiling.threads <= kernel.threads
    assert tiling.threads % 32 == 0
    assert 1 <= tiling.blocks <= 132 * 8
    assert tiling.blocks == 1 or (tiling.blocks - 1) * tiling.groups < rows
    assert tiling == kernel.tiling(rows, width, 132)
