"""When a matrix is converted, decided without a GPU: products wait, convert once, and fall back."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from blockvec.backends.cuda import sparse
from blockvec.backends.cuda.device import Gpu
from blockvec.kernels.problem import SpmmvProblem
from tests.devices import H200

WAITS = 3
GPU = Gpu(0, H200)
NARROW = SpmmvProblem(10**6, 10**6, 7 * 10**6, 16, "float64", "float64", 16, 16)


@dataclass(frozen=True)
class Width:
    """A configuration."""

    width: int


class Family:
    """A family without kernels, whose configurations are widths."""

    def __init__(self, name: str, before: Family | None = None, *, refuses: bool = False) -> None:
        self.name, self.before, self.refuses = name, before, refuses
        self.converts = before is not None
        self.conversions = 0

    def alike(self, problem: SpmmvProblem) -> SpmmvProblem:
        return problem

    def choose(self, problem: SpmmvProblem, *_rest: Any) -> Width:
        return Width(problem.width)

    def converts_after(self, _problem: SpmmvProblem) -> int:
        return WAITS

    def before_conversion(self, problem: SpmmvProblem, _device: Any) -> tuple[Any, Width]:
        return self.before, Width(problem.width)

    def convert(self, *_rest: Any) -> Any:
        self.conversions += 1
        return None if self.refuses else "a form"

    def parts(self, *_rest: Any) -> tuple[str, ...]:
        return ()

    def workspace_bytes(self, *_rest: Any) -> int:
        return 0

    shared_bytes = carveout = workspace_bytes

    def bind(self, *_rest: Any) -> str:
        return self.name


class Device:
    """A matrix on a device that only counts."""

    def __init__(self) -> None:
        self.S: Any = SimpleNamespace(waited=Counter(), forms={}, bound={}, plan=None)
        self.capturing = False

    def product(self, family: Family, problem: SpmmvProblem = NARROW) -> Any:
        """What runs the next product."""
        known = self.S.bound.get((family.name, problem))
        launch, workspace_bytes = known or sparse.bind(GPU, family, problem, self.S)  # type: ignore[arg-type]
        assert workspace_bytes == 0
        return launch


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    stream = SimpleNamespace(is_capturing=lambda: made.capturing, synchronize=lambda: None)
    memory = SimpleNamespace(OutOfMemoryError=MemoryError)
    cuda = SimpleNamespace(get_current_stream=lambda: stream, memory=memory)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    return made


def family(*, refuses: bool = False) -> Family:
    return Family("converted", Family("in order"), refuses=refuses)


def test_a_family_of_compressed_rows_runs_at_once(device: Device) -> None:
    in_rows = Family("in rows")
    assert [device.product(in_rows) for _ in range(3)] == ["in rows"] * 3
    assert in_rows.conversions == 0


def test_a_matrix_is_converted_once_after_the_products_that_wait(device: Device) -> None:
    converted = family()
    found = [device.product(converted) for _ in range(WAITS + 5)]
    assert found == ["in order"] * WAITS + ["converted"] * 5
    assert converted.conversions == 1


def test_a_form_that_is_there_is_taken_at_once(device: Device) -> None:
    device.S.forms["converted"] = "a form"
    assert device.product(family()) == "converted"


def test_nothing_is_converted_while_a_graph_is_captured(device: Device) -> None:
    converted = family()
    device.capturing = True
    assert {device.product(converted) for _ in range(WAITS + 5)} == {"in order"}
    device.capturing = False
    assert device.product(converted) == "converted"


def test_a_matrix_that_has_no_form_is_asked_once(device: Device) -> None:
    converted = family(refuses=True)
    assert {device.product(converted) for _ in range(WAITS + 5)} == {"in order"}
    assert converted.conversions == 1
