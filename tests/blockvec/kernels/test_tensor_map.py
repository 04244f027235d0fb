"""Tensor maps, without a driver: which rows they describe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.tensor_map import BOX_UNIT, TallOperand

SIZES = st.sampled_from([4, 8, 16])


@given(
    size=SIZES,
    width=st.integers(1, 64),
    beside=st.integers(0, 64),
    n_rows=st.integers(1, 50),
    step=st.sampled_from([16, 32, 64]),
    offset=st.integers(0, 8),
)
def test_the_maps_of_all_classes_describe_each_row_once(
    size: int, width: int, beside: int, n_rows: int, step: int, offset: int
) -> None:
    operand = TallOperand(width, width + beside, size, min(size, BOX_UNIT))
    begin, classes = (1 << 20) + offset * size, 4
    maps = operand.maps(begin, n_rows, classes, step, 8)
    for row in range(n_rows):
        rows, index = maps[row % classes], row // classes
        first = begin + row * operand.pitch
        assert index < rows.n_rows
        assert 0 <= first - (rows.address + index * rows.pitch) <= operand.slack
        assert first + width * size == rows.address + index * rows.pitch + rows.row_bytes
    assert sum(rows.n_rows for rows in maps[:n_rows]) == n_rows
    for rows in maps:
        assert rows.address % BOX_UNIT == rows.pitch % BOX_UNIT == rows.row_bytes % rows.unit == 0
        assert rows.row_bytes <= rows.box_bytes
        assert rows.box_bytes % (2 * step) == step


@given(size=SIZES, ld=st.integers(1, 200))
def test_rows_begin_at_one_offset_if_their_pitch_is_whole_units(size: int, ld: int) -> None:
    operand = TallOperand(1, ld, size, BOX_UNIT)
    assert (operand.slack == 0) == (operand.pitch % BOX_UNIT == 0)
