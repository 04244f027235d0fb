"""Time solvers.orthogonalization against its traffic model, beside Gram-Schmidt and QR of NumPy or CuPy.

    python -m tests.benchmarks.orthogonalize --device gpu --json docs/results/h200/orthogonalize.json

The model counts the columns of K elements that a policy reads and writes at least; its time is what memory
needs for them at the rates measured in the same run. Blocks are random, and mostly inside of the basis.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockvec import BlockVector, array_namespace
from blockvec.backends import Backend, backend_for
from blockvec.kernels.roofline import Ceilings, Traffic, memory_time
from blockvec.operations.profile import ceilings
from solvers.orthogonalization import orthogonalize
from tests.benchmarks.harness import recorded, script_parser

RUNS = 9
COMPILE_ROWS = 200_000  # enough for the kernels of many
ENOUGH_S = 0.5  # of one call
BASES = (16, 32, 64, 128)
WIDTHS = (4, 8)


def columns_moved(M: int, N: int) -> tuple[int, int]:
    """Return the columns read and written for a block of N beside a basis of M, mostly inside of it."""
    return (4 * M + 5 * N, 3 * N) if M else (2 * N, N)


def model_time(K: int, M: int, N: int, itemsize: int, limits: Ceilings) -> float:
    """Return the seconds that memory needs for `columns_moved`."""
    read, written = columns_moved(M, N)
    return memory_time(Traffic(K * itemsize * read, K * itemsize * written), limits)


@dataclass(frozen=True)
class Task:
    """A block of N columns against a basis of M, or within itself where M is 0."""

    K: int
    M: int
    N: int


def tasks(K: int) -> list[Task]:
    """List what is measured."""
    return [Task(K, M, N) for M in (*BASES, 0) for N in WIDTHS]


def operands(backend: Backend, dtype: str, K: int, M: int, N: int) -> tuple[BlockVector | None, BlockVector]:
    """Return an orthonormal basis and a block with three times as much inside of it as outside."""
    where = {"device": backend.name if backend.name == "cpu" else "gpu"}
    W = BlockVector.random(K, N, dtype, rng=1, **where)
    if M == 0:
        return None, W
    V = BlockVector.random(K, M, dtype, rng=2, **where)
    for _ in range(2):  # Cholesky QR
        G = V.gram()
        G = G if isinstance(G, np.ndarray) else G.get()
        V @= backend.xp.asarray(np.linalg.inv(np.linalg.cholesky(G).conj().T))
    coefficients = np.random.default_rng(3).standard_normal((M, N)) * (3 * (K / 3 / M) ** 0.5)
    V.combine(backend.xp.asarray(coefficients.astype(dtype)), beta=1, out=W)
    return V, W


def textbook(V: Any, W: Any) -> None:
    """Do the same with arrays: classical Gram-Schmidt, twice, and QR."""
    if V is not None:
        for _ in range(2):
            W -= V @ (V.conj().T @ W)
    array_namespace(W).linalg.qr(W)


def timed(
    backend: Backend, prepare: Callable[[], object], call: Callable[[], object], runs: int
) -> list[float]:
    """Return seconds on the device, waits for the host included; the first run is left out.

    As in a solver the device is still busy with what made the block when the call comes, and time runs from
    when the block is ready until the call has returned and its work is done.
    """
    times: list[float] = []
    while len(times) < 2 or (len(times) <= runs and sum(times) < ENOUGH_S):
        prepare()
        watch = backend.stopwatch()
        call()
        watch.stop()
        times.append(watch.seconds())
    return times[1:]


def measure(
    task: Task, backend: Backend, dtype: str, limits: Ceilings, peers: bool, runs: int
) -> dict[str, Any]:
    """Return the record of a task."""
    V, start = operands(backend, dtype, task.K, task.M, task.N)
    W = start.copy()

    def restore() -> None:
        W[:, :] = start

    reductions = orthogonalize(W, V).reductions
    error = W.gram() - backend.xp.eye(task.N)
    loss = float(abs(error).max())
    rng = np.random.default_rng(0)
    times = timed(backend, restore, lambda: orthogonalize(W, V, rng=rng), runs)
    model_s = model_time(task.K, task.M, task.N, np.dtype(dtype).itemsize, limits)
    time_s = statistics.median(times)
    record: dict[str, Any] = {
        "operation": "orthogonalize",
        "dtype": dtype,
        "K": task.K,
        "M": task.M,
        "N": task.N,
        "policy": "default",
        "reductions": reductions,
        "loss": loss,
        "time_s": time_s,
        "best_s": min(times),
        "model_s": model_s,
        "fraction": round(model_s / time_s, 4),
        "peers": {},
    }
    if peers:
        basis = None if V is None else V.array
        theirs = timed(backend, restore, lambda: textbook(basis, W.array), min(runs, 2))
        record["peers"] = {f"{backend.xp.__name__} qr": statistics.median(theirs)}
    return record


def compile_for(chosen: Sequence[Task], backend: Backend, dtype: str) -> None:
    """Run all tasks on few rows, side by side, so that most of what is compiled is there."""

    def run(task: Task) -> None:
        V, W = operands(backend, dtype, COMPILE_ROWS, task.M, task.N)
        orthogonalize(W, V)

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, chosen))


def line(record: dict[str, Any]) -> str:
    """Return the row of the table."""
    peers = "".join(f"  {name} {t / record['time_s']:.0f}x" for name, t in record["peers"].items())
    return (
        f"{record['policy']:18} {record['M']:4d} {record['N']:3d} {record['reductions']:3d} "
        f"{1e3 * record['time_s']:9.3f} {1e3 * record['best_s']:9.3f} {1e3 * record['model_s']:9.3f} "
        f"{record['time_s'] / record['model_s']:6.2f} {record['loss']:8.1e}{peers}"
    )


def main() -> None:
    parser = script_parser(__doc__, "cpu", "gpu")
    parser.add_argument("--rows", type=int, help="K (default 1e7 on a GPU, 1e6 on a host)")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each (default {RUNS})")
    arguments = parser.parse_args()
    backend, dtype = backend_for(arguments.device), arguments.dtype
    limits = ceilings(backend)
    chosen = tasks(arguments.rows or (10**7 if arguments.device == "gpu" else 10**6))
    if arguments.device == "gpu":
        compile_for(chosen, backend, dtype)
    print(f"{'policy':18} {'M':>4} {'N':>3} red {'ms':>9} {'best':>9} {'model':>9} {'ratio':>6} {'loss':>8}")
    rows = (measure(task, backend, dtype, limits, True, arguments.runs) for task in chosen)
    recorded(rows, arguments.json, arguments.device, line)


if __name__ == "__main__":
    main()
