"""The tuner on recorded tables: the fastest right kernel wins, within the budget, and wrong ones never do."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec.errors import CompileError
from blockvec.kernels import compile as compiler
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES, families_of, ranked
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import SpmmvProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.roofline import Ceilings
from blockvec.kernels.tuning import selection as tuner
from blockvec.kernels.tuning.selection import Preparation, Variant, build_ahead, select_fastest, variants
from blockvec.kernels.tuning.winners import Winner

D8 = TsmttsmProblem(1 << 24, 8, 8, "float64", "float64", 8, 8)
PROBLEMS = [
    D8,
    TsmttsmProblem(1 << 24, 33, 33, "complex128", "complex128", 33, 33, same=True),
    TsmttsmProblem(1 << 24, 8, 3, "complex64", "complex64", 8, 3),
    TsmmProblem(1 << 24, 13, 13, "float64", "float64", 61, 61, 8, 8),
    TsmmProblem(1 << 24, 8, 4, "float32", "float32", 8, 8, inplace=True),
]


class Course:
    """Times on record: the first reading of a variant and a later, truer one."""

    def __init__(self, times: Sequence[tuple[float, float]]) -> None:
        self.times = times
        self.clock_s = 0.0
        self.timed: list[str] = []

    def time_in_turns(self, field: Sequence[Variant], seconds: float) -> list[Timing]:
        self.clock_s += seconds
        self.timed += [variant.kernel for variant in field]
        final = len(field) > 1
        readings = [self.times[int(variant.kernel)][final] for variant in field]
        return [Timing(reading, reading, 0.0, 1) for reading in readings]


def field(count: int) -> list[Variant]:
    return [Variant(str(i), place=i) for i in range(count)]


seconds = st.floats(1e-4, 1.0)


@given(st.lists(seconds, min_size=1, max_size=12), st.data())
def test_the_fastest_right_variant_wins_and_wrong_ones_are_never_timed(
    times: list[float], data: st.DataObject
) -> None:
    wrong = data.draw(st.sets(st.sampled_from(range(len(times)))))
    course = Course([(t, t) for t in times])
    outcome = select_fastest(
        field(len(times)),
        lambda e: "wrong" if int(e.kernel) in wrong else "",
        course.time_in_turns,
        budget_s=1e9,
    )
    right = [t for i, t in enumerate(times) if i not in wrong]
    if not right:
        assert outcome is None
        return
    assert outcome is not None
    assert outcome.seconds == min(right)
    assert {int(trial.variant.kernel) for trial in outcome.faults} == wrong
    assert not wrong & set(map(int, course.timed))
    assert outcome.left_out == 0


def test_close_ones_meet_again_and_the_later_reading_decides() -> None:
    course = Course([(1.00, 1.05), (1.01, 1.00), (1.5, 0.1)])
    outcome = select_fastest(field(3), lambda _: "", course.time_in_turns, budget_s=1.0)
    assert outcome is not None
    assert outcome.best.variant.kernel == "1"
    assert course.timed == ["0", "1", "2", "0", "1"]
    assert len(outcome.trials) == 3


def test_the_budget_ends_the_trials_but_not_before_one_is_timed() -> None:
    course = Course([(1.0 + i, 1.0 + i) for i in range(10)])

    def slow(variants: Sequence[Variant], seconds: float) -> list[Timing]:
        timings = course.time_in_turns(variants, seconds)
        course.clock_s += 10.0
        return timings

    outcome = select_fastest(field(10), lambda _: "", slow, budget_s=1.0, clock=lambda: course.clock_s)
    assert outcome is not None
    assert outcome.best.variant.kernel == "0"
    assert outcome.left_out == 9


def test_a_vendors_slow_kernel_comes_last_and_always() -> None:
    course = Course([(100.0, 100.0), (1.0, 1.0), (1.5, 1.5)])
    vendor, *own = field(3)

    def slow(variants: Sequence[Variant], seconds: float) -> list[Timing]:
        course.clock_s += 10.0
        return course.time_in_turns(variants, seconds)

    entered = [Variant(vendor.kernel), *own]
    outcome = select_fastest(entered, lambda _: "", slow, budget_s=1.0, clock=lambda: course.clock_s)
    assert outcome is not None
    assert course.timed == ["1", "0"]
    assert (outcome.best.variant.kernel, outcome.left_out) == ("1", 1)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_variants_are_valid_differ_and_begin_with_the_models_choices(problem: TsmttsmProblem) -> None:
    chosen = variants(problem, H200, first=3, sample=2)
    assert len(set(chosen)) == len(chosen) == 5
    assert [variant.place for variant in chosen[:3]] == [0, 1, 2]
    for variant in chosen:
        assert FAMILIES[variant.kernel].refuse(problem, variant.config, H200) is None
        assert variant.predicted_s is not None
        assert variant.predicted_s > 0
    supporting = [f for f in families_of(problem) if f.supports(problem, H200) is None]
    assert chosen[0].kernel == supporting[0].name
    assert chosen[0].config == supporting[0].choose(problem, H200)
    assert chosen == variants(problem, H200, first=3, sample=2)
    assert chosen != variants(problem, H200, first=3, sample=2, seed=1)


def test_the_winner_on_record_comes_second_wherever_the_model_places_it() -> None:
    last = variants(D8, H200, first=40)[-1]
    known = Winner(last.kernel, last.config, 1, 1.0, 0.5, "")
    chosen = variants(D8, H200, first=3, known=known)
    assert [variant.place for variant in chosen] == [0, 39, 1, 2]
    assert variants(D8, H200, first=40, known=known)[1] == last
    absent = Winner("cublas", None, 1, 1.0, 0.5, "")
    assert variants(D8, H200, first=3, known=absent) == variants(D8, H200, first=3)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_order_is_that_of_the_modelled_times(problem: TsmttsmProblem) -> None:
    times = [variant.predicted_s for variant in variants(problem, H200, first=20)][1:]
    assert times == sorted(times)  # type: ignore[type-var]
    for family in families_of(problem):
        if family.supports(problem, H200) is None:
            order = ranked(family, problem, H200)
            assert order == sorted(order, key=lambda pair: pair[0])


def test_sparse_products_have_no_families_of_this_kind() -> None:
    assert families_of(SpmmvProblem(9, 9, 9, 2, "float64", "float64", 2, 2)) == []


def test_kernels_that_spill_registers_or_do_not_compile_take_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((0, 16, None))

    def build(*_: object, **__: object) -> compiler.Cubin:
        spilled = next(answers)
        if spilled is None:
            raise CompileError("no such instruction")
        return compiler.Cubin("", b"", compiler.Resources(255, spilled, 0, 0))

    monkeypatch.setattr(tuner, "build", build)
    with ThreadPoolExecutor(1) as executor:
        limits = Ceilings(4600, 4400, 4200)
        ready, faults = Preparation(D8, H200, limits, executor, tmp_path, first=3).wait()
    assert [variant.place for variant in ready] == [0]
    assert [trial.fault for trial in faults] == ["spills 16 bytes", "no such instruction"]


def test_kernels_are_compiled_ahead_into_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    chosen = variants(D8, H200, first=1)
    with ThreadPoolExecutor(2) as executor:
        jobs = build_ahead(D8, [*chosen, Variant("cublas")], H200, tmp_path, executor)
        assert [job.result() for job in jobs.values()] == [""] * len(chosen)
    for variant in chosen:
        source = FAMILIES[variant.kernel].source(D8, variant.config, H200)
        key = compiler.build(source, H200.architecture, cache_dir=tmp_path).key
        assert (tmp_path / "cubins" / f"{key}.cubin").exists()
    assert len(list((tmp_path / "cubins").iterdir())) == len(chosen)
