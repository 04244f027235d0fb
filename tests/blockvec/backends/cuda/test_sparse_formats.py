"""When a matrix is converted, decided without a GPU: products wait, convert once, and fall back."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from blockvec.backends.cuda import sparse_formats as gpu_converted
from blockvec.errors import LayoutError
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.sparse import planes as spmmv_march

WAITS = 3
NARROW, WIDE = (
    SpmmvProblem(10**6, 10**6, 7 * 10**6, width, "float64", "float64", width, width) for width in (16, 64)
)


class Bench:
    """A matrix on a device that only counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, refuses: bool = False) -> None:
        self.S: Any = SimpleNamespace(waited=Counter(), converted={}, bound={})
        self.capturing, self.conversions = False, 0
        stream = SimpleNamespace(is_capturing=lambda: self.capturing)
        cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setattr(spmmv_march, "CONVERTS_AFTER", WAITS)
        monkeypatch.setattr(gpu_converted, "_configuration", lambda gpu, name, problem: (problem.width, ""))
        monkeypatch.setattr(gpu_converted, "form_key", lambda gpu, name, problem, config, S: (name, config))
        monkeypatch.setattr(gpu_converted, "_in_order", lambda gpu, problem, S: "in order")

        def launcher(gpu: Any, name: str, problem: SpmmvProblem, config: int, S: Any) -> str:
            self.conversions += 1
            S.converted[name, config] = None if refuses else "a form"
            if refuses:
                raise LayoutError("no form")
            return "converted"

        monkeypatch.setattr(gpu_converted, "launcher", launcher)

    def product(self, problem: SpmmvProblem = NARROW) -> Any:
        """What runs the next product."""
        bound = self.S.bound.get(("spmmv_march", problem, gpu_converted.options().tune))
        return bound or gpu_converted._bind(None, "spmmv_march", problem, self.S)  # type: ignore[arg-type]


def test_a_matrix_is_converted_once_after_the_products_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    found = [bench.product() for _ in range(WAITS + 5)]
    assert found == ["in order"] * WAITS + [("converted", 0)] * 5
    assert bench.conversions == 1


def test_every_form_is_waited_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    for _ in range(WAITS + 1):
        bench.product()
    assert [bench.product(WIDE) for _ in range(WAITS + 1)] == ["in order"] * WAITS + [("converted", 0)]


def test_a_form_that_is_there_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.S.converted["spmmv_march", NARROW.width] = "a form"
    assert bench.product() == ("converted", 0)


def test_nothing_is_converted_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.capturing = True
    assert {bench.product() for _ in range(WAITS + 5)} == {"in order"}
    bench.capturing = False
    assert bench.product() == ("converted", 0)


def test_a_matrix_that_has_no_form_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, refuses=True)
    assert {bench.product() for _ in range(WAITS + 5)} == {"in order"}
    assert bench.conversions == 1
