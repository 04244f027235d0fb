"""Measure the kernels for products on a GPU beside those that are chosen.

    python -m tests.benchmarks.tune --op dot,combine --dtype float64 --widths 1-16 [--by 4] [--json FILE]
    python -m tests.benchmarks.tune --matrix laplace3d:n=160 --widths 1,4,8

Of each family all configurations of the list are measured, and vendors' kernels. The records show what the
choices are worth.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blockvec import BlockVector, as_operator
from blockvec.__main__ import DTYPES, parse_widths
from blockvec.backends import backend_for
from blockvec.errors import OptionError
from blockvec.kernels.families import FAMILIES, SPARSE_FAMILIES
from blockvec.kernels.problem import (
    GRAMS,
    MAX_ALIGNMENT,
    Problem,
    SpmmvProblem,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
)
from blockvec.kernels.roofline import Ceilings, fraction
from blockvec.models.catalogue import open_matrix
from blockvec.operations.profile import ceilings
from blockvec.system.config import options
from tests.benchmarks.contest import Outcome, Variant, faults_ahead, select_fastest, source_of, variants
from tests.benchmarks.dense_operands import operands, with_rows
from tests.benchmarks.harness import recorded
from tests.benchmarks.records import Record, kernel_record
from tests.benchmarks.sparse_operands import SparseOperands, variants_of

__all__ = ["problems", "tune", "tune_sparse"]

ROWS = 1 << 24  # any number that makes problems large; operands have their own
EVERY = 100  # configurations per family, more than there are
WORTH = 0.98  # time of a converted matrix, relative to that without, up to which its memory is spent


def problems(
    operations: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    *,
    ld: int | None = None,
    beta: bool = False,
) -> Iterator[TsmttsmProblem | TsmmProblem]:
    """Yield problems of contiguous operands, or of views of leading dimension `ld`.

    Operations are ``"dot"``, ``"gram"`` for equal widths M and N, ``"combine"``, which adds to its output if
    `beta`, and ``"inplace"`` for N <= M.
    """
    for dtype in dtypes:
        for operation in operations:
            for M, N in shapes:
                align = MAX_ALIGNMENT if ld is None else min(itemsize(dtype), MAX_ALIGNMENT)
                layout: Any = {"lda": ld or M, "ldb": ld or N, "align_a": align, "align_b": align}
                if ld is not None and max(M, N) > ld:
                    raise OptionError(f"a view of {max(M, N)} columns has no leading dimension of {ld}.")
                if operation == "dot" or (operation == "gram" and M == N):
                    conj, same = is_complex(dtype), operation == "gram"
                    yield TsmttsmProblem(ROWS, M, N, dtype, dtype, conj=conj, same=same, **layout)
                elif operation == "combine":
                    yield TsmmProblem(ROWS, M, N, dtype, dtype, beta="general" if beta else "zero", **layout)
                elif operation == "inplace" and N <= M:
                    yield TsmmProblem(
                        ROWS, M, N, dtype, dtype, inplace=True, **(layout | {"ldb": layout["lda"]})
                    )


def tune(
    problem: TsmttsmProblem | TsmmProblem, backend: Any, limits: Ceilings, budget_s: float, first: int = EVERY
) -> tuple[TsmttsmProblem | TsmmProblem, Outcome | None]:
    """Measure the kernels for a product of blocks; return the problem and what was measured."""
    problem = with_rows(problem)
    field = variants(problem, backend.device, first=first)
    sources = {variant: source_of(problem, variant, backend.device) for variant in field}
    architecture, threads = backend.device.architecture, os.cpu_count() or 1
    faults = faults_ahead(sources.values(), architecture, options().cache_dir, threads)
    ready = [variant for variant in field if not faults[sources[variant]]]
    others = [c.name for c in backend.candidates(problem) if not c.refusal and c.name not in FAMILIES]
    setup = operands(backend, problem)
    entered = [*map(Variant, others), *ready]

    def select() -> Outcome | None:
        return select_fastest(entered, setup.check, setup.time_in_turns, budget_s=budget_s)

    return problem, backend._gpu.on_device(select)()


def tune_sparse(
    problem: SpmmvProblem, matrix: Any, backend: Any, limits: Ceilings, budget_s: float, first: int = EVERY
) -> Outcome | None:
    """Measure the kernels for products with a matrix."""
    gpu = backend._gpu
    candidates = backend.candidates(problem)
    others = {c.name: c for c in candidates if not c.refusal and c.name not in SPARSE_FAMILIES}
    field = [*map(Variant, others), *variants_of(problem, backend.device, first)]

    def select() -> Outcome | None:
        setup = SparseOperands(gpu, problem, matrix, others, backend.stopwatch)
        return select_fastest(field, setup.check, setup.time, budget_s=budget_s)

    outcome = gpu.on_device(select)()
    return outcome and without_conversion(outcome)


def without_conversion(outcome: Outcome) -> Outcome:
    """Prefer the best kernel that takes the matrix as it is, unless a converted one gains enough."""

    def converts(name: str) -> bool:
        return name in SPARSE_FAMILIES and SPARSE_FAMILIES[name].converts

    timed = [t for t in outcome.trials if t.timing is not None and not converts(t.variant.kernel)]
    best = min(timed, key=lambda trial: trial.timing.median_s, default=outcome.best)  # type: ignore[union-attr]
    is_worth = outcome.seconds < WORTH * Outcome(best, ()).seconds
    return outcome if is_worth else dataclasses.replace(outcome, best=best)


def record(problem: Problem, outcome: Outcome, limits: Ceilings, matrix: str | None = None) -> Record:
    """Create the record of the fastest kernel, with the time of the model's choice and of other kernels."""
    best = outcome.best
    assert best.timing is not None
    others = {t.variant.kernel: t.timing for t in outcome.trials if t.timing and t.variant.place is None}
    peers = {name: timing for name, timing in others.items() if name != best.variant.kernel}
    config = dataclasses.asdict(best.variant.config) if best.variant.config else ""
    made = kernel_record(
        problem, best.variant.kernel, best.timing, limits, peers, config=config, matrix=matrix
    )
    faults = [f"{t.variant.kernel} {t.variant.config}: {t.fault}" for t in outcome.faults]
    return made | {"choice_s": outcome.choice_s, "trials": len(outcome.trials), "faults": faults}


def line(problem: Any, outcome: Outcome | None, limits: Ceilings) -> str:
    """Format fractions of the roofline: of the fastest kernel and of the model's choice."""
    is_sparse = isinstance(problem, SpmmvProblem)
    M, N = (problem.width, problem.width) if is_sparse else (problem.M, problem.N)
    head = f"{problem.operation:8} {problem.dtype:10} {M:3d} {N:3d}"
    if outcome is None:
        return f"{head} no kernel is right"
    times = outcome.seconds, outcome.choice_s
    shares = [f"{fraction(problem, time_s, limits):7.1%}" if time_s else f"{'-':>7}" for time_s in times]
    counts = f"{len(outcome.trials):4d} {len(outcome.faults):3d}"
    return f"{head} {' '.join(shares)} {counts}  {outcome.best.variant.kernel}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", default="dot,gram,combine", help="some of dot,gram,combine,inplace")
    parser.add_argument("--dtype", default="float64,complex128", help=f"some of {','.join(DTYPES)}")
    parser.add_argument("--widths", type=parse_widths, default=(1, 2, 4, 8, 16, 32, 64))
    parser.add_argument("--by", type=parse_widths, help="pairs of a width and one of these")
    parser.add_argument("--ld", type=int, help="views with this leading dimension")
    parser.add_argument("--beta", action="store_true", help="products that are added to the output")
    parser.add_argument("--matrix", action="append", help="instead, products of a sparse model or file")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of timing per problem")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin none after so many seconds")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    return parser.parse_args()


def _measured(
    arguments: argparse.Namespace, backend: Any, limits: Ceilings
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield problems, outcomes and names of matrices."""
    dtypes = arguments.dtype.split(",")
    if arguments.matrix:
        for name in arguments.matrix:
            for dtype in dtypes:
                S = as_operator(open_matrix(name).astype(dtype), device="gpu")
                for width in arguments.widths:
                    plain, _ = S.explain(BlockVector.empty(S.shape[1], width, dtype, device="gpu"))
                    step = {"alpha": "general", "beta": "general", "shift": "scalar", "dots": ("xy", "yy")}
                    kinds = (
                        plain,
                        dataclasses.replace(plain, **step),
                        dataclasses.replace(plain, gram=GRAMS),
                    )
                    is_square = S.shape[0] == S.shape[1]
                    for problem in kinds[: 2 + (width > 1)] if is_square else kinds[:1]:
                        if any(not c.refusal for c in backend.candidates(problem)):
                            outcome = tune_sparse(problem, S.prepared, backend, limits, arguments.budget)
                            yield problem, outcome, name
        return
    shapes = [(M, N) for M in arguments.widths for N in (arguments.by or (M,))]
    layout = {"ld": arguments.ld, "beta": arguments.beta}
    for wanted in problems(arguments.op.split(","), dtypes, shapes, **layout):
        yield *tune(wanted, backend, limits, arguments.budget), None


def main() -> int:
    """Measure what the arguments name."""
    arguments = _arguments()
    backend = backend_for("gpu")
    limits = ceilings(backend, refresh=True)
    begin = time.perf_counter()
    print(f"{'call':8} {'type':10} {'M':>3} {'N':>3} {'best':>7} {'model':>7} {'runs':>4} {'bad':>3}  kernel")

    def rows() -> Iterator[Record]:
        for problem, outcome, matrix in _measured(arguments, backend, limits):
            print(line(problem, outcome, limits), flush=True)
            if outcome is not None:
                yield record(problem, outcome, limits, matrix)
            if time.perf_counter() - begin > arguments.limit:
                break

    recorded(rows(), arguments.json, "gpu", line=None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
