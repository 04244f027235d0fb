"""Thirty small and easy problems: `solvers.eigsh` beside SciPy's eigsh, to the same true residual.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.eigsh_easy --seeds 1,2 --json FILE

With --smallest, fourteen semidefinite matrices, of which the smallest values are wanted (`which="SM"`).

A seed draws sizes, parameters and entries; the problems of seed 1 were known while the solver was written,
those of other seeds were not. Both solvers run with one thread and a tolerance with which every true residual
||A x - theta x|| is at most 1e-8 ||A||: blockvec's is that limit, SciPy's, which is relative to abs(theta),
is the loosest power of ten that is right. They take turns; the times are the least of all turns, of the
processor and of the wall clock. `missed` counts the wanted values of one solver that the other has not found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import threadpoolctl
from scipy.sparse.linalg import ArpackNoConvergence
from scipy.sparse.linalg import eigsh as scipy_eigsh
from scipy.spatial import cKDTree

from blockvec import models, option_context
from solvers import eigsh
from tests.benchmarks.harness import in_turns, recorded, script_parser
from tests.benchmarks.records import grouped

TARGET = 1e-8  # of ||A||
TURNS = 5
SLOWER = 1.1  # times SciPy's time: the goal
PATIENCE_S = 6.0  # turns end when they have taken so long


@dataclass(frozen=True)
class Case:
    """A matrix, and which of its eigenvalues are wanted."""

    name: str
    A: Any
    k: int
    which: str = "LA"
    sigma: float | None = None
    M: Any = None


def cases(seed: int) -> Iterator[Case]:
    """Draw the thirty problems of a seed."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    for low, high in ((2e3, 1e4), (2e4, 1e5)):
        n, count = between(low, high), between(6, 12)
        values = np.concatenate([np.linspace(2, count, count) ** 1.5, rng.uniform(0, 1, n - count)])
        yield Case(f"diagonal, {count} separated, n={n}", sp.diags_array(values, format="csr"), between(2, 6))
    for low, high in ((8e2, 2e3), (4e3, 1e4), (3e4, 8e4)):
        n, outside = between(low, high), between(2, 5)
        A = sp.csr_array(random_symmetric(rng, n, 4) * 0.01 + sp.diags_array(_far(rng, n, outside)))
        yield Case(f"{outside} values far from a cluster, n={n}", A, outside)
    for low, high in ((1e3, 3e3), (1e4, 3e4)):
        n = between(low, high)
        yield Case(f"regular graph, n={n}", regular_graph(rng, n, 2 * between(2, 4)), between(1, 4))
        n, k = between(low, high), between(2, 8)
        yield Case(f"Laplacian of a power-law graph, n={n}", laplacian(power_law_graph(rng, n)), k)
        n, k = between(low, high), between(2, 8)
        yield Case(f"power-law graph, n={n}", power_law_graph(rng, n), k, "LM")
        n, k = between(low, high), between(3, 10)
        yield Case(f"nearest neighbours, normalised, n={n}", neighbours(rng, n), k)
        n, k = between(low, high), between(1, 6)
        yield Case(f"random symmetric, n={n}", random_symmetric(rng, n, between(4, 20)), k, "SA")
    nx, ny = between(25, 60), between(25, 60)
    yield Case(f"laplace2d {nx} x {ny}", models.laplace2d(nx=nx, ny=ny).tocsr(), between(1, 8))
    nx = between(12, 20)
    yield Case(f"laplace3d {nx}^3", models.laplace3d(n=nx).tocsr(), between(1, 5), "LM")
    nx = between(20, 30)
    yield Case(f"laplace3d {nx}^3", models.laplace3d(n=nx).tocsr(), between(1, 4), "SA")
    size = between(8, 14)
    seeded = {"disorder": float(rng.uniform(8, 20)), "seed": int(rng.integers(1000))}
    A = models.anderson(n=size, **seeded).tocsr()
    yield Case(f"anderson {size}^3", A, between(2, 10), "SA")
    for sites in (12, 14):
        yield Case(f"xxz {sites} sites", models.xxz(sites=sites, up=sites // 2).tocsr(), between(1, 6), "SA")
    nx = between(20, 60)
    yield Case(f"peierls {nx}^2, complex", peierls(rng, nx), between(1, 6), "LM")
    n, k = between(600, 1200), between(3, 8)
    yield Case(f"dense covariance, n={n}", covariance(rng, n), k)
    n = between(3e3, 1e4)
    yield Case(f"rough beam, n={n}", rough_beam(rng, n), between(2, 8))
    n, k = between(600, 900), between(2, 6)
    yield Case(f"random symmetric, n={n}, sigma", random_symmetric(rng, n, 6), k, "LM", rng.uniform(-1, 1))
    n = between(1e4, 4e4)
    yield Case(f"tridiagonal, n={n}, sigma", models.laplace1d(n=n).tocsr(), 4, "LM", rng.uniform(0.3, 0.7))
    nx, ny, k = between(25, 60), between(25, 60), between(3, 8)
    yield Case(f"laplace2d {nx} x {ny}, sigma", models.laplace2d(nx=nx, ny=ny).tocsr(), k, "LM", 0.0)
    nx, ny, k = between(25, 60), between(25, 60), between(3, 8)
    A = models.laplace2d(nx=nx, ny=ny).tocsr()
    yield Case(f"laplace2d {nx} x {ny}, M, sigma", A, k, "LM", 0.0, mass(nx, ny))
    yield Case("xxz 12 sites, sigma", models.xxz(sites=12, up=6).tocsr(), between(3, 8), "LM", 0.3)
    nx = 2 * between(15, 30)
    A = models.graphene(nx=nx, ny=nx, disorder=1.0, seed=int(rng.integers(1000))).tocsr()
    yield Case(f"graphene {nx} x {nx}", A, between(1, 6), "SA")


def smallest(seed: int) -> Iterator[Case]:
    """Draw fourteen semidefinite matrices, of which the smallest values are wanted."""
    rng = np.random.default_rng(seed)
    for low, high in ((6e2, 2e3), (2e3, 6e3), (6e3, 2e4)):

        def size(low: float = low, high: float = high) -> int:
            return round(math.exp(rng.uniform(math.log(low), math.log(high))))

        def pairs() -> int:
            return int(rng.integers(2, 9))

        n = size()
        yield Case(f"Laplacian of a regular graph, n={n}", laplacian(regular_graph(rng, n, 4)), pairs(), "SM")
        n = size()
        yield Case(
            f"Laplacian of a power-law graph, n={n}", laplacian(power_law_graph(rng, n)), pairs(), "SM"
        )
        n = size()
        A = sp.csr_array(sp.eye_array(n) - neighbours(rng, n))
        yield Case(f"nearest neighbours, normalised, n={n}", A, pairs(), "SM")
        nx = round(size() ** (1 / 3))
        yield Case(f"laplace3d {nx}^3", models.laplace3d(n=nx).tocsr(), pairs(), "SM")
    for nx in (40, 100):
        yield Case(f"laplace2d {nx} x {nx + 3}", models.laplace2d(nx=nx, ny=nx + 3).tocsr(), pairs(), "SM")


def random_symmetric(rng: np.random.Generator, n: int, per_row: int) -> Any:
    """Draw a sparse symmetric matrix with normal entries."""
    A = sp.random_array((n, n), density=per_row / (2 * n), rng=rng, data_sampler=rng.standard_normal)
    return sp.csr_array(A + A.T)


def _far(rng: np.random.Generator, n: int, outside: int) -> np.ndarray:
    values = rng.uniform(0, 0.1, n)
    values[rng.permutation(n)[:outside]] = rng.uniform(2, 20, outside)
    return values


def _symmetric_graph(n: int, i: np.ndarray, j: np.ndarray) -> Any:
    """Form an adjacency matrix of ones from the ends of edges; loops are left out."""
    keep = i != j
    A = sp.csr_array((np.ones(keep.sum()), (i[keep], j[keep])), shape=(n, n))
    A = sp.csr_array(A + A.T)
    A.data[:] = 1.0
    return A


def regular_graph(rng: np.random.Generator, n: int, degree: int) -> Any:
    """Draw a graph from random cycles: almost every node has `degree` neighbours."""
    cycles = [rng.permutation(n) for _ in range(degree // 2)]
    return _symmetric_graph(n, np.concatenate(cycles), np.concatenate([np.roll(c, 1) for c in cycles]))


def power_law_graph(rng: np.random.Generator, n: int) -> Any:
    """Draw a graph in which the weight of node i falls with (i + 1)^(-0.6)."""
    weights = np.arange(1, n + 1) ** -0.6
    ends = rng.choice(n, size=(2, 6 * n), p=weights / weights.sum())
    return _symmetric_graph(n, *ends)


def laplacian(graph: Any) -> Any:
    """Form D - G."""
    return sp.csr_array(sp.diags_array(graph.sum(axis=1)) - graph)


def neighbours(rng: np.random.Generator, n: int) -> Any:
    """Form D^(-1/2) G D^(-1/2) for the graph of the ten nearest neighbours of points in clusters."""
    centres = rng.uniform(-6, 6, (8, 3))
    points = centres[rng.integers(8, size=n)] + rng.standard_normal((n, 3))
    _, nearest = cKDTree(points).query(points, 11)
    graph = _symmetric_graph(n, np.repeat(np.arange(n), 10), nearest[:, 1:].ravel())
    scale = sp.diags_array(graph.sum(axis=1) ** -0.5)
    return sp.csr_array(scale @ graph @ scale)


def peierls(rng: np.random.Generator, nx: int) -> Any:
    """Form hopping on a square lattice in a magnetic field, with some disorder."""
    x, y = np.divmod(np.arange(nx * nx), nx)
    right, up = np.flatnonzero(x < nx - 1), np.flatnonzero(y < nx - 1)
    phases = np.exp(2j * np.pi * rng.uniform(0.05, 0.4) * x[up])
    values = np.concatenate([np.ones(len(right)), phases])
    A = sp.csr_array(
        (values, (np.concatenate([right, up]), np.concatenate([right + nx, up + 1]))), shape=(nx * nx,) * 2
    )
    return sp.csr_array(A + A.conj().T + sp.diags_array(rng.uniform(-0.5, 0.5, nx * nx)))


def covariance(rng: np.random.Generator, n: int) -> Any:
    """Form the covariance matrix of signals that fall like 1/i, with noise."""
    signals = rng.standard_normal((n, 40)) / np.arange(1, 41)
    noise = rng.standard_normal((n, 2 * n)) * 0.02
    return signals @ signals.T + noise @ noise.T / 2


def rough_beam(rng: np.random.Generator, n: int) -> Any:
    """Form a chain of springs whose stiffness is lognormal."""
    springs = np.exp(1.5 * rng.standard_normal(n + 1))
    return sp.diags_array(
        [-springs[1:-1], springs[:-1] + springs[1:], -springs[1:-1]], offsets=[-1, 0, 1], format="csr"
    )


def mass(nx: int, ny: int) -> Any:
    """Form the mass matrix of bilinear elements on a grid of nx x ny nodes."""
    mx, my = (sp.diags_array([1 / 6, 2 / 3, 1 / 6], offsets=[-1, 0, 1], shape=(n, n)) for n in (nx, ny))
    return sp.csc_array(sp.kron(my, mx))


def residual(case: Case, w: np.ndarray, X: np.ndarray, norm: float) -> float:
    """Compute the largest ||A x - theta M x|| / (||A|| ||x||)."""
    R = case.A @ X - (X if case.M is None else case.M @ X) * w
    return float((np.linalg.norm(R, axis=0) / np.linalg.norm(X, axis=0)).max()) / norm


def norm_of(case: Case) -> float:
    """Compute ||A||."""
    w = scipy_eigsh(case.A, 1, which="LM", tol=1e-3, return_eigenvectors=False, v0=_start(case))
    return float(abs(w[0]))


def _start(case: Case) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, case.A.shape[0]).astype(case.A.dtype)


def _scipy(case: Case, norm: float) -> tuple[Callable[[], tuple[Any, Any]], float] | None:
    """Find the loosest tolerance that meets the rule; None where ARPACK does not converge."""
    for exponent in range(-4, -16, -1):
        tol = 10.0**exponent

        def solve(tol: float = tol) -> tuple[Any, Any]:
            return scipy_eigsh(
                case.A, case.k, M=case.M, sigma=case.sigma, which=case.which, tol=tol, v0=_start(case)
            )

        try:
            w, X = solve()
        except ArpackNoConvergence:
            return None
        if residual(case, w, X, norm) <= TARGET:
            return solve, tol
    return None


def record(case: Case, turns: int = TURNS) -> dict[str, Any]:
    """Let both solve a case in turn, and describe the results."""
    norm = norm_of(case)

    def ours() -> Any:
        return eigsh(
            *(case.A, case.k, case.M, case.sigma, case.which),
            tol=TARGET * norm,
            convergence="absolute",
            rng=0,
            on_unconverged="return",
            return_info=True,
        )

    with option_context(threads=1), threadpoolctl.threadpool_limits(1):
        peer, result = _scipy(case, norm), ours()
        w, X = (None, None) if peer is None else peer[0]()
        calls = {"blockvec": ours} if peer is None else {"blockvec": ours, "scipy": peer[0]}
        runs = in_turns(calls, turns, enough_s=PATIENCE_S)
    told = ("method", "block_size", "degree", "operator_columns", "verification_columns", "restarts")
    found = result.eigenvalues[result.converged]
    entry: dict[str, Any] = {}
    if peer is not None:
        missed = _missed(case, w, found, norm)
        entry = {"tol": peer[1], "residual": residual(case, w, X, norm), "missed": missed}
        entry |= runs["scipy"].times()
    return {
        "operation": "eigsh",
        "table": "eigsh_easy",
        "matrix": case.name,
        "n": case.A.shape[0],
        "k": case.k,
        "which": case.which,
        "sigma": case.sigma,
        "threads": 1,
        "converged": len(found),
        "residual": residual(case, result.eigenvalues, result.eigenvectors, norm),
        "missed": 0 if w is None else _missed(case, found, w, norm),
        **runs["blockvec"].times(),
        **{name: result.info[name] for name in told},
        "peers": {"scipy": entry},
    }


def _missed(case: Case, found: np.ndarray, other: np.ndarray, norm: float) -> int:
    """Count the values of another solver that are more wanted than one of those found."""
    key = _key(case)
    mine, others = np.sort(key(found))[::-1], np.sort(key(other))[::-1]
    if len(mine) < len(others):
        return len(others) - len(mine)
    slack = 10 * TARGET * (norm if case.sigma is None else abs(others).max() ** 2 * norm)
    return int(np.count_nonzero(others > mine[: len(others)] + slack))


def _key(case: Case) -> Callable[[np.ndarray], np.ndarray]:
    if case.sigma is not None:
        return lambda w: 1 / np.abs(w - case.sigma)
    return {"LA": lambda w: w, "SA": lambda w: -w, "LM": np.abs, "SM": lambda w: -np.abs(w)}[case.which]


def line(one: dict[str, Any]) -> str:
    """Return a row of the table: CPU times in milliseconds, and their ratio."""
    peer = one["peers"]["scipy"]
    ours, theirs = 1e3 * one["cpu_s"], 1e3 * peer.get("cpu_s", math.nan)
    head = f"{one['matrix']:44} {one['k']:3d} {one['which']} {ours:8.1f} {theirs:8.1f} {ours / theirs:6.2f}"
    facts = f"{one['residual']:8.1e} {one['missed']:2d} {peer.get('missed', -1):2d}"
    columns = f"{one['operator_columns']:5d} {one['verification_columns']:4d}"
    return f"{head} {facts} {one['method']:8} {one['block_size']} {columns}"


def summary(records: list[dict[str, Any]]) -> str:
    """Describe the ratios of CPU times."""
    pairs = [(one["cpu_s"], one["peers"]["scipy"].get("cpu_s")) for one in records]
    ratios = np.array([ours / theirs for ours, theirs in pairs if theirs])
    mean, slow = np.exp(np.log(ratios).mean()), np.count_nonzero(ratios > SLOWER)
    return f"geometric mean {mean:.2f}, largest {ratios.max():.2f}, {slow} of {len(ratios)} above {SLOWER}"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", default="1", help="which draws to run, as 1,2")
    parser.add_argument("--only", default="", help="part of the names of the problems to run")
    parser.add_argument("--smallest", action="store_true", help="problems with which='SM'")
    parser.add_argument("--turns", type=int, default=TURNS)
    arguments = parser.parse_args()
    draws = smallest if arguments.smallest else cases
    chosen = ((seed, case) for seed in map(int, arguments.seeds.split(",")) for case in draws(seed))
    rows = (
        {"seed": seed, **record(case, arguments.turns)}
        for seed, case in chosen
        if arguments.only in case.name
    )
    print("CPU time in ms of blockvec, of SciPy, ratio")
    for (seed,), group in grouped(recorded(rows, arguments.json, line=line), "seed").items():
        print(f"seed {seed}: {summary(group)}")


if __name__ == "__main__":
    main()
