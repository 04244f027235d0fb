"""Singular values beside ARPACK, PROPACK, LOBPCG and scikit-learn's randomized_svd, on twelve matrices.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.svds_beside_peers --json FILE [--only 0,3] [--turns 2]

All get tol=0; LOBPCG has at most 200 iterations, and k=10 only. A peer is right if its values have relative
errors below 1e-10; seconds are of the wall clock and of the processor, the least of the turns, which
alternate.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from solvers import svds
from tests.benchmarks.harness import recorded, script_parser

LIMIT_S = 8  # of the processor, for a call of a peer
RIGHT = 1e-10  # relative error of values


def entries(m: int, n: int, nnz: int, seed: int, power: float = 1.0) -> Any:
    """Make a sparse matrix of normal numbers, with more of them in the first columns for a higher power."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, m, nnz), (n * rng.random(nnz) ** power).astype(np.int64)
    return sp.coo_array((rng.standard_normal(nnz), places), shape=(m, n)).tocsr()


def graph(*arguments: Any) -> Any:
    """Make an adjacency matrix of the same pattern."""
    A = entries(*arguments)
    A.data[:] = 1
    return A


def documents(m: int, n: int, nnz: int, seed: int) -> Any:
    """Make a term-document matrix, tf-idf weights of words with Zipf's frequencies."""
    rng = np.random.default_rng(seed)
    p = np.arange(1, n + 1) ** -1.1
    A = sp.coo_array(
        (np.ones(nnz), (rng.integers(0, m, nnz), rng.choice(n, nnz, p=p / p.sum()))), (m, n)
    ).tocsr()
    A.data = np.log1p(A.data)
    return (A @ sp.diags_array(np.log(m / np.maximum(np.bincount(A.indices, minlength=n), 1)) + 1)).tocsr()


def matrices() -> Iterator[tuple[str, Any]]:
    """Yield names and matrices."""
    yield "documents 11314 x 30000", documents(11314, 30000, 1_100_000, 0)
    yield "documents 50000 x 8000", documents(50000, 8000, 2_500_000, 1)
    yield "documents 3000 x 60000", documents(3000, 60000, 500_000, 2)
    yield "graph 40000", graph(40000, 40000, 400_000, 3, 4.0)
    yield "bipartite graph 60000 x 20000", graph(60000, 20000, 600_000, 4, 2.0)
    yield "flat 20000 x 5000", entries(20000, 5000, 1_000_000, 5)
    yield "flat 8000 x 8000", entries(8000, 8000, 400_000, 6)
    decaying = entries(20000, 2000, 3_700_000, 7)
    yield "decaying 20000 x 2000", (decaying @ sp.diags_array(np.arange(1.0, 2001) ** -0.5)).tocsr()
    yield (
        "geometric 30000 x 6000",
        (entries(30000, 6000, 600_000, 8) @ sp.diags_array(0.99 ** np.arange(6000))).tocsr(),
    )
    yield "tall 1000000 x 300", entries(1_000_000, 300, 5_000_000, 9)
    yield "wide 1000 x 200000", entries(1000, 200_000, 1_000_000, 10)
    rng = np.random.default_rng(11)
    rates = rng.gamma(0.3, 1.0, (5000, 20)) @ rng.gamma(0.3, 0.3, (20, 2000))
    yield "counts of cells 5000 x 2000", sp.csr_array(np.log1p(rng.poisson(rates)).astype(float))


def timed(solve: Callable[[], Any], A: Any) -> dict[str, Any]:
    """Measure a call, and the largest residual of its triplets relative to the largest value."""
    signal.signal(signal.SIGPROF, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        u, s, vh = solve()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    except Exception as error:  # of a peer
        return {"limit_s": LIMIT_S} if isinstance(error, TimeoutError) else {"error": repr(error)[:80]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    residuals = np.linalg.norm(A.T @ u - vh.T * s, axis=0), np.linalg.norm(A @ vh.T - u * s, axis=0)
    return {"time_s": wall_s, "cpu_s": cpu_s, "residual": float(np.max(residuals) / s.max()), "s": np.sort(s)}


def compare(name: str, A: Any, k: int, turns: int) -> dict[str, Any]:
    """Time all solvers on a matrix."""
    from sklearn.utils.extmath import randomized_svd

    peers = {each: lambda each=each: spla.svds(A, k, solver=each, rng=0) for each in ("arpack", "propack")}
    if k == 10:
        peers["lobpcg"] = lambda: spla.svds(A, k, solver="lobpcg", rng=0, maxiter=200)
    peers["randomized_svd"] = lambda: randomized_svd(A, k, random_state=0)
    ours = {"svds": lambda: svds(A, k, rng=0), "randomized": lambda: svds(A, k, solver="randomized", rng=0)}
    found: dict[str, Any] = {}
    for _ in range(turns):
        for each, solve in (ours | peers).items():
            if "time_s" in (new := timed(solve, A)) and new["cpu_s"] < found.get(each, {}).get(
                "cpu_s", np.inf
            ):
                found[each] = new
            found.setdefault(each, new)
    exact = found["svds"]["s"]
    for run in found.values():
        if (s := run.pop("s", None)) is not None:
            run["value_error"] = float((np.abs(s - exact) / exact).max())
    about = {"operation": "svds", "matrix": name, "m": A.shape[0], "n": A.shape[1], "nnz": int(A.nnz), "k": k}
    return about | found.pop("svds") | {"randomized": found.pop("randomized"), "peers": found}


def rows(only: str, turns: int) -> Iterator[dict[str, Any]]:
    """Yield the records, with the ratio of the best right peer, or of the limit if there is none."""
    for i, (name, A) in enumerate(matrices()):
        for k in (10, 50) if str(i) in only.split(",") else ():
            record = compare(name, A, k, turns)
            right = [run for run in record["peers"].values() if run.get("value_error", 1) < RIGHT]
            least = min([run["cpu_s"] for run in right], default=LIMIT_S)
            yield record | {"ratio": least / record["cpu_s"]}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--only", default=",".join(map(str, range(12))))
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = recorded(
        rows(arguments.only, arguments.turns),
        arguments.json,
        line=lambda one: f"{one['matrix']:32} k={one['k']:<3} {one['time_s']:7.2f} s, {one['ratio']:.2f}",
    )
    print("geometric mean", np.exp(np.mean(np.log([record["ratio"] for record in found]))))


if __name__ == "__main__":
    main()
