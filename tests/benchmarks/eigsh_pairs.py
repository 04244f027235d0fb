"""Twelve pairs K x = lambda M x without a shift: `solvers.eigsh` beside SciPy's, as engineers call them.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.eigsh_pairs --seeds 1,2 --json FILE

Meshes, masses graded by six decades, doubled structures, and an overlap matrix, for all five `which`. A seed
draws sizes, meshes and coefficients. Both solvers run with one thread and their default tolerance, in turn;
the times are the least of all turns, of the processor and of the wall clock. `wrong` counts the values that
differ from those of dense LAPACK, with copies; -1 means that the solver raised, SciPy's after as many
restarts as most of these problems take.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import threadpoolctl
from scipy.sparse.linalg import ArpackNoConvergence
from scipy.sparse.linalg import eigsh as scipy_eigsh
from scipy.spatial import Delaunay

from blockvec import models, option_context
from blockvec.backends import backend_for
from solvers import NoConvergence, eigsh

from . import records as results
from .drawn_problems import quadrilaterals
from .eigsh_easy import Case, _least, _start, _timed, mass, rough_beam

ENDS = ("SA", "LA", "BE", "LM", "SM")
TURNS = 3
SLOWER = 2.0  # times SciPy's time: the goal for each; 1.2 in the geometric mean
PATIENCE_S = 8.0  # turns end when they have taken so long
RIGHT = 1e-8  # of a value: accuracy that makes it right
ROUNDING = 1e-12  # of the largest value, for those of a K that is not positive definite
PEER_RESTARTS = 1000  # of SciPy, after which it has failed: ten times n takes minutes
POISSON = 0.3  # Poisson's ratio of steel


def elements(points: np.ndarray, cells: np.ndarray, density: np.ndarray, *, elastic: bool = False) -> Any:
    """Assemble linear elements: the stiffness of a membrane, or of plane stress, and the mass matrix."""
    d = points.shape[1]
    edges = points[cells[:, 1:]] - points[cells[:, :1]]
    volumes = np.abs(np.linalg.det(edges)) / math.factorial(d)
    cells, edges, density, volumes = (part[volumes > 1e-12] for part in (cells, edges, density, volumes))
    inner = np.linalg.inv(edges).transpose(0, 2, 1)
    gradients = np.concatenate([-inner.sum(axis=1, keepdims=True), inner], axis=1)
    masses = np.broadcast_to((np.ones((d + 1, d + 1)) + np.eye(d + 1)), (len(cells), d + 1, d + 1))
    weights = (density * volumes / ((d + 1) * (d + 2)))[:, None, None]
    M = _assembled(cells, weights * masses, len(points))
    if not elastic:
        return _assembled(
            cells, volumes[:, None, None] * gradients @ gradients.transpose(0, 2, 1), len(points)
        ), M
    strain = np.zeros((len(cells), 3, 2 * (d + 1)))
    strain[:, 0, 0::2] = strain[:, 2, 1::2] = gradients[:, :, 0]
    strain[:, 1, 1::2] = strain[:, 2, 0::2] = gradients[:, :, 1]
    stress = np.array([[1, POISSON, 0], [POISSON, 1, 0], [0, 0, (1 - POISSON) / 2]]) / (1 - POISSON**2)
    stiffness = volumes[:, None, None] * strain.transpose(0, 2, 1) @ stress @ strain
    unknowns = (2 * cells[:, :, None] + np.arange(2)).reshape(len(cells), -1)
    return _assembled(unknowns, stiffness, 2 * len(points)), sp.csr_array(sp.kron(M, sp.eye_array(2)))


def _assembled(cells: np.ndarray, blocks: np.ndarray, n: int) -> Any:
    width = cells.shape[1]
    rows, columns = np.repeat(cells, width, axis=1), np.tile(cells, (1, width))
    A = sp.csr_array(sp.coo_array((blocks.ravel(), (rows.ravel(), columns.ravel())), shape=(n, n)))
    return sp.csr_array((A + A.T) / 2)


def _inside(pair: Any, free: np.ndarray) -> Any:
    return tuple(sp.csr_array(A[free][:, free]) for A in pair)


def _doubled(rng: np.random.Generator, pair: Any) -> Any:
    order = rng.permutation(2 * pair[0].shape[0])
    return tuple(sp.csr_array(sp.block_diag([A, A], format="csr")[order][:, order]) for A in pair)


def _grid(rng: np.random.Generator, *lengths: int) -> Any:
    """Make a mesh of a box, whose inner nodes are moved a little."""
    points = np.stack(np.meshgrid(*map(np.arange, lengths), indexing="ij"), axis=-1).reshape(-1, len(lengths))
    is_inner: np.ndarray = ((points > 0) & (points < np.array(lengths) - 1)).all(axis=1)
    moved = points + 0.2 * is_inner[:, None] * rng.uniform(-1, 1, points.shape)
    return moved, Delaunay(moved).simplices, is_inner


def _membrane(rng: np.random.Generator, size: int, decades: float, *, is_free: bool = False) -> Any:
    """Form a rectangular membrane whose density grows by decades from side to side."""
    points, cells, is_inner = _grid(rng, size, size + int(rng.integers(1, 9)))
    density = 10.0 ** (decades * points[cells, 0].mean(axis=1) / size)
    pair = elements(points, cells, density)
    return pair if is_free else _inside(pair, np.flatnonzero(is_inner))


def _disc(rng: np.random.Generator, n: int) -> Any:
    radii, angles = np.sqrt(rng.uniform(0, 0.96, n)), rng.uniform(0, 2 * np.pi, n)
    rim = np.linspace(0, 2 * np.pi, round(3 * np.sqrt(n)), endpoint=False)
    radii, angles = np.r_[radii, np.ones(len(rim))], np.r_[angles, rim]
    points = radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    cells = Delaunay(points).simplices
    return _inside(elements(points, cells, np.ones(len(cells))), np.arange(n))


def _cantilever(rng: np.random.Generator, length: int, height: int) -> Any:
    points, cells, _ = _grid(rng, length, height)
    pair = elements(points, cells, np.ones(len(cells)), elastic=True)
    return _inside(pair, np.flatnonzero(np.repeat(points[:, 0] > 0, 2)))


def cases(seed: int) -> Iterator[Case]:
    """Draw the twelve pairs of a seed; `which` is that of `ENDS` in turn."""
    rng = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    def drawn() -> Iterator[tuple[str, Any]]:
        yield "membrane, varying mass", _membrane(rng, size(30, 45), 0.5)
        yield "disc", _disc(rng, size(800, 2500))
        yield "cantilever", _cantilever(rng, size(80, 120), size(6, 10))
        points, cells, is_inner = _grid(rng, *(3 * [size(11, 14)]))
        yield "cube", _inside(elements(points, cells, np.ones(len(cells))), np.flatnonzero(is_inner))
        yield "free membrane", _membrane(rng, size(25, 40), 0.5, is_free=True)
        nx = size(25, 40)
        yield "rough quadrilaterals", (quadrilaterals(rng, nx, 1.5), sp.csr_array(mass(nx, nx)))
        nx = size(30, 45)
        masses = sp.diags_array(np.linspace(1, 2, nx * nx), format="csr")
        yield "laplace2d, lumped mass", (models.laplace2d(n=nx).tocsr(), masses)
        n = size(1000, 2500)
        yield (
            "springs, graded masses",
            (rough_beam(rng, n), sp.diags_array(10 ** rng.uniform(-6, 0, n)).tocsr()),
        )
        yield "membrane, graded mass", _membrane(rng, size(30, 45), 6.0)
        yield "membrane, doubled", _doubled(rng, _membrane(rng, size(22, 32), 0.5))
        yield "cantilever, doubled", _doubled(rng, _cantilever(rng, size(40, 60), size(6, 9)))
        nx = size(9, 12)
        A = models.anderson(n=nx, disorder=8.0, seed=size(0, 1000)).tocsr()
        overlap = sp.eye_array(nx**3) + 0.05 * (abs(A) > 0).astype(float)
        yield "anderson, overlap", (A, sp.csr_array(overlap))

    for name, (K, M) in drawn():
        k = size(4, 13)
        for which in ENDS:
            yield Case(f"{name}, n={K.shape[0]}", K, k, which, M=M)


def reference(case: Case) -> np.ndarray:
    """Compute all eigenvalues by dense LAPACK, the small ones of a definite K by its inverse."""
    scale = 1 / np.sqrt(case.M.diagonal())
    K, M = (scale[:, None] * A.toarray() * scale for A in (case.A, case.M))
    values = scipy.linalg.eigh(K, M, eigvals_only=True)
    if values[0] > 0:
        try:
            inverse = 1 / scipy.linalg.eigh(M, K, eigvals_only=True)[::-1]
        except np.linalg.LinAlgError:
            return values
        low = values < math.sqrt(values[0] * values[-1])
        values = np.where(low, inverse, values)
    return values


def wanted(values: np.ndarray, k: int, which: str) -> np.ndarray:
    """Select the wanted ones of all values, ascending."""
    if which == "BE":
        return np.r_[values[: k // 2], values[len(values) - (k - k // 2) :]]
    key = {"SA": -values, "LA": values, "LM": np.abs(values), "SM": -np.abs(values)}[which]
    chosen: np.ndarray = np.sort(values[np.argsort(-key, kind="stable")[:k]])
    return chosen


def wrong(case: Case, w: np.ndarray | None, values: np.ndarray) -> int:
    """Count the values that are not those wanted; -1 without values."""
    if w is None:
        return -1
    right = wanted(values, case.k, case.which)
    if len(w) < len(right):
        return len(right) - len(w)
    noise = ROUNDING * np.abs(values).max() if values[0] <= ROUNDING * values[-1] else 0.0
    return int(np.count_nonzero(np.abs(np.sort(w) - right) > RIGHT * np.abs(right) + noise))


def accuracy(case: Case, w: Any, X: Any) -> dict[str, float]:
    """Measure the backward error and the orthonormality of pairs."""
    MX = case.M @ X
    norms = [abs(A).sum(axis=0).max() for A in (case.A, case.M)]
    scale = (norms[0] + np.abs(w) * norms[1]) * np.linalg.norm(X, axis=0)
    residual = float((np.linalg.norm(case.A @ X - MX * w, axis=0) / scale).max())
    return {"residual": residual, "orthogonality": float(np.abs(X.T @ MX - np.eye(len(w))).max())}


def record(case: Case, values: np.ndarray, turns: int = TURNS) -> dict[str, Any]:
    """Let both solve a case in turn, and describe the results."""

    def ours() -> Any:
        return eigsh(case.A, case.k, M=case.M, which=case.which, rng=0, return_info=True)

    def peer() -> Any:
        return scipy_eigsh(case.A, case.k, M=case.M, which=case.which, v0=_start(case), maxiter=PEER_RESTARTS)

    calls: dict[str, Callable[[], Any]] = {"blockvec": ours, "scipy": peer}
    entries: dict[str, dict[str, Any]] = {}
    with option_context(threads=1), threadpoolctl.threadpool_limits(1):
        info: dict[str, Any] = {}
        for name, call in calls.items():
            w: Any = None
            try:
                solved = call()
                w, X = solved if name == "scipy" else (solved.eigenvalues, solved.eigenvectors)
                info = info if name == "scipy" else solved.info
            except (NoConvergence, ArpackNoConvergence) as error:
                entries[name] = {"error": str(error).partition(":")[0]}
            else:
                entries[name] = accuracy(case, w, X)
            entries[name]["wrong"] = wrong(case, w, values)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        begin = time.perf_counter()
        for turn in range(turns):
            if turn and time.perf_counter() - begin > PATIENCE_S:
                break
            for name, call in calls.items():
                times[name].append(_timed(_without_error(call)))
    entries = {name: entry | _least(times[name]) for name, entry in entries.items()}
    told = (
        "method",
        "why",
        "block_size",
        "operator_columns",
        "verification_columns",
        "restarts",
        "verification",
    )
    return {
        "operation": "eigsh",
        "table": "eigsh_pairs",
        "matrix": case.name,
        "n": case.A.shape[0],
        "k": case.k,
        "which": case.which,
        "threads": 1,
        **entries["blockvec"],
        **{name: info.get(name) for name in told},
        "peers": {"scipy": entries["scipy"]},
    }


def _without_error(call: Callable[[], Any]) -> Callable[[], Any]:
    def solve() -> Any:
        try:
            return call()
        except (NoConvergence, ArpackNoConvergence):
            return None

    return solve


def line(one: dict[str, Any]) -> str:
    """Return a row of the table: CPU times in milliseconds, and their ratio."""
    peer = one["peers"]["scipy"]
    ours, theirs = 1e3 * one["cpu_s"], 1e3 * peer["cpu_s"]
    head = f"{one['matrix']:32} {one['k']:3d} {one['which']} {ours:8.1f} {theirs:8.1f} {ours / theirs:6.2f}"
    facts = f"{one['wrong']:2d} {peer['wrong']:2d} {one.get('residual', math.nan):8.1e}"
    return f"{head} {facts} {one['method']} {one['operator_columns']} {one['verification_columns']}"


def summary(records: list[dict[str, Any]]) -> str:
    """Describe the ratios of CPU times."""
    ratios = np.array([one["cpu_s"] / one["peers"]["scipy"]["cpu_s"] for one in records])
    mean, slow = np.exp(np.log(ratios).mean()), np.count_nonzero(ratios > SLOWER)
    bad = sum(one["wrong"] != 0 for one in records)
    return (
        f"geometric mean {mean:.2f}, largest {ratios.max():.2f}, {slow} of {len(ratios)} above {SLOWER}, "
        f"{bad} not right"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", default="1", help="which draws to run, as 1,2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--only", default="", help="part of the names of the problems to run")
    parser.add_argument("--which", default=",".join(ENDS), help="the ends to run, as SA,BE")
    parser.add_argument("--turns", type=int, default=TURNS)
    arguments = parser.parse_args()
    environment = results.environment(backend_for("cpu"))
    records: list[dict[str, Any]] = []
    for seed in map(int, arguments.seeds.split(",")):
        print(f"seed {seed}: CPU time in ms of blockvec, of SciPy, ratio, wrong values of both")
        known: tuple[str, Any] = ("", None)
        for case in cases(seed):
            if arguments.only not in case.name or case.which not in arguments.which.split(","):
                continue
            if known[0] != case.name:
                known = case.name, reference(case)
            records.append({"seed": seed, **record(case, known[1], arguments.turns)})
            print(line(records[-1]), flush=True)
            if arguments.json:
                results.write(arguments.json, environment, {}, records)
        for which in arguments.which.split(","):
            print(which, summary([one for one in records if (one["seed"], one["which"]) == (seed, which)]))
        print(summary([one for one in records if one["seed"] == seed]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
