"""The operands and calls that a benchmark measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector
from blockvec.backends import backend_for
from blockvec.backends.host import backend
from blockvec.bench import OPERATIONS, Sizes, make_cases, measure_case
from blockvec.bench.cases import HOST_ELEMENTS, _Blocks, _memory
from blockvec.errors import OptionError
from blockvec.kernels.roofline import Ceilings

HOST = backend_for("cpu")
LIMITS = Ceilings(40.0, 20.0, 50.0, {"float32": 400.0, "float64": 200.0})


def small(rows: int, ld: int | None = None) -> Sizes:
    return Sizes(rows, quick=True, ld=ld)


def plain(result: Any) -> Any:
    return result.array if isinstance(result, BlockVector) else result


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("operation", ["dot", "gram", "combine"])
@pytest.mark.parametrize("ld", [None, 7])
def test_blockvec_and_its_peers_compute_the_same(operation: str, dtype: str, ld: int | None) -> None:
    (case,) = make_cases([operation], [dtype], [(3, 3)], sizes=small(200, ld))
    ours, *theirs = [plain(call()).copy() for call in case.calls.values()]  # the first set of operands each
    for other in theirs:
        np.testing.assert_allclose(ours, other, rtol=1e-4 if "32" in dtype or "64" in dtype else 1e-12)


@pytest.mark.parametrize("operation", ["update", "inplace", "combine_dot", "update_gram"])
@pytest.mark.parametrize("ld", [None, 7])
def test_what_changes_its_operand_does_so_for_all_alike(operation: str, ld: int | None) -> None:
    def results() -> list[Any]:
        found, which = [], 0
        while True:  # operands are drawn anew for each call
            (case,) = make_cases([operation], ["float64"], [(3, 3)], sizes=small(50, ld))
            calls = list(case.calls.values())
            if which == len(calls):
                return found
            calls[which]()
            found.append(plain(calls[which]()))
            which += 1

    ours, *theirs = results()
    for other in theirs:
        np.testing.assert_allclose(ours, other, rtol=1e-12)


def test_views_begin_past_the_first_column() -> None:
    (case,) = make_cases(["combine"], ["float64"], [(3, 3)], sizes=small(50, 7))
    assert (case.problem.lda, case.problem.ldb, case.problem.align_a) == (7, 7, 8)
    with pytest.raises(OptionError, match="a view of 7 columns"):
        list(make_cases(["combine"], ["float64"], [(7, 7)], sizes=small(50, 7)))


def test_axpby_computes_what_its_peer_computes() -> None:
    (case,) = make_cases(["axpby"], ["float64"], [(2, 2)], sizes=small(50))
    V, W = BlockVector.full(50, 2, 3.0), BlockVector.full(50, 2, 4.0)
    assert (W.axpby(0.5, V, 0.25).array == 2.5).all()  # as in the case
    assert set(case.calls) == {"blockvec", "numpy"}


def blocks(rows: int, width: int, footprint: int, ld: int | None = None) -> _Blocks:
    class Rotated(Sizes):
        def footprint(self, backend: Any) -> int:
            return footprint

    memory = _memory("float64", [(width, width)], Rotated(rows, ld=ld), HOST)
    return _Blocks(memory, HOST, "float64", rows, width, width, ld)


def test_sets_of_operands_lie_side_by_side_and_are_used_in_turn() -> None:
    first, second = blocks(50, 2, 8 * 1000).inputs()
    assert (len(first), len(second)) == (4, 4)
    addresses = [block.array.ctypes.data for block in (*first, *second)]
    assert np.diff(addresses).tolist() == [1024] * 7  # 800 bytes, and on to where an allocation would begin


def test_two_blocks_fit_however_little_is_rotated_among() -> None:
    for rows, width in ((50, 2), (33, 3)):
        first, second = blocks(rows, width, 0).inputs()
        assert (len(first), len(second)) == (1, 1)
        assert not np.shares_memory(first[0].array, second[0].array)
        assert len(blocks(rows, width, 0).outputs()) == 1


def test_rectangular_shapes_are_run_where_they_mean_something() -> None:
    shapes = [(2, 2), (2, 5)]
    cases = list(
        make_cases([op for op in OPERATIONS if op != "apply"], ["float64"], shapes, sizes=small(100))
    )
    found = [(case.operation, case.problem.M if hasattr(case.problem, "M") else None) for case in cases]
    names = ["dot", "dot", "gram", "combine", "combine", "update", "update", "inplace"]
    names += ["combine_dot", "combine_dot", "update_gram", "update_gram", "axpby"]
    assert [name for name, _ in found] == names
    dot, combine = cases[1], cases[4]
    assert dot.calls["blockvec"]().shape == (2, 5)
    assert combine.calls["blockvec"]().shape == (100, 5)


def test_rows_follow_from_the_size_that_is_asked_for() -> None:
    assert Sizes().rows_for(4, "float64", HOST) == HOST_ELEMENTS // 4
    assert Sizes(rows=7).rows_for(64, "float64", HOST) == 7
    assert Sizes(operand_bytes=1 << 20).rows_for(8, "complex128", HOST) == 8192
    assert Sizes(quick=True).rows_for(1, "float32", HOST) == 1 << 18
    assert Sizes(quick=True).footprint(HOST) == 0
    assert Sizes().footprint(HOST) > 1 << 28


def test_probes_of_ceilings_move_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PROBE_BYTES", 1 << 16)
    probes = HOST.ceiling_probes()
    for probe in probes:
        probe.call()
    assert {probe.ceiling for probe in probes} == {"read", "write", "copy", "float64", "float32"}


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'dott'.*dot, gram"):
        list(make_cases(["dott"], ["float64"], [(1, 1)]))


def test_a_measured_case_becomes_a_line() -> None:
    (case,) = make_cases(["dot"], ["float64"], [(2, 3)], sizes=small(1000))
    measured = measure_case(case, HOST, LIMITS, quick=True)
    assert list(measured.peers) == ["numpy"]
    words = measured.line().split()
    assert words[:5] == ["dot", "float64", "2", "3", "1000"]
    speed_up = measured.peers["numpy"].median_s / measured.ours.median_s
    assert float(words[-1]) == pytest.approx(speed_up, abs=0.006)


def test_sparse_products_are_those_of_scipy() -> None:
    (case,) = make_cases(["apply"], ["float32"], [(3, 3)], matrices=["laplace2d:n=9"])
    ours, theirs = (plain(call()) for call in case.calls.values())
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert (case.matrix, list(case.calls)) == ("laplace2d:n=9", ["blockvec", "scipy"])
    assert measure_case(case, HOST, LIMITS, quick=True).line().split()[:5] == [
        "apply",
        "float32",
        "3",
        "3",
        "81",
    ]
