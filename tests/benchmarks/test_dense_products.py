"""The operands and calls that benchmarks measure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, bench
from blockvec.backends import backend_for
from blockvec.backends.host import backend
from blockvec.errors import OptionError
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks.dense_products import Sizes, make_cases

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
        np.testing.assert_allclose(ours, other, rtol=1e-4 if dtype in ("float32", "complex64") else 1e-12)


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


def test_probes_of_ceilings_move_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PROBE_BYTES", 1 << 16)
    probes = HOST.ceiling_probes()
    for probe in probes:
        probe.call()
    assert {probe.ceiling for probe in probes} == {"read", "write", "copy", "float64", "float32"}


def test_a_measured_case_becomes_a_line() -> None:
    (case,) = make_cases(["dot"], ["float64"], [(2, 3)], sizes=small(1000))
    measured = bench.measure_case(case, HOST, LIMITS, quick=True)
    assert list(measured.peers) == ["numpy"]
    words = measured.line().split()
    assert words[:5] == ["dot", "float64", "2", "3", "1000"]
    speed_up = measured.peers["numpy"].median_s / measured.ours.median_s
    assert float(words[-1]) == pytest.approx(speed_up, abs=0.006)


def test_sparse_products_are_those_of_scipy() -> None:
    (case,) = bench.make_cases(["apply"], ["float32"], [3], HOST, matrices=["laplace2d:n=9"])
    ours, theirs = (plain(call()) for call in case.calls.values())
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert list(case.calls) == ["blockvec", "scipy"]
    words = bench.measure_case(case, HOST, LIMITS, quick=True).line().split()
    assert words[:5] == ["apply", "float32", "3", "3", "81"]


def test_the_command_measures_blocks_that_lie_apart_in_memory() -> None:
    for case in bench.make_cases(["dot", "combine"], ["complex64"], [1, 3], HOST, rows=7, quick=True):
        ours, theirs = (plain(call()) for call in case.calls.values())
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_views_begin_past_the_first_column() -> None:
    (case,) = make_cases(["combine"], ["float64"], [(3, 3)], sizes=small(50, 7))
    assert (case.problem.lda, case.problem.ldb, case.problem.align_a) == (7, 7, 8)
    with pytest.raises(OptionError, match="a view of 7 columns"):
        list(make_cases(["combine"], ["float64"], [(7, 7)], sizes=small(50, 7)))
