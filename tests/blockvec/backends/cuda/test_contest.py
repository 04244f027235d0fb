"""Selection of variants by the CUDA backend, on a device that only counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import blockvec
from blockvec.kernels.compile import Cubin, Resources
from blockvec.kernels.device import H200
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import TsmttsmProblem
from blockvec.kernels.roofline import Ceilings
from blockvec.kernels.tuning import selection as tuner
from blockvec.kernels.tuning.selection import Variant
from blockvec.kernels.tuning.winners import find

pytest.importorskip("cupy", reason="CuPy is not installed")

from blockvec.backends.cuda.backend import CudaBackend

PROBLEM = TsmttsmProblem(1 << 24, 8, 8, "float64", "float64", 8, 8)
LIMITS = Ceilings(4600, 4400, 4200, {"float64": 66e3})


class _Gpu:
    """A device whose functions take what those of `Gpu.on_device` take."""

    id, info = 0, H200

    def on_device(self, run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: run(*arguments)


class _Operands:
    """Every variant is right, and the later the faster."""

    def check(self, variant: Variant) -> str:
        return ""

    def time_in_turns(self, field: Sequence[Variant], seconds: float) -> list[Timing]:
        times = [1e-3 / (2 + (variant.place or 0)) for variant in field]
        return [Timing(time_s, time_s, 0.0, 1) for time_s in times]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    monkeypatch.setattr(CudaBackend, "tuning_operands", lambda self, problem: _Operands())
    compiled = Cubin("", b"", Resources(registers=32, spill_bytes=0, stack_bytes=0, shared_bytes=0))
    monkeypatch.setattr(tuner, "build", lambda *_, **__: compiled)
    return CudaBackend(_Gpu())  # type: ignore[arg-type]


def test_every_variant_is_announced_and_the_fastest_wins(backend: CudaBackend) -> None:
    with ThreadPoolExecutor() as executor:
        ready, faults = backend.prepare(PROBLEM, LIMITS, executor, first=3).wait()
    assert (len(ready), faults) == (3, [])
    entered = [*backend.other_variants(PROBLEM), *ready]
    announced: list[Variant] = []
    outcome = backend.select_fastest(PROBLEM, entered, 1.0, announced.append)
    assert outcome is not None
    assert outcome.best.variant == ready[-1]
    assert set(announced) == set(entered)


def test_what_is_tuned_is_found_from_then_on(backend: CudaBackend, tmp_path: Path) -> None:
    with blockvec.option_context(cache_dir=tmp_path):
        backend.tune(PROBLEM, LIMITS, 1.0)
        winner = find(PROBLEM, H200, tmp_path)
        assert winner is not None
        assert winner.origin == f"tuned on this {H200.name}"
        assert not backend.can_tune(PROBLEM)
