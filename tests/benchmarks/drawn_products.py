"""Products of blocks of random shapes, types and leading dimensions on a GPU, beside cuBLAS.

    python -m tests.benchmarks.drawn_products [--count 100] [--seed 0] [--first 10] [--json FILE]

The kernel is the one that dispatch selects. Each result is checked on exact operands. Times are judged by the
memory sectors that the rows touch, and by the flops. With ``--first N`` the first N configurations of the
models are measured, too, which shows whether the kernel or the choice is slow. Records in FILE are kept, and
only the other products measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from blockvec.backends import backend_for
from blockvec.kernels.dense.layout import shares_sectors
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.family import choose
from blockvec.kernels.problem import MAX_ALIGNMENT, TsmmProblem, TsmttsmProblem, is_complex, itemsize
from blockvec.kernels.roofline import Ceilings, memory_time, time_limit
from blockvec.operations.profile import ceilings
from blockvec.system.config import options
from tests.benchmarks.contest import Variant, compile_fault, select_fastest, variants
from tests.benchmarks.dense_operands import (
    COOL_S,
    DenseOperands,
    is_hot,
    is_view,
    operands,
    plain_probes,
    with_rows,
)
from tests.benchmarks.records import Book, Record, environment, kernel_record, read, sector_traffic

DTYPES = ("float64", "complex128", "float32", "complex64")
WIDEST = 64


def draw(rng: np.random.Generator) -> TsmttsmProblem | TsmmProblem:
    """Draw an operation, a type, widths, and pitches of which half are those of contiguous blocks."""
    operation, dtype = rng.choice(["dot", "gram", "combine", "update"]), str(rng.choice(DTYPES))
    M, N = (int(width) for width in rng.integers(1, WIDEST + 1, 2))
    size = itemsize(dtype)

    def pitch(width: int) -> tuple[int, int]:
        if rng.random() < 0.5:
            return width, MAX_ALIGNMENT
        return width + int(rng.integers(1, WIDEST + 1)), min(size, MAX_ALIGNMENT)

    (lda, align_a), (ldb, align_b) = pitch(M), pitch(N)
    rows_bytes = int(rng.integers(256 << 20, 2 << 30))
    if operation == "gram":
        N, ldb, align_b = M, lda, align_a
    layout: dict[str, Any] = {"lda": lda, "ldb": ldb, "align_a": align_a, "align_b": align_b}
    problem: TsmttsmProblem | TsmmProblem
    if operation in ("dot", "gram"):
        is_gram = bool(operation == "gram")
        problem = TsmttsmProblem(1, M, N, dtype, dtype, conj=is_complex(dtype), same=is_gram, **layout)
    else:
        beta: Any = "general" if operation == "update" else "zero"
        problem = TsmmProblem(1, M, N, dtype, dtype, beta=beta, **layout)
    return dataclasses.replace(problem, K=with_rows(problem, rows_bytes).K)


def selected(problem: TsmttsmProblem | TsmmProblem, name: str, device: DeviceInfo) -> Variant:
    """Return the kernel that dispatch selects, which takes any number of rows."""
    if name not in FAMILIES:
        return Variant(name)
    return Variant(name, choose(FAMILIES[name], problem, device))


def compiled(
    problem: TsmttsmProblem | TsmmProblem, name: str, device: DeviceInfo, limits: Ceilings, first: int
) -> tuple[Variant, list[Variant]]:
    """Compile the selected kernel and the first ones of the models; those that fail are left out."""
    choice = selected(problem, name, device)
    others = variants(problem, device, first=first) if first else []
    known = [v for v in others if (v.kernel, v.config) != (choice.kernel, choice.config)]
    for prefetch_ends in (False, True) if is_view(problem) else ():
        if not prefetch_ends or _shares_sectors(problem):
            for probe in plain_probes(problem, prefetch_ends=prefetch_ends):
                compile_fault(probe.source(), device.architecture, options().cache_dir)
    ready = []
    for variant in (choice, *known):
        if variant.config is None:
            continue
        source = FAMILIES[variant.kernel].source(problem, variant.config, device)
        if not compile_fault(source, device.architecture, options().cache_dir):
            ready.append(variant)
    return choice, ready


def measured(
    setup: DenseOperands, choice: Variant, ready: list[Variant], vendors: list[str], limits: Ceilings
) -> Record:
    """Measure the selected kernel beside cuBLAS, and all kernels that are ready in turns."""
    problem = setup.problem
    timings = setup.time_in_turns([choice, *map(Variant, vendors)], 0.01 * (1 + len(vendors)))
    ours, peers = timings[0], dict(zip(vendors, timings[1:], strict=True))
    sectors_s = max(memory_time(sector_traffic(problem), limits), time_limit(problem, limits))
    config = dataclasses.asdict(choice.config) if choice.config else ""
    record = kernel_record(problem, choice.kernel, ours, limits, peers, config=config)
    record |= {
        "same": getattr(problem, "same", False),
        "fraction_sectors": round(sectors_s / ours.median_s, 4),
    }
    if is_view(problem):
        record["plain_s"] = setup.plain_s()
        if _shares_sectors(problem):
            record["plain_prefetched_s"] = setup.plain_s(prefetch_ends=True)
    if len(ready) > 1:
        each_s = 0.007 + 2 * COOL_S * is_hot(problem)
        outcome = select_fastest(ready, setup.check, setup.time_in_turns, budget_s=each_s * len(ready))
        if outcome is not None:
            best = outcome.best.variant
            choice_s = [t.timing.median_s for t in outcome.trials if t.timing and t.variant == choice]
            record |= {"best_s": outcome.seconds, "best": best.kernel}
            record |= {"best_config": dataclasses.asdict(best.config)} if best.config else {}
            record |= {"choice_s": choice_s[0]} if choice_s else {}
            record["faults"] = [f"{t.variant.kernel} {t.variant.config}: {t.fault}" for t in outcome.faults]
    return record


def _shares_sectors(problem: TsmttsmProblem | TsmmProblem) -> bool:
    return isinstance(problem, TsmmProblem) and shares_sectors(problem)


def line(record: Record) -> str:
    """Format a record: fractions of the selected kernel, the best and plain loads, and beside cuBLAS."""
    time_s, share = record["time_s"], record["fraction_sectors"]
    operation = "gram" if record["same"] else record["operation"]
    shape = f"{record['M']:3d} {record['N']:3d} {record['lda']:4d} {record['ldb']:4d}"
    best = share * record["choice_s"] / record["best_s"] if "choice_s" in record else math.nan
    plain_s = [record[name] for name in ("plain_s", "plain_prefetched_s") if name in record]
    plain = share * time_s / min(plain_s, default=math.nan)
    beside = min(record["peers"].values(), default=math.nan) / time_s
    beta = "beta" if record.get("beta", "zero") != "zero" else ""
    head = f"{operation:8} {record['dtype']:10} {shape} {beta:4} {time_s * 1e6:7.0f} us"
    return f"{head} {record['family']:12} {share:5.2f} {best:5.2f} {plain:5.2f} {beside:5.1f}"


def _key(record: Record) -> tuple[Any, ...]:
    names = ("operation", "dtype", "M", "N", "K", "lda", "ldb", "beta", "same")
    return tuple(record.get(name) for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--first", type=int, default=0, help="configurations to measure beside the selected one"
    )
    parser.add_argument(
        "--limit", type=float, default=math.inf, metavar="S", help="begin none after S seconds"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    backend: Any = backend_for("gpu")
    limits, rng = ceilings(backend), np.random.default_rng(arguments.seed)
    file = arguments.json
    kept = read(file)["records"] if file and file.exists() else []
    book, wrong = Book(file, environment(backend), kept), 0
    known = set(map(_key, kept))
    todo = []
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1)) as compilers:
        for _ in range(arguments.count):
            problem = draw(rng)
            if _key({"same": getattr(problem, "same", False)} | _fields(problem)) in known:
                continue
            first, *others = [c for c in backend.candidates(problem) if not c.refusal]
            job = compilers.submit(compiled, problem, first.name, backend.device, limits, arguments.first)
            todo.append((problem, [c.name for c in others if c.vendor], job))
        for problem, vendors, job in todo:
            if time.perf_counter() - begin > arguments.limit:
                break
            choice, ready = job.result()
            setup = operands(backend, problem)
            if fault := setup.check(choice):
                wrong += 1
                print(f"{problem}: {choice.kernel} {fault}")
                continue
            record = measured(setup, choice, ready, vendors, limits)
            book.add(record, limits)
            print(line(record), flush=True)
            del setup
    book.write()
    shares = [record["fraction_sectors"] for record in book.records]
    low = sum(share < 0.85 for share in shares)
    head = f"{len(shares)} products, {wrong} wrong"
    print(f"{head}: least {min(shares):.2f}, median {np.median(shares):.3f}, {low} below .85")
    return 1 if wrong else 0


def _fields(problem: TsmttsmProblem | TsmmProblem) -> Record:
    return {"operation": problem.operation, "dtype": problem.dtype} | {
        name: getattr(problem, name)
        for name in ("M", "N", "K", "lda", "ldb", "beta")
        if name != "beta" or isinstance(problem, TsmmProblem)
    }


if __name__ == "__main__":
    sys.exit(main())
