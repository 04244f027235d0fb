"""Which configuration runs: chosen before, measured on this device, or the model's."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockvec
from blockvec.kernels import selection
from blockvec.kernels.device import H200
from blockvec.kernels.families import CSR, FAMILIES
from blockvec.kernels.problem import SpmmvProblem, TsmttsmProblem
from blockvec.kernels.selection import MODEL, Selection, choose, measured
from tests.benchmarks.measured import record_measured
from tests.devices import A100
from tests.kernel_problems import TYPES, chain, dense, sparse, supporting, sweep, wide

FAMILY = FAMILIES["tsmttsm_mma"]
DOT = TsmttsmProblem(1 << 20, 8, 8, "float64", "float64", 8, 8)
SPARSE = SpmmvProblem(
    *(1 << 20, 1 << 20, 7 << 20, 4, "float64", "float64", 4, 4), pattern="planes", longest=7
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with blockvec.option_context(cache_dir=tmp_path):
        yield tmp_path


def other_configuration(family: Any, problem: Any) -> Any:
    chosen = family.choose(problem, H200)
    return next(config for config in family.configurations(problem, H200) if config != chosen)


@pytest.mark.parametrize(("family", "problem"), [(FAMILY, DOT), (CSR, SPARSE)], ids=["dense", "sparse"])
def test_what_was_measured_on_this_device_comes_first(family: Any, problem: Any) -> None:
    config = other_configuration(family, problem)
    assert record_measured({problem: Selection(family.name, config, "")}, H200)
    found = choose(family, problem, H200)
    assert found == Selection(family.name, config, "measured on this NVIDIA H200")
    assert choose(family, problem, A100).origin == MODEL
    with blockvec.option_context(tune="model"):
        assert choose(family, problem, H200).origin == MODEL
        assert measured(problem, H200) is None


def test_problems_of_a_kind_share_a_measurement_and_others_do_not() -> None:
    record_measured({DOT: Selection("cublas", None, "")}, H200)
    alike: list[dict[str, Any]] = [{"K": 700_000}, {"alpha": "general", "beta": "one"}]
    for changes in alike:
        found = measured(replace(DOT, **changes), H200)
        assert found is not None
        assert (found.kernel, found.config) == ("cublas", None)
    others: list[dict[str, Any]] = [
        {"K": 5000},
        {"lda": 9},
        {"align_a": 8},
        {"same": True},
        {"N": 7, "ldb": 7},
    ]
    for changes in others:
        assert measured(replace(DOT, **changes), H200) is None, changes
    record_measured({replace(DOT, lda=9): Selection("cublas", None, "")}, H200)
    assert measured(replace(DOT, lda=100), H200) is not None
    record_measured({SPARSE: Selection("cusparse", None, "")}, H200)
    assert measured(replace(SPARSE, nnz=int(7.2 * (1 << 20)), longest=9), H200) is not None
    assert measured(replace(SPARSE, nnz=14 << 20), H200) is None
    assert measured(DOT, H200) is not None  # kept beside what was added


VERSION, DIGEST = 4, "2b541ff0cbce3201"


def test_the_version_of_the_models_is_raised_when_choices_change() -> None:
    """If this fails: raise `VERSION` in kernels/selection.py and here; the message has the digest."""
    draw = random.Random(1)
    problems: list[Any] = []
    for width, dtype in itertools.product((1, 3, 8, 24, 48), TYPES):
        problems += [dense(draw, width, width, dtype), sparse(draw, width, dtype), chain(draw, width, dtype)]
    problems += [one(draw, dtype) for one in (sweep, wide) for dtype in TYPES[:2] for _ in range(4)]
    choices = [
        family.choose(family.alike(problem), H200)
        for problem in problems
        for family in supporting(problem, H200)
    ]
    digest = hashlib.sha256(repr(choices).encode()).hexdigest()[:16]
    assert (selection.VERSION, digest) == (VERSION, DIGEST)
