"""Tuning sparse products: matrix by matrix, type by type, width by width."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..backends import Backend
from ..blockvector import BlockVector
from ..dispatch import accepts, forget
from ..kernels.problem import GRAMS, SpmmvProblem
from ..kernels.roofline import Ceilings
from ..kernels.tuning.selection import Outcome
from ..kernels.tuning.winners import representative
from ..sparse_operator import SparseOperator
from .sparse import FUSED, FUSED_WIDTHS
from .tuning import columns, outcome_record

AHEAD = 6  # products whose kernels are compiled while others are measured

Record = dict[str, Any]


def tune_matrices(
    matrices: Sequence[str],
    dtypes: Sequence[str],
    widths: Sequence[int],
    matrix_of: Callable[[str], Any],
    backend: Backend,
    ceilings: Ceilings,
    *,
    budget_s: float,
    first: int,
    limit_s: float,
) -> Iterator[tuple[Record, str]]:
    """Tune products and store the winners in the user's cache folder; yield records and lines of a table.

    All combinations are tuned, with the `first` configurations per family in the order of the model, for
    `budget_s` seconds each; none is begun after `limit_s` seconds. `matrix_of` returns a matrix by name.
    """
    device: Any = backend
    context = multiprocessing.get_context("spawn")  # a fork would inherit CUDA's state
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as executor:

        def coming() -> Iterator[tuple[str, Any]]:
            for name, dtype in itertools.product(matrices, dtypes):
                S = SparseOperator(matrix_of(name).astype(dtype), backend)
                for width in widths:
                    X = BlockVector.empty(S.shape[1], width, dtype, device=backend.name)
                    plain, _ = S.explain(X)
                    for problem in _kinds(plain, backend):
                        yield name, device.sparse_tuning(problem, S.prepared, ceilings, executor, first=first)

        left, begin = coming(), time.perf_counter()
        ahead: deque[tuple[str, Any]] = deque()
        while True:
            ahead.extend(itertools.islice(left, AHEAD - len(ahead)))
            if not ahead or time.perf_counter() - begin > limit_s:
                break
            name, tuning = ahead.popleft()
            if representative(tuning.problem) is None:
                continue  # too small to be on record
            outcome = tuning.measure(budget_s)
            forget()
            yield _record(name, tuning, outcome, ceilings), _line(name, tuning.problem, outcome, ceilings)
        executor.shutdown(cancel_futures=True)


def _kinds(plain: SpmmvProblem, backend: Backend) -> list[SpmmvProblem]:
    """List the problems to tune for a product: itself, and its supported fused forms."""
    if plain.dtype != "float64" or plain.width not in FUSED_WIDTHS:
        return [plain]
    kinds = [dataclasses.replace(plain, **sums).kind for sums in (FUSED, {"gram": GRAMS})]
    return [plain, *(kind for kind in kinds if kind.fused and accepts(kind, backend))]


def _record(name: str, tuning: Any, outcome: Outcome, ceilings: Ceilings) -> Record:
    problem = tuning.problem
    winner = outcome.winner(problem, ceilings)
    key = representative(problem)
    assert key is not None
    config = {} if winner.config is None else dataclasses.asdict(winner.config)
    record = outcome_record(problem, outcome, ceilings, config=config, matrix=name)
    return record | {"stored": winner.record(key)}


def heading() -> str:
    """Format the head of the table; fractions are of the memory roofline."""
    return (
        f"{'matrix':17} {'type':10} {'M':>3} {'best':>7} {'model':>7} {'own':>7} {'others':>7} {'runs':>4} "
        f"{'bad':>3}  winner"
    )


def _line(name: str, problem: Any, outcome: Outcome, ceilings: Ceilings) -> str:
    times = outcome.seconds, outcome.best_s(places=1), outcome.best_s(), outcome.best_s(own=False)
    best = outcome.best.variant
    config = "" if best.config is None else ",".join(str(v) for v in dataclasses.astuple(best.config))
    sums = "+gram" if problem.gram else "+dots" if problem.dots else ""
    head = f"{name.split(':')[0] + sums:17} {problem.dtype:10} {problem.width:3d}"
    return f"{head} {columns(problem, times, outcome, ceilings)}  {best.kernel} {config}"
