"""All eigenvalues of an interval by spectrum slicing, beside shift-invert with one shift in its middle.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.interval --json FILE [--device gpu] [--points 100]

The spectra are known in closed form: the Laplacian of a square, with many double values, and the bending
modes of a simply supported square plate by finite differences with a consistent mass matrix. Shift-invert
with one shift, by `solvers.eigsh` and, on the host, by SciPy's, is asked for a hundred values nearest to it:
the time per value grows with their number. All use one thread, and on a GPU the second call is measured;
times are of the wall clock and of the processor, which other processes of a busy machine do not add to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import threadpoolctl
from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec import models, option_context
from solvers import count_eigenvalues, eigsh
from solvers.blocks import to_host
from tests.benchmarks.harness import in_turns, recorded, script_parser, timed

PEER_VALUES = 100


@dataclass(frozen=True)
class Case:
    """Matrices, an interval, and the exact values in it."""

    name: str
    A: Any
    M: Any
    ends: tuple[float, float]
    exact: np.ndarray


def plate(n: int) -> tuple[Any, Any, np.ndarray]:
    """Return stiffness and mass of a simply supported plate of n x n points, and its exact eigenvalues."""
    angles = np.pi * np.arange(1, n + 1) / (n + 1)
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    mass = sp.diags_array([1 / 6, 4 / 6, 1 / 6], offsets=[-1, 0, 1], shape=(n, n))
    stiffness, masses = 2 - 2 * np.cos(angles), (4 + 2 * np.cos(angles)) / 6
    grid = sp.kron(line, sp.eye_array(n)) + sp.kron(sp.eye_array(n), line)
    values = np.add.outer(stiffness, stiffness) ** 2 / np.multiply.outer(masses, masses)
    return sp.csr_array(grid @ grid), sp.csr_array(sp.kron(mass, mass)), np.sort(values.ravel())


def case(name: str, A: Any, M: Any, values: np.ndarray, first: int, last: int) -> Case:
    """Choose an interval with the values from the `first` to the `last`, or from neighbours of these."""
    gaps = np.flatnonzero(np.diff(values) > 1e-9 * values[-1])
    low, high = (int(gaps[np.searchsorted(gaps, index)]) for index in (first, last))
    ends = tuple(float(values[i] + values[i + 1]) / 2 for i in (low, high))
    return Case(name, A, M, (ends[0], ends[1]), values[low + 1 : high + 1])


def cases(n: int) -> Iterator[Case]:
    """About 500 values inside the spectrum and at its lower end, on n x n points."""
    square = models.spectra.laplace_eigenvalues([n, n])
    A = models.model(f"laplace2d:nx={n},ny={n}")
    yield case(f"laplace2d {n} x {n}, inside", A, None, square, 1500, 2000)
    yield case(f"laplace2d {n} x {n}, lower end", A, None, square, 0, 500)
    K, M, modes = plate(n)
    yield case(f"plate {n} x {n}, lower end", K, M, modes, 0, 500)
    yield case(f"plate {n} x {n}, inside", K, M, modes, 1500, 2000)


def record(case: Case, device: str) -> dict[str, Any]:
    """Solve a case by slices and with one shift."""
    count, middle = len(case.exact), float(np.mean(case.ends))
    with option_context(threads=1), threadpoolctl.threadpool_limits(1):
        options: dict[str, Any] = {"M": case.M, "device": device, "rng": 0, "on_unconverged": "return"}
        counted = timed(lambda: count_eigenvalues(case.A, *case.ends, case.M, device=device))
        warm = int(device != "cpu")
        solved = timed(lambda: eigsh(case.A, interval=case.ends, return_info=True, **options), warm=warm)
        few = min(count, PEER_VALUES)
        calls = {"one shift": lambda: eigsh(case.A, few, sigma=middle, **options)}
        if device == "cpu":
            calls["scipy, one shift"] = lambda: scipy_eigsh(case.A, few, M=case.M, sigma=middle)
        peers = {
            name: {"k": few, **run.times(), "cpu_per_value_s": run.cpu_s / few}
            for name, run in in_turns(calls, 1, device).items()
        }
    result = solved.result
    w, X = (to_host(part) for part in (result.eigenvalues, result.eigenvectors))
    G = X.T @ (X if case.M is None else case.M @ X)
    return {
        "operation": "eigsh",
        "table": "interval",
        "matrix": case.name,
        "n": case.A.shape[0],
        "interval": list(case.ends),
        "k": count,
        "counted": int(counted.result),
        "count_cpu_s": counted.cpu_s,
        "found": len(w),
        "converged": int(result.converged.sum()),
        **_errors(case, w),
        "orthogonality": float(np.abs(G - np.eye(len(G))).max()),
        "excess": float((result.residuals / result.limits).max()),
        **solved.times(),
        "cpu_per_value_s": solved.cpu_s / count,
        "why": result.info["why"],
        **{name: result.info[name] for name in ("operator_columns", "restarts", "stopped", "verification")},  # type: ignore[literal-required]
        "peers": peers,
    }


def _errors(case: Case, values: np.ndarray) -> dict[str, Any]:
    """Compare values with those of the interval: those missed, and the largest error of the others."""
    near = (
        np.abs(values[:, None] - case.exact).min(axis=0) if len(values) else np.full(len(case.exact), np.inf)
    )
    scale = 1e-9 * float(abs(case.A).sum(axis=0).max())
    present = [
        min(int((np.abs(values - value) <= scale).sum()), int((np.abs(case.exact - value) <= scale).sum()))
        / int((np.abs(case.exact - value) <= scale).sum())
        for value in case.exact
    ]
    return {"missed": round(len(case.exact) - sum(present)), "value_error": float(near.max())}


def line(one: dict[str, Any]) -> str:
    """Return a row of the table."""
    peers = "".join(f" {1e3 * peer['cpu_per_value_s']:8.2f}" for peer in one["peers"].values())
    head = f"{one['matrix']:32} {one['k']:5d} {one['counted']:5d} {one['found']:5d} {one['missed']:3d}"
    times = f"{one['time_s']:7.2f} {one['cpu_s']:7.2f} {1e3 * one['cpu_per_value_s']:6.2f}{peers}"
    return f"{head} {one['orthogonality']:.1e} {times}"


def main() -> None:
    parser = script_parser(__doc__, "cpu", "gpu")
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    parser.add_argument("--points", type=int, default=100, help="along each side")
    arguments = parser.parse_args()
    print(f"{'matrix':32} exact count found mis    orth       s   CPU s CPU ms/value, one shift, SciPy")
    chosen = (each for each in cases(arguments.points) if arguments.only in each.name)
    rows = (record(each, arguments.device) for each in chosen)
    recorded(rows, arguments.json, arguments.device, line)


if __name__ == "__main__":
    main()
