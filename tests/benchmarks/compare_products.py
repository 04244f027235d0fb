"""Compare products of two source trees on one GPU: 200 drawn dense ones and 60 sparse ones.

    python tests/benchmarks/compare_products.py OLD_TREE NEW_TREE [--device gpu] [--dense 200] [--sparse 60]
        [--seed 0] [--pairs 3] [--gigabytes 0.5] [--json FILE]

Each process imports one tree, calls every product once, in parallel so that its kernels are compiled in
parallel, and then times them. Processes of the two trees alternate, and every tree keeps its own caches. The
ratios of the medians are printed, the slowest first; results of which the sums of squares differ are told.
Only public names are used, so that any two versions can be compared; `first_call.py` compares first calls.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = ("float64", "complex128", "float32", "complex64")
WIDEST = 64
BURST_S, BURSTS = 0.02, 7
AT_ONCE = 6
"""Products called at a time while kernels are compiled."""

MATRICES = (
    "laplace3d:n=120",
    "laplace2d:n=1200",
    "laplace1d:n=1500000",
    "xxz:sites=20,up=10",
    "laplace3d:n=90,periodic=True",
    "regular",
    "power",
    "banded",
)
"""Texts of models, and patterns of random matrices."""


def drawn_dense(rng: np.random.Generator, count: int, gigabytes: float) -> list[dict[str, Any]]:
    """Draw operations, types, numbers of rows, widths and pitches, half of which are those of views."""
    found: list[dict[str, Any]] = []
    for _ in range(count):
        operation = str(rng.choice(["dot", "gram", "combine", "update", "inplace", "update_gram"]))
        M, N = sorted((int(width) for width in rng.integers(1, WIDEST + 1, 2)), reverse=True)
        if operation in ("combine", "dot") and rng.random() < 0.5:
            M, N = N, M
        more = [int(rng.integers(1, WIDEST)) if rng.random() < 0.5 else 0 for _ in range(2)]
        dtype = str(rng.choice(DTYPES))
        row_bytes = np.dtype(dtype).itemsize * (M + N + sum(more))
        rows = int(gigabytes * 1e9 * float(rng.choice([1.0, 0.3, 0.02])) / row_bytes)
        found.append({"operation": operation, "dtype": dtype, "K": rows, "widths": [M, N], "more": more})
    return found


def drawn_sparse(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Draw matrices, types, widths, pitches and whether the result is updated."""
    return [
        {
            "operation": "spmmv",
            "matrix": MATRICES[i % len(MATRICES)],
            "seed": int(rng.integers(1 << 30)),
            "dtype": str(rng.choice(DTYPES)),
            "widths": [int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]))],
            "more": [int(rng.integers(1, 9)) if rng.random() < 0.3 else 0],
            "is_update": bool(rng.random() < 0.5),
        }
        for i in range(count)
    ]


def random_matrix(pattern: str, seed: int, n: int = 400_000) -> Any:
    """Make a matrix with rows of one length, of very different lengths, or in a band."""
    import scipy.sparse as sp

    rng = np.random.default_rng(seed)
    if pattern == "banded":
        offsets = np.unique(rng.integers(-2000, 2000, 13))
        return sp.diags_array(
            [rng.standard_normal(n - abs(offset)) for offset in offsets], offsets=offsets, format="csr"
        )
    lengths = (
        np.full(n, 14) if pattern == "regular" else np.minimum(5000, 3 * rng.pareto(1.5, n) + 1).astype(int)
    )
    rows = np.repeat(np.arange(n), lengths)
    columns = rng.integers(0, n, len(rows))
    return sp.csr_array((rng.standard_normal(len(rows)), (rows, columns)), shape=(n, n))


def dense_call(case: dict[str, Any], device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a call of a product and a function that returns its result."""
    from blockvec import BlockVector

    (M, N), (more_a, more_b) = case["widths"], case["more"]
    K, dtype, operation = case["K"], case["dtype"], case["operation"]

    def block(width: int, more: int, seed: int) -> Any:
        whole = BlockVector.random(K, width + more, dtype, rng=seed, device=device)
        return BlockVector(whole.array[:, :width]) if more else whole

    A = block(M, more_a, 1)
    if operation == "gram":
        return A.gram, A.gram
    B = block(N, more_b, 2)
    if operation == "dot":
        return (lambda: A.dot(B)), (lambda: A.dot(B))
    if operation == "inplace":
        C = BlockVector.random(M, N, dtype, rng=3, device=device).array * (0.5 / math.sqrt(M))
        view = BlockVector(A.array[:, :N])
        return (lambda: A.combine(C, out=view)), (lambda: view.array)
    if operation == "combine":
        C = BlockVector.random(M, N, dtype, rng=3, device=device).array
        return (lambda: A.combine(C, out=B)), (lambda: B.array)
    C = BlockVector.random(M, N, dtype, rng=3, device=device).array * 1e-3
    if operation == "update":
        return (lambda: A.combine(C, out=B, alpha=-1.0, beta=1.0)), (lambda: B.array)
    return (lambda: B.update_gram(A, C)), (lambda: B.update_gram(A, C * 0))


def sparse_call(
    case: dict[str, Any], device: str, operators: dict[Any, Any]
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a call of a product and a function that returns its result."""
    from blockvec import BlockVector, as_operator
    from blockvec.models import model

    text, dtype, (width,), (more,) = case["matrix"], case["dtype"], case["widths"], case["more"]
    key = text, dtype, case["seed"] if ":" not in text else 0
    if key not in operators:
        A = model(text).astype(dtype) if ":" in text else random_matrix(text, case["seed"]).astype(dtype)
        operators[key] = as_operator(A, device=device)
    op = operators[key]

    def block(seed: int) -> Any:
        whole = BlockVector.random(op.shape[0], width + more, dtype, rng=seed, device=device)
        return BlockVector(whole.array[:, :width]) if more else whole

    X, Y = block(1), block(2)
    how = {"alpha": 0.5, "beta": -0.5, "shift": 0.25} if case["is_update"] else {}
    return (lambda: op.apply(X, out=Y, **how)), (lambda: Y.array)


def prepared(case: dict[str, Any], device: str, operators: dict[Any, Any]) -> Any:
    """Return the calls of a case."""
    if case["operation"] == "spmmv":
        return sparse_call(case, device, operators)
    return dense_call(case, device)


def measure(cases: list[dict[str, Any]], device: str) -> list[dict[str, float]]:
    """Return seconds per call and the sum of squares of the first result, case by case."""
    operators: dict[Any, Any] = {}

    def wait() -> None:
        if device == "gpu":
            import cupy

            cupy.cuda.get_current_stream().synchronize()

    def first(case: dict[str, Any]) -> float:
        call, result = prepared(case, device, operators)
        call()
        values = result()
        wait()
        return float((abs(values) ** 2).sum(dtype="float64"))

    def burst(call: Callable[[], Any], count: int) -> float:
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - begin) / count

    if device == "gpu":  # before threads, each of which would import CuPy
        from blockvec import BlockVector

        BlockVector.zeros(1, 1, device=device)
    begin = time.perf_counter()
    dense = [case for case in cases if case["operation"] != "spmmv"]
    with ThreadPoolExecutor(AT_ONCE if device == "gpu" else 1) as pool:
        squares = list(pool.map(first, dense))
    squares += [first(case) for case in cases[len(dense) :]]  # operators are shared
    print(f"first calls of {len(cases)} products: {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    found = []
    for case, total in zip(cases, squares, strict=True):
        call, _ = prepared(case, device, operators)
        burst(call, 3)
        count = max(1, min(500, int(BURST_S / burst(call, 2))))
        found.append({"s": statistics.median(burst(call, count) for _ in range(BURSTS)), "squares": total})
    return found


def run(tree: Path, cases: list[dict[str, Any]], device: str, caches: Path) -> list[dict[str, float]]:
    """Measure a tree in a process of its own."""
    command = [sys.executable, __file__, "--measure", "--device", device]
    paths = [str(tree.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    for name in ("XDG_CACHE_HOME", "BLOCKVEC_CACHE_DIR"):
        environment[name] = str(caches / name)
    text = json.dumps(cases)
    done = subprocess.run(
        command, env=environment, cwd="/", input=text, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{tree} fails with status {done.returncode}")
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(cases: list[dict[str, Any]], pairs: list[tuple[list[Any], list[Any]]]) -> list[dict[str, Any]]:
    """Return the cases with the times of all pairs, the median ratio and whether the results agree."""
    compared = []
    for i, case in enumerate(cases):
        times = [[one[i]["s"] for one in pair] for pair in pairs]
        old, new = (pairs[0][tree][i]["squares"] for tree in (0, 1))
        accuracy = 1e-4 if case["dtype"] in ("float32", "complex64") else 1e-10
        agrees = math.isclose(old, new, rel_tol=accuracy)
        ratio = statistics.median(new_s / old_s for old_s, new_s in times)
        compared.append({**case, "times_s": times, "ratio": ratio, "agrees": agrees})
    return compared


def summary(name: str, compared: list[dict[str, Any]]) -> str:
    """Describe the ratios of the times: their geometric mean, the tails and the worst."""
    ratios = sorted(case["ratio"] for case in compared)
    if not ratios:
        return f"{name}: none"
    mean = statistics.geometric_mean(ratios)
    slower = sum(ratio > 1.05 for ratio in ratios)
    return (
        f"{name}: new/old {mean:.3f} (geometric mean of {len(ratios)}), {ratios[0]:.3f} to {ratios[-1]:.3f}, "
        f"{slower} more than 5 % slower"
    )


def main() -> int:
    """Measure both trees in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--device", default="gpu", choices=("cpu", "gpu"))
    parser.add_argument("--dense", type=int, default=200)
    parser.add_argument("--sparse", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=0.5, help="of the largest operands")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(json.load(sys.stdin), arguments.device)))
        return 0
    rng = np.random.default_rng(arguments.seed)
    cases = drawn_dense(rng, arguments.dense, arguments.gigabytes) + drawn_sparse(rng, arguments.sparse)
    old, new = arguments.trees
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(arguments.pairs):
            times = {
                tree: run(tree, cases, arguments.device, Path(folder) / str((old, new).index(tree)))
                for tree in ((old, new) if i % 2 == 0 else (new, old))
            }
            pairs.append((times[old], times[new]))
    compared = compare(cases, pairs)
    for case in sorted(compared, key=lambda case: -case["ratio"])[:20]:
        print(f"{case['ratio']:.3f}", {name: case[name] for name in case if name not in ("ratio", "agrees")})
    for case in compared:
        if not case["agrees"]:
            print("differs:", {name: case[name] for name in case if name != "times_s"})
    print(summary("dense", [case for case in compared if case["operation"] != "spmmv"]))
    print(summary("sparse", [case for case in compared if case["operation"] == "spmmv"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(compared, indent=1) + "\n")
    return int(not all(case["agrees"] for case in compared))


if __name__ == "__main__":
    sys.exit(main())
