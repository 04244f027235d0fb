"""Eigenvalues around a shift inside a spectrum: `solvers.eigsh` beside SciPy's eigsh, both by SuperLU.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.sigma_inside --matrices FOLDER --json FILE

Both solve to the default tol with one thread. They take turns, three times, or less often where that takes
long; the times are medians, of the wall clock and of the processor (which other processes of a busy machine
do not add to). Residuals are the largest ||A x - lambda M x|| / ((||A|| + |lambda| ||M||) ||x||), with norms
by rows. SciPy is stopped, in a process of its own, after `--limit` seconds of the processor; then its record
has `limit_s` instead of times.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import threadpoolctl
from scipy.sparse.linalg import ArpackError
from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec import models, option_context
from blockvec.backends import backend_for
from blockvec.bench import records as results
from blockvec.io import read_matrix
from blockvec.profile import ceilings
from solvers import eigsh

TURNS = 3
PATIENCE_S = 20.0  # turns end when they have taken so long
LIMIT_S, STOPPED = 600, "stopped"
RANDOM_ROWS = 600
SEEDS = range(4)
MODELS = (
    ("laplace3d:n=16", 6.0003, 6),
    ("laplace3d:n=16", 6.01, 20),
    ("laplace3d:n=18", 3.7, 12),
    ("laplace3d:n=20", 6.0003, 10),
    ("laplace3d:n=20", 6.01, 10),
    ("laplace3d:n=20", 3.7, 10),
    ("laplace3d:n=24", 6.0003, 10),
    ("laplace3d:n=24", 6.01, 10),
    ("laplace3d:n=24", 3.7, 10),
    ("laplace2d:nx=150,ny=140", 3.01, 10),
    ("graphene:nx=300,ny=300,disorder=0.1", 0.05, 10),
    ("xxz:sites=12,up=6", 0.3, 8),
    ("xxz:sites=14,up=7", 0.3, 8),
)
MATRICES = (("bcsstk16", 1e7, 10), ("bcsstk16", 1.1, 10), ("1138_bus", 1.0, 6), ("graphene128x64", 0.0, 20))
PAIRS = (
    ("bcsstk06 bcsstm06", 1e4, 10),
    ("bcsstk08 bcsstm08", 18.0, 10),
    ("bcsstk09 bcsstm09", 27000.0, 10),
    ("lund_a lund_b", 1e4, 6),
    ("elast_A elast_B", 1.0, 10),
)


@dataclass(frozen=True)
class Case:
    """Matrices, a shift, and how many pairs are wanted."""

    name: str
    A: Any
    M: Any
    sigma: float
    k: int

    def residual(self, w: np.ndarray, X: np.ndarray) -> float:
        """Compute the largest relative residual."""
        MX = X if self.M is None else self.M @ X
        scale = _norm(self.A) + np.abs(w) * (1.0 if self.M is None else _norm(self.M))
        relative = np.linalg.norm(self.A @ X - MX * w, axis=0) / (scale * np.linalg.norm(X, axis=0))
        return float(relative.max())


def _norm(matrix: Any) -> float:
    return float(abs(matrix).sum(axis=0).max())


def random_symmetric(seed: int, n: int) -> Any:
    """Draw a sparse symmetric matrix with eigenvalues of both signs."""
    rng = np.random.default_rng(seed)
    A = sp.random_array((n, n), density=6 / n, rng=rng, data_sampler=rng.standard_normal)
    return sp.csr_array(A + A.T)


def cases(folder: Path | None) -> Iterator[Case]:
    """Models, random matrices, and real ones from a folder."""
    for spec, sigma, k in MODELS:
        yield Case(spec, models.model(spec), None, sigma, k)
    for seed in SEEDS:
        yield Case(f"random {seed}", random_symmetric(seed, RANDOM_ROWS), None, 5.0 * (seed % 2), 3)
    if folder is not None:
        for name, sigma, k in (*MATRICES, *PAIRS):
            A, M, *_ = *(read_matrix(folder / f"{part}.mtx") for part in name.split()), None
            yield Case(name, A, M, sigma, k)


def record(case: Case, turns: int = TURNS, limit_s: int = LIMIT_S) -> dict[str, Any]:
    """Let both solve a case in turn, and describe the results."""
    ours: dict[str, Any] = {}
    peer: dict[str, Any] = {}
    begin = time.perf_counter()
    for turn in range(turns):
        if turn and time.perf_counter() - begin > PATIENCE_S:
            break
        with option_context(threads=1), threadpoolctl.threadpool_limits(1):
            _timed_apart(peer, case, limit_s)
            _timed(
                ours,
                lambda: eigsh(
                    case.A,
                    case.k,
                    M=case.M,
                    sigma=case.sigma,
                    rng=0,
                    return_info=True,
                    on_unconverged="return",
                ),
            )
    result = ours["answer"]
    error, scipy_residual = None, None
    if "answer" in peer:
        w, X = peer["answer"]
        scipy_residual = case.residual(w, X)
        distances = (np.sort(np.abs(values - case.sigma)) for values in (result.eigenvalues, w))
        error = float(np.abs(np.subtract(*distances)).max())
    peer_times = {"limit_s": limit_s} if peer.get("failure") == STOPPED else _times(peer)
    facts = {name: result.info[name] for name in ("block_size", "operator_columns", "restarts", "stopped")}
    return {
        "operation": "eigsh",
        "table": "sigma_inside",
        "matrix": case.name,
        "n": case.A.shape[0],
        "k": case.k,
        "sigma": case.sigma,
        "threads": 1,
        **_times(ours),
        "converged": int(result.converged.sum()),
        "residual": case.residual(result.eigenvalues, result.eigenvectors),
        "difference": error,
        **facts,
        "peers": {"scipy": peer_times | {"residual": scipy_residual}},
    }


def _timed(solver: dict[str, Any], solve: Callable[[], Any]) -> None:
    """Add the times of one solve, and its answer, which ARPACK may not have."""
    wall, processor = time.perf_counter(), time.process_time()
    try:
        solver["answer"] = solve()
    except ArpackError as failure:
        solver["failure"] = str(failure)
    solver.setdefault("cpu_s", []).append(time.process_time() - processor)
    solver.setdefault("time_s", []).append(time.perf_counter() - wall)


def _timed_apart(peer: dict[str, Any], case: Case, limit_s: int) -> None:
    """Add the times of SciPy's solve and its answer, from a process that is stopped at a limit."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def solve() -> None:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        _timed(peer, lambda: scipy_eigsh(case.A, case.k, M=case.M, sigma=case.sigma))
        sender.send(peer)

    process = multiprocessing.get_context("fork").Process(target=solve)
    process.start()
    sender.close()
    try:
        peer.update(receiver.recv())
    except EOFError:
        peer["failure"] = STOPPED
    process.join()


def _times(solver: dict[str, Any]) -> dict[str, float]:
    return {name: float(np.median(solver[name])) for name in ("time_s", "cpu_s")}


def line(one: dict[str, Any]) -> str:
    """Return a row of the table."""
    peer = one["peers"]["scipy"]
    head = f"{one['matrix']:36} {one['n']:6d} {one['k']:3d} {one['sigma']:10.6g}"
    theirs = (peer.get(name, peer.get("limit_s")) for name in ("time_s", "cpu_s"))
    times = "{:8.3f} {:8.3f} {:8.3f} {:8.3f}".format(one["time_s"], next(theirs), one["cpu_s"], next(theirs))
    residual = "none" if peer["residual"] is None else f"{peer['residual']:.1e}"
    return f"{head} {times} {one['residual']:8.1e} {residual:>8} {one['converged']:3d}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--matrices", type=Path, default=os.environ.get("BLOCKVEC_TEST_MATRICES"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--limit", type=int, default=LIMIT_S, metavar="SECONDS", help="of SciPy's solves")
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    arguments = parser.parse_args()
    backend = backend_for("cpu")
    environment, walls = results.environment(backend), ceilings(backend)
    print(
        f"{'matrix':36} {'n':>6} {'k':>3} {'sigma':>10} {'ours s':>8} {'SciPy s':>8} "
        f"{'ours CPU':>8} {'SciPy':>8} {'residual':>8} {'SciPy':>8}"
    )
    records = []
    for case in cases(arguments.matrices):
        if arguments.only in case.name:
            records.append(record(case, limit_s=arguments.limit))
            print(line(records[-1]), flush=True)
            if arguments.json:
                results.write(arguments.json, environment, walls, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
