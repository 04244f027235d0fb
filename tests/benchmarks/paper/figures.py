"""Measure the figures of Ernst et al. (2021) on a GPU; `points` lists the kernels to compare.

    python -m tests.benchmarks.paper.figures --json docs/results/<device>/paper.json
    ... --figures tiles,reductions

Products that are in the file already are left out, so that a run that was stopped can go on; to measure one
again, delete the file. Of the kernels of equal settings the fastest is kept. Every kernel's product is
compared with an exact one before it is timed. Operands are 1 GiB each; the reductions' smaller ones are
multiplied in replayed CUDA graphs, without the latency of launches.

CUTLASS's split-K kernel, a peer in the paper, is a C++ template for nvcc, of which no package of compiled
kernels is known; its place takes cuBLAS by slices of the rows that are added up (`cublas_splitk`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blockvec.backends import Backend, backend_for
from blockvec.errors import OptionError
from blockvec.kernels.measure import Timing, measure_beside
from blockvec.kernels.problem import TsmttsmProblem, is_complex
from blockvec.kernels.roofline import Ceilings
from blockvec.operations.profile import ceilings
from tests.benchmarks import records as results
from tests.benchmarks.dense_operands import COOL_S, WORK_SHARE, is_hot, time_in_turns
from tests.benchmarks.harness import recorded
from tests.benchmarks.paper.kernels import Tsmttsm, grid_of, launcher, load, name_of
from tests.benchmarks.paper.points import FIGURES, OPERAND_BYTES, Point, points

BUDGET_S = 0.01  # of timing, per kernel
FEW_BYTES = 256 << 20  # smaller operands are timed in graphs
REPLAYS = 20  # launches per graph
EXACT_BYTES = 48 << 20  # of a tall operand, while products are checked
RAGGED_ROWS = 37  # so that no block divides the rows

Record = dict[str, Any]


class Numbers:
    """Numbers for the operands of every product: random ones, and small integers, whose sums are exact."""

    def __init__(self) -> None:
        import cupy

        random = cupy.random.default_rng(0)
        count = OPERAND_BYTES // 8
        self._random = [random.random(count) for _ in range(2)]
        self._spare = cupy.empty(count)
        count = EXACT_BYTES // 8 + 2 * 64 * RAGGED_ROWS
        self._exact = [random.integers(-4, 5, count).astype("float64") for _ in range(2)]
        self._products: dict[Any, Any] = {}

    def operands(self, point: Point, *, exact: bool = False) -> tuple[Any, Any, Any]:
        """Return the operands of a product and its result, in the order that kernels take them."""
        config, rows, first, second = point.config, point.K, *self._random
        if exact:
            rows, first, second = EXACT_BYTES // (8 * config.M * config.parts) + RAGGED_ROWS, *self._exact
        A = _view(first, rows, config.M, config.dtype)
        if isinstance(config, Tsmttsm):
            B = _view(second, rows, config.N, config.dtype)
            return A, B, _view(self._spare, config.M, config.N, config.dtype)
        C = _view(second, config.M, config.N, config.dtype)
        return A, C, _view(self._spare, rows, config.N, config.dtype)

    def is_right(self, point: Point, multiprocessors: int) -> bool:
        """Check whether two launches compute the exact product; those without a result are not checked."""
        import cupy

        config = point.config
        adds = isinstance(config, Tsmttsm)
        if isinstance(config, Tsmttsm) and config.reduction == "none":
            return True
        A, B, out = self.operands(point, exact=True)
        key = (adds, config.M, config.N, config.dtype)
        if key not in self._products:  # of one product at a time: those of A C are large
            self._products = {key: cupy.matmul(A.conj().T if adds else A, B)}
        out.fill(0 if adds else float("nan"))
        launch = launcher(config, (A, B, out), grid_of(config, A.shape[0], multiprocessors))
        launch()
        launch()
        return bool(cupy.array_equal(out, self._products[key] * (2 if adds else 1)))


def _view(numbers: Any, rows: int, width: int, dtype: str) -> Any:
    count = rows * width * (2 if is_complex(dtype) else 1)
    return numbers[:count].view(dtype).reshape(rows, width)


def measured(
    todo: Sequence[Point], backend: Any, limits: Ceilings, *, budget_s: float
) -> Iterator[tuple[Point, Record]]:
    """Yield the fastest kernel of each setting with its record, one product after the other.

    The kernels of a figure are compiled by threads before the first of them is timed. No product is begun
    after `budget_s` seconds.
    """
    deadline = time.monotonic() + budget_s
    numbers = Numbers()
    figures: dict[str, dict[Any, list[Point]]] = {}
    for point in todo:
        figures.setdefault(point.figure, {}).setdefault(point.problem, []).append(point)
    for figure, groups in figures.items():
        every = dict.fromkeys(point.config for group in groups.values() for point in group)
        with ThreadPoolExecutor(os.cpu_count() or 1) as executor:
            kernels = dict(zip(every, executor.map(load, every), strict=True))
        for problem, group in groups.items():
            if time.monotonic() > deadline:
                return
            right = []
            for point in group:
                if kernels[point.config] and numbers.is_right(point, backend.device.multiprocessors):
                    right.append(point)
                else:
                    print(f"{figure}: spills or is wrong: {point.config}", file=sys.stderr, flush=True)
            for point, timing, peers in _fastest(right, numbers, backend):
                config = dataclasses.asdict(point.config)
                kernel = f"paper_{name_of(point.config)}"
                record = results.kernel_record(problem, kernel, timing, limits, peers, config=config)
                yield point, {"figure": figure, **record, **point.setting}


def _fastest(
    group: Sequence[Point], numbers: Numbers, backend: Any
) -> Iterator[tuple[Point, Timing, dict[str, Timing]]]:
    """Time kernels of one product; over all widths also cuBLAS and the kernel that blockvec selects."""
    if not group:
        return
    sms, problem, operands = backend.device.multiprocessors, group[0].problem, numbers.operands(group[0])
    calls: list[Callable[[], None]] = []
    for point in group:
        grid = point.resident * sms or grid_of(point.config, point.K, sms)
        calls.append(launcher(point.config, operands, grid))
    if isinstance(problem, TsmttsmProblem) and problem.K * problem.M * 16 < FEW_BYTES:
        timings, peers = [_replayed(call, backend) for call in calls], {}
    else:
        rivals = _peers(problem, operands, backend) if group[0].figure == "roofline" else {}
        every = [*calls, *rivals.values()]
        share, pause_s = (WORK_SHARE, COOL_S) if is_hot(problem) else (1.0, 0.0)
        timings = time_in_turns(every, backend.stopwatch, share * BUDGET_S * len(every), pause_s=pause_s)
        peers = dict(zip(rivals, timings[len(calls) :], strict=True))
    best: dict[tuple[Any, ...], tuple[Point, Timing]] = {}
    for point, timing in zip(group, timings, strict=False):
        setting = tuple(point.setting.values())
        if setting not in best or timing.median_s < best[setting][1].median_s:
            best[setting] = point, timing
    for point, timing in best.values():
        yield point, timing, peers


def _peers(problem: Any, operands: tuple[Any, Any, Any], backend: Any) -> dict[str, Callable[[], None]]:
    accepted = [candidate for candidate in backend.candidates(problem) if not candidate.refusal]
    peers = {"blockvec": accepted[0]} | {c.name: c for c in accepted if c.name.startswith(("cublas", "blas"))}
    return {name: functools.partial(c.run, problem, *operands, 1, 0) for name, c in peers.items()}


def _replayed(call: Callable[[], None], backend: Any) -> Timing:
    """Time one of several launches in a graph."""

    def launches() -> None:
        for _ in range(REPLAYS):
            call()

    launches()
    graphs = backend.graphs()
    graphs.enter()
    try:
        replay = graphs.record(launches)
        whole = measure_beside({"": replay}, backend.stopwatch, budget_s=BUDGET_S, burst=8)[""]
    finally:
        graphs.leave()
    return dataclasses.replace(whole, median_s=whole.median_s / REPLAYS, best_s=whole.best_s / REPLAYS)


def key_of(record: Record) -> tuple[Any, ...]:
    """Identify the product of a record in a figure."""
    return tuple(record[name] for name in ("figure", "operation", "dtype", "M", "K"))


def missing(figures: Sequence[str], backend: Backend, known: Sequence[Record]) -> list[Point]:
    """List the points of figures whose products no record has; a CPU raises an `OptionError`."""
    if backend.device.kind != "cuda":
        raise OptionError("the figures compare kernels of a GPU; give --device gpu.")
    done = set(map(key_of, known))

    def key(point: Point) -> tuple[Any, ...]:
        problem = point.problem
        return point.figure, problem.operation, problem.dtype, problem.M, problem.K

    return [point for point in points(figures, backend.device) if key(point) not in done]


def line(record: Record) -> str:
    """Return a row of the table."""
    return f"{record['figure']} {record['family']} {record['M']} {record['fraction']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", default=",".join(FIGURES), metavar="NAMES")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--budget", type=float, default=420.0, metavar="S", help="seconds of measuring")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    backend = backend_for(arguments.device)
    known = results.read(arguments.json)["records"] if arguments.json.exists() else []
    todo = missing(arguments.figures.split(","), backend, known)
    limits = ceilings(backend, refresh=True)
    rows = (record for _, record in measured(todo, backend, limits, budget_s=arguments.budget))
    records = recorded(rows, arguments.json, arguments.device, line, known)
    left = len(missing(list(FIGURES), backend, records))
    print(f"{left} kernels are left: repeat the command." if left else "All figures are recorded.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
