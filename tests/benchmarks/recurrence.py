"""Time a step of a recurrence on a GPU: all steps in one launch, by bound calls, and recorded as a graph.

    python tests/benchmarks/recurrence.py

A step with given coefficients is that of a Chebyshev filter; one of Lanczos is that of a sketch of the
spectrum. The first line describes the machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import blockvec
from blockvec.backends import backend_for
from blockvec.backends.cuda import steps as launches
from solvers.iterations.spectrum import Recurrences
from tests.benchmarks.records import environment

MATRICES = (
    *(("laplace2d:n=50", "float64"), ("laplace2d:n=150", "float64"), ("laplace3d:n=40", "float64")),
    *(("laplace2d:n=400", "float64"), ("laplace3d:n=70", "float64"), ("xxz:sites=16,up=8", "float64")),
    *(("laplace2d:n=300", "complex128"), ("laplace2d:n=300", "float32")),
)
STEPS, CALLS = 24, 20
CONVERTS = 40  # calls after which a matrix is in the form that takes the least time


def least_s(call: Callable[[], object]) -> float:
    """Measure the least time of a step, by groups of `CALLS` calls of `STEPS` steps."""
    wait, times = backend_for("gpu").synchronize, []
    for _ in range(6):
        wait()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        wait()
        times.append((time.perf_counter() - begin) / CALLS / STEPS)
    return min(times)


def filtered(A: Any, b: int, n_bytes: int) -> dict[str, Any]:
    """Time the steps of a filter for blocks of b columns."""
    doubled = A.affine(0.1, 1.0)
    X = blockvec.BlockVector.random(A.shape[0], b, A.dtype, device="gpu")
    Y, at_once = X.like(), {}
    for is_one in (True, False):
        launches.CACHE_SHARES[False] = 1e9 if is_one else 0.0
        at_once[is_one] = doubled.prepare(X, Y, beta=-1, repeat=STEPS)
    for _ in range(CONVERTS):
        at_once[False]()
    calls = doubled.prepare(X, Y, beta=-1, repeat=STEPS)
    recorder = blockvec.Recorder("gpu")
    with recorder:
        calls()
        repeat = recorder.record(calls)

    def recorded() -> None:
        with recorder:
            repeat()

    kinds = {"launch_s": at_once[True], "calls_s": calls, "recorded_s": recorded}
    sizes = {"block_size": b, "bytes": n_bytes + 2 * X.array.nbytes}
    return sizes | {name: least_s(call) for name, call in kinds.items()}


def sketched(A: Any, n_bytes: int) -> dict[str, Any]:
    """Time the steps of a sketch from two vectors."""
    V = blockvec.BlockVector.random(A.shape[0], 2, A.dtype, device="gpu")
    launches.CACHE_SHARES[True] = 1e9
    take = A.lanczos_recurrence(V.copy())
    steps = Recurrences(A, V)

    def called() -> None:
        steps.steps, steps._coming = 1, []
        steps.extend(1 + STEPS)

    steps.extend(4)
    launch_s, calls_s = least_s(lambda: take(STEPS)), least_s(called)
    sizes = {"lanczos": True, "block_size": 2, "bytes": n_bytes + 2 * V.array.nbytes}
    return sizes | {"launch_s": launch_s, "calls_s": calls_s}


def main() -> None:
    """Print a record per matrix and block size."""
    print(json.dumps({"environment": environment(backend_for("gpu"))}), flush=True)
    for name, dtype in MATRICES:
        matrix = blockvec.models.model(name).tocsr().astype(dtype)
        A = blockvec.as_operator(matrix, device="gpu")
        n_bytes = matrix.data.nbytes + 4 * matrix.nnz
        found = {"operation": "recurrence", "matrix": name, "dtype": dtype, "n": A.shape[0]}
        for b in (2, 4, 8):
            print(json.dumps(found | filtered(A, b, n_bytes)), flush=True)
        print(json.dumps(found | sketched(A, n_bytes)), flush=True)


if __name__ == "__main__":
    main()
