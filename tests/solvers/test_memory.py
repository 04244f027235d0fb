"""Estimates of memory before a run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from blockvec import models
from blockvec.errors import OptionError
from solvers import eigsh, memory_needed


def test_the_memory_of_a_run_is_known_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    A = models.model("laplace2d:n=40")
    matrix = 2 * A.nnz * 12
    monkeypatch.setattr("solvers.runtime.memory.SMALL_BYTES", 0)
    cases: list[dict[str, Any]] = [
        {"method": "lanczos"},
        {"method": "lanczos", "block_size": 4},
        {"method": "jd"},
        {"method": "filter", "ncv": 70},
    ]
    for options in cases:
        needed = memory_needed(A.shape[0], A.nnz, 6, **options)
        if len(options) > 1 or options["method"] == "jd":  # blocks of two in one process, of four in several
            assert abs(memory_needed(A.shape[0], A.nnz, 6, 4, **options) - needed / 4) <= 1
        for free, is_enough in ((needed - matrix, True), (needed - matrix - 1, False)):
            monkeypatch.setattr("solvers.runtime.memory.available_memory", lambda free=free: free)
            with nullcontext() if is_enough else pytest.raises(OptionError, match="lower ncv or k"):
                eigsh(A, 6, which="SA", rng=0, maxiter=1, on_unconverged="return", **options)
