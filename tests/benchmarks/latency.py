"""Latency of products of short blocks: calls from Python, and kernels in a replayed CUDA graph.

python -m tests.benchmarks.latency --device gpu --json docs/results/<device>/latency.json
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from blockvec import BlockVector
from blockvec.backends import Array, Backend, backend_for
from blockvec.kernels.problem import TsmttsmProblem, is_complex
from blockvec.kernels.roofline import Ceilings, fraction
from blockvec.operations import products
from blockvec.operations.dispatch import choose
from blockvec.operations.profile import ceilings
from blockvec.system.config import options
from tests.benchmarks import records as results
from tests.benchmarks.contest import faults_ahead

ROWS = (*(10**e * m for e in range(7) for m in (1, 3)), 10**7)
LEAST_S = 0.02  # per series of calls
MOST_CALLS = 2000
GRAPH_NODES = 20


def measure_latency(
    backend: Backend, limits: Ceilings, widths: Sequence[int], dtype: str, rows: Sequence[int] = ROWS
) -> Iterator[dict[str, Any]]:
    """Yield a record of A^H B per width and number of rows.

    ``time_s`` is the wall time per call in a series, ``replay_s`` the time per node in a graph of the same
    calls (None on a CPU); ``peers`` and ``peers_replay`` are the times of NumPy's or CuPy's product.
    """
    _compile(widths, dtype, rows, backend)
    for width in widths:
        for K in rows:
            A, B = (BlockVector.random(K, width, dtype, device=backend.name, rng=i) for i in range(2))
            C = backend.empty((width, width), dtype)
            problem = products.tsmttsm_problem(A.array, B.array, True)
            chosen = choose(problem, backend)
            peer = "numpy" if backend.name == "cpu" else "cupy"
            ours, theirs = partial(A.dot, B, out=C), _theirs(A.array, B.array, C, backend)
            time_s, replay_s = _call_time(ours, backend), _replay_time(ours, backend)
            yield {
                "operation": problem.operation,
                "dtype": dtype,
                **{"M": width, "N": width, "K": K, "lda": width, "ldb": width},
                "family": chosen.name,
                "config": chosen.configuration(),
                "time_s": time_s,
                "replay_s": replay_s,
                "fraction": round(fraction(problem, replay_s or time_s, limits), 4),
                "peers": {peer: _call_time(theirs, backend)},
                "peers_replay": {peer: _replay_time(theirs, backend)},
            }


def _compile(widths: Sequence[int], dtype: str, rows: Sequence[int], backend: Backend) -> None:
    """Compile all kernels in parallel processes."""
    problems = (
        TsmttsmProblem(K, width, width, dtype, dtype, width, width, conj=is_complex(dtype))
        for width, K in itertools.product(widths, rows)
    )
    sources = [choose(problem, backend).source() for problem in problems]
    faults_ahead(filter(None, sources), backend.device.architecture, options().cache_dir, os.cpu_count() or 1)


def _theirs(A: Array, B: Array, C: Array, backend: Backend) -> Callable[[], object]:
    left = A.T if A.dtype.kind == "f" else A.conj().T
    return lambda: backend.xp.matmul(left, B, out=C)


def _call_time(call: Callable[[], object], backend: Backend) -> float:
    """Measure the wall time per call in seconds: the best of three series."""
    call()
    backend.synchronize()
    begin = time.perf_counter()
    call()
    backend.synchronize()
    count = int(np.clip(LEAST_S / max(time.perf_counter() - begin, 1e-7), 3, MOST_CALLS))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        backend.synchronize()
        times.append((time.perf_counter() - begin) / count)
    return min(times)


def _replay_time(call: Callable[[], object], backend: Backend) -> float | None:
    """Measure the time of a call in a graph of several; None if it cannot be captured."""
    if backend.device.kind != "cuda":
        return None
    from blockvec.backends.cuda.graphs import replay

    cuda: Any = backend
    timing = replay(cuda._gpu, call, GRAPH_NODES, backend.stopwatch)
    return None if timing is None else float(timing.best_s)


def heading() -> str:
    """Format the table header; times are in microseconds."""
    return (
        f"{'type':10} {'M=N':>4} {'rows':>9}  {'kernel':14} {'call':>9} {'replay':>9} "
        f"{'peer call':>10} {'peer replay':>12}"
    )


def line(record: dict[str, Any]) -> str:
    """Format the table row."""
    (theirs,) = record["peers"].values()
    (their_replay,) = record["peers_replay"].values()

    def us(time_s: float | None) -> str:
        return "-" if time_s is None else f"{time_s * 1e6:.2f}"

    return (
        f"{record['dtype']:10} {record['M']:4d} {record['K']:9d}  {record['family']:14} "
        f"{us(record['time_s']):>9} {us(record['replay_s']):>9} "
        f"{us(theirs):>10} {us(their_replay):>12}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--widths", default="4,32", metavar="W")
    parser.add_argument("--rows", type=int, default=ROWS[-1], metavar="N", help="at most")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    backend = backend_for(arguments.device)
    limits = ceilings(backend, refresh=True)
    book = results.Book(arguments.json, results.environment(backend))
    widths = [int(width) for width in arguments.widths.split(",")]
    rows = [K for K in ROWS if arguments.rows >= K]
    print(heading())
    for dtype in arguments.dtype.split(","):
        for record in measure_latency(backend, limits, widths, dtype, rows):
            book.add(record, limits)
            print(line(record), flush=True)
    book.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
