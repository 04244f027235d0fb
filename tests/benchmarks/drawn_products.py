"""Products of blocks of random shapes, types and leading dimensions on a GPU, beside cuBLAS.

    python -m tests.benchmarks.drawn_products [--count 100] [--seed 0] [--json FILE]

The kernel is the one that dispatch selects. Each result is checked on exact operands. Times are judged by the
memory sectors that the rows touch, and by the flops.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

from blockvec.backends import backend_for
from blockvec.backends.cuda.tuning.dense import with_rows
from blockvec.bench.records import Book, environment, kernel_record
from blockvec.config import options
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import MAX_ALIGNMENT, TsmmProblem, TsmttsmProblem, is_complex, itemsize
from blockvec.kernels.roofline import memory_time, sector_traffic, time_limit
from blockvec.kernels.tuning.choices import choose
from blockvec.kernels.tuning.selection import Variant
from blockvec.kernels.tuning.winners import find
from blockvec.profile import ceilings

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
    winner = find(problem, device, options().winners_dir)
    if winner is not None and winner.kernel == name:
        return Variant(name, winner.config)
    return Variant(name, choose(FAMILIES[name], problem, device))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    backend: Any = backend_for("gpu")
    limits, rng = ceilings(backend), np.random.default_rng(arguments.seed)
    book, shares, wrong = Book(arguments.json, environment(backend)), [], 0
    for _ in range(arguments.count):
        problem = draw(rng)
        first, *others = [c for c in backend.candidates(problem) if not c.refusal]
        vendors = [c.name for c in others if c.vendor]
        setup, variant = backend.tuning_operands(problem), selected(problem, first.name, backend.device)
        if fault := setup.check(variant):
            wrong += 1
            print(f"{problem}: {first.name} {fault}")
            continue
        timings = setup.time_in_turns([variant, *map(Variant, vendors)], 0.01 * (1 + len(vendors)))
        ours, peers = timings[0], dict(zip(vendors, timings[1:], strict=True))
        sectors_s = max(memory_time(sector_traffic(problem), limits), time_limit(problem, limits))
        share = round(sectors_s / ours.median_s, 4)
        shares.append(share)
        config = getattr(backend._winner(problem), "config", None)
        config = (
            dataclasses.asdict(config) if config and backend._winner(problem).kernel == first.name else ""
        )
        record = kernel_record(problem, first.name, ours, limits, peers, config=config)
        record |= {"same": getattr(problem, "same", False), "fraction_sectors": share}
        if plain_s := backend.plain_s(problem):
            record["plain_s"] = plain_s
        book.add(record, limits)
        beside = min((peer.median_s for peer in peers.values()), default=float("nan")) / ours.median_s
        plain = f"{sectors_s / plain_s:6.2f}" if plain_s else "     -"
        operation = "gram" if record["same"] else problem.operation
        shape = f"{problem.M:3d} {problem.N:3d} {problem.lda:4d} {problem.ldb:4d}"
        line = f"{operation:8} {problem.dtype:10} {shape} {first.name:12} {share:6.2f} {plain} {beside:6.1f}"
        print(line, flush=True)
        del setup
    book.write()
    print(f"{len(shares)} products, {wrong} wrong: least {min(shares):.2f}, median {np.median(shares):.3f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
