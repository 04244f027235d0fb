"""Calls drawn by seed are answered rightly on a GPU."""

from __future__ import annotations

import pytest

from tests.drawn.judge import attempt, is_accepted
from tests.drawn.problems import KINDS

pytestmark = pytest.mark.gpu

SEEDS = {"doubled": 160, "generalised": 60, "sizeable": 40, "single": 60, "penalty": 20}
CHUNK = 20
MOST_ROWS = 4000


@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind in KINDS for first in range(0, SEEDS[kind], CHUNK)]
)
def test_drawn_calls_are_answered_rightly_on_a_gpu(kind: str, first: int) -> None:
    draws = [KINDS[kind](seed, MOST_ROWS) for seed in range(first, first + CHUNK)]
    verdicts = [(draw, attempt(draw, "gpu")) for draw in draws]
    wrong = [f"{v.outcome}: {draw} # {v.reason}" for draw, v in verdicts if not is_accepted(draw, v.outcome)]
    assert not wrong, "\n".join(wrong)
