"""Compare the speed of two source trees: products, calls and solves.

    python tests/benchmarks/compare_trees.py OLD_TREE NEW_TREE [--device gpu] [--pairs 5] [--json FILE]
    ... --drawn "torus3d:n=57,seed=250 6 LA" "xxz:sites=16,seed=74 100 SA"

Each process imports one tree and times all tasks, or `eigsh` of drawn problems (matrix, k, which; see
`drawn_problems`, which both trees need). Processes of the two trees alternate, and the median ratio over the
pairs is printed. Only public names are used, so that any two versions can be compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BURST_S = {"cpu": 0.05, "gpu": 0.02}
"""Seconds of one burst of calls."""

BURSTS = 9
SHORT_ROWS = 10_000
"""Rows of the blocks on which the latency of a call is measured."""


def products(device: str) -> dict[str, Callable[[], Any]]:
    """Return calls of dense and sparse products by name."""
    from blockvec import BlockVector, as_operator
    from blockvec.models import model

    rows = 4_000_000 if device == "gpu" else 300_000
    calls: dict[str, Callable[[], Any]] = {}

    def block(width: int, dtype: str = "float64", K: int = rows) -> BlockVector:
        return BlockVector.random(K, width, dtype, rng=width, device=device)

    def small(M: int, N: int, dtype: str = "float64") -> Any:
        return BlockVector.random(M, N, dtype, rng=7, device=device).array

    for dtype, width in (("float64", 1), ("float64", 8), ("float64", 32), ("complex128", 8), ("float32", 16)):
        A, B = block(width, dtype), block(width, dtype)
        calls[f"dot {dtype} {width}"] = lambda A=A, B=B: A.dot(B)
    for dtype, M, N in (("float64", 8, 8), ("float64", 48, 16), ("complex128", 4, 4)):
        A, out, C = block(M, dtype), block(N, dtype), small(M, N, dtype)
        calls[f"combine {dtype} {M}x{N}"] = lambda A=A, C=C, out=out: A.combine(C, out=out)
    W, V = block(64, K=rows // 4), block(8, K=rows // 4)
    zero = small(64, 8) * 0
    calls["update_gram 64x8"] = lambda: V.update_gram(W, zero)
    X, Y = block(8), block(8)
    calls["gram float64 8"] = X.gram
    calls["axpby float64 8"] = lambda: Y.axpby(1.0, X, 0.5)
    op = as_operator(model("laplace3d:n=128" if device == "gpu" else "laplace3d:n=48"), device=device)
    S, T = block(8, K=op.shape[0]), block(8, K=op.shape[0])
    calls["spmmv laplace3d 8"] = lambda: op.apply(S, out=T)
    chain = as_operator(
        model("xxz:sites=20,up=10" if device == "gpu" else "xxz:sites=14,up=7"), device=device
    )
    P, Q = block(4, K=chain.shape[0]), block(4, K=chain.shape[0])
    calls["spmmv xxz 4 updated"] = lambda: chain.apply(P, out=Q, alpha=0.5, beta=0.5, shift=0.25)
    a, b, C = block(8, K=SHORT_ROWS), block(8, K=SHORT_ROWS), small(8, 8)
    out = block(8, K=SHORT_ROWS)
    calls["call: dot 1e4x8"] = lambda: a.H @ b
    calls["call: combine 1e4x8"] = lambda: a.combine(C, out=out)
    calls["call: V @ C 1e4x8"] = lambda: a @ C
    return calls


def solves(device: str) -> dict[str, Callable[[], Any]]:
    """Return seeded solves by name."""
    from blockvec.models import model
    from solvers import eigsh

    gpu = device == "gpu"
    tasks: dict[str, tuple[str, dict[str, Any]]] = {
        "lanczos": (
            "laplace2d:n=400" if gpu else "laplace2d:n=100",
            {"k": 6, "which": "LA", "method": "lanczos"},
        ),
        "filter": (
            "laplace3d:n=80" if gpu else "laplace3d:n=30",
            {"k": 10, "which": "SA", "method": "filter"},
        ),
        "jd": ("xxz:sites=18,up=9" if gpu else "xxz:sites=14,up=7", {"k": 4, "which": "SA", "method": "jd"}),
        "auto": ("laplace1d:n=1000" if gpu else "laplace2d:n=40", {"k": 3, "which": "LA"}),
    }
    return {
        f"eigsh {name}": functools.partial(eigsh, model(text), rng=0, tol=1e-8, device=device, **keywords)
        for name, (text, keywords) in tasks.items()
    }


def drawn_solves(device: str, problems: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """Return seeded solves of drawn problems by their texts, of matrices as a user has them."""
    from solvers import eigsh
    from tests.benchmarks.drawn_problems import matrix  # the tree's own

    tasks = {}
    for problem in problems:
        text, k, which = problem.split()
        options = {"k": int(k), "which": which, "tol": 1e-8, "convergence": "norm", "rng": 0}
        A = matrix(text)
        if device == "gpu":
            from cupyx.scipy.sparse import csr_matrix

            A = csr_matrix(A)
        tasks[problem] = functools.partial(eigsh, A, **options)
    return tasks


def measure(device: str, problems: Sequence[str]) -> dict[str, float]:
    """Return seconds per call by name, of all tasks or of drawn problems alone."""
    from blockvec import BlockVector

    def wait() -> None:
        if device == "gpu":
            import cupy

            cupy.cuda.get_current_stream().synchronize()

    def burst(call: Callable[[], Any], count: int) -> float:
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - begin) / count

    BlockVector.zeros(1, 1, device=device)
    times = {}
    for name, call in {} if problems else products(device).items():
        burst(call, 25)
        count = max(1, min(2000, int(BURST_S[device] / burst(call, 5))))
        times[name] = statistics.median(burst(call, count) for _ in range(BURSTS))
    for name, call in (drawn_solves(device, problems) if problems else solves(device)).items():
        burst(call, 2)
        times[name] = statistics.median(burst(call, 1) for _ in range(5 if problems else 3))
    return times


def run(tree: Path, device: str, problems: Sequence[str]) -> dict[str, float]:
    """Measure a tree in a process of its own."""
    command = [sys.executable, __file__, "--measure", "--device", device, "--drawn", *problems]
    environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> int:
    """Measure both trees in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--drawn", nargs="*", default=[], metavar="PROBLEM", help="matrix, k and which")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.device, arguments.drawn)))
        return 0
    old, new = arguments.trees
    pairs = []
    for i in range(arguments.pairs):
        first, second = (old, new) if i % 2 == 0 else (new, old)
        times = {tree: run(tree, arguments.device, arguments.drawn) for tree in (first, second)}
        pairs.append((times[old], times[new]))
    print(f"{'task':28} {'old':>12} {'new':>12}  new/old (min .. max)")
    for name in pairs[0][0]:
        ratios = [b[name] / a[name] for a, b in pairs]
        before, after = (statistics.median(pair[i][name] for pair in pairs) for i in (0, 1))
        spread = f"({min(ratios):.3f} .. {max(ratios):.3f})"
        columns = f"{before * 1e6:9.1f} us {after * 1e6:9.1f} us  {statistics.median(ratios):.3f}"
        print(f"{name:28} {columns} {spread}")
    if arguments.json:
        _write(arguments.json, arguments.device, [tree.resolve().name for tree in (old, new)], pairs)
    return 0


def _write(file: Path, device: str, trees: Sequence[str], pairs: Sequence[Any]) -> None:
    """Write the environment, and the times of each pair of processes by task."""
    from blockvec.backends import backend_for
    from tests.benchmarks.records import environment

    times = {name: [[one[name] for one in pair] for pair in pairs] for name in pairs[0][0]}
    about = environment(backend_for(device))
    file.write_text(json.dumps({"environment": about, "trees": trees, "times_s": times}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
