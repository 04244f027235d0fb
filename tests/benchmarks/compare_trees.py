"""Compare the speed of two source trees: products, calls and solves.

    python tests/benchmarks/compare_trees.py OLD_TREE NEW_TREE [--device gpu] [--pairs 5] [--json FILE]
    ... --dense 200 --sparse 60 --seed 1 --gigabytes 0.5
    ... --drawn "torus3d:n=57,seed=250 6 LA" "xxz:sites=16,seed=74 100 SA"

Each process imports one tree, calls every drawn product once, in parallel so that its kernels are compiled in
parallel, and then times them, short calls and solves; or `eigsh` of drawn problems alone (matrix, k, which;
see `drawn_problems`, which both trees need). Processes of the two trees alternate, and every tree keeps its
own caches. The median ratios are printed, the slowest first; products of which the sums of squares differ are
told. Only public names are used, so that any two versions can be compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Case = dict[str, Any]
Call = Callable[[], Any]

DTYPES = ("float64", "complex128", "float32", "complex64")
WIDEST = 64
BURST_S, BURSTS = 0.02, 7  # seconds of one burst of calls, and how many of them
SOLVES_TIMED = 5
LEFT_OUT = "times_s", "ratio", "agrees", "seed"  # of printed lines
AT_ONCE = 6  # products called at a time while kernels are compiled
SHORT_ROWS = 10_000  # of blocks on which the latency of a call is measured
GIGABYTES = {"cpu": 0.05, "gpu": 0.5}  # of the largest operands
MATRICES = {  # texts of models, and patterns of random matrices
    "gpu": (
        *("laplace3d:n=120", "laplace2d:n=1200", "laplace1d:n=1500000", "xxz:sites=20,up=10"),
        *("laplace3d:n=90,periodic=True", "regular", "power", "banded"),
    ),
    "cpu": ("laplace3d:n=48", "laplace2d:n=300", "xxz:sites=14,up=7", "regular", "power", "banded"),
}
SOLVES: dict[str, dict[str, tuple[str, int, str, str]]] = {  # matrix, k, which, method
    "gpu": {
        "lanczos": ("laplace2d:n=400", 6, "LA", "lanczos"),
        "filter": ("laplace3d:n=80", 10, "SA", "filter"),
        "jd": ("xxz:sites=18,up=9", 4, "SA", "jd"),
        "auto": ("laplace1d:n=1000", 3, "LA", "auto"),
    },
    "cpu": {
        "lanczos": ("laplace2d:n=100", 6, "LA", "lanczos"),
        "filter": ("laplace3d:n=30", 10, "SA", "filter"),
        "jd": ("xxz:sites=14,up=7", 4, "SA", "jd"),
        "auto": ("laplace2d:n=40", 3, "LA", "auto"),
    },
}


def drawn_dense(rng: np.random.Generator, count: int, gigabytes: float) -> list[Case]:
    """Draw operations, types, numbers of rows, widths and pitches, half of which are those of views."""
    found: list[Case] = []
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


def drawn_sparse(rng: np.random.Generator, count: int, matrices: Sequence[str]) -> list[Case]:
    """Draw matrices, types, widths, pitches and whether the result is updated."""
    return [
        {
            "operation": "spmmv",
            "matrix": matrices[i % len(matrices)],
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


def dense_call(case: Case, device: str) -> tuple[Call, Call]:
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


def sparse_call(case: Case, device: str, operators: dict[Any, Any]) -> tuple[Call, Call]:
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


def short_call(case: Case, device: str) -> Call:
    """Return a call on short blocks, which takes hardly longer than Python needs for it."""
    from blockvec import BlockVector

    a, b, out = (BlockVector.random(SHORT_ROWS, 8, rng=seed, device=device) for seed in range(3))
    C = BlockVector.random(8, 8, rng=7, device=device).array
    calls: dict[str, Call] = {
        "dot": lambda: a.H @ b,
        "combine": lambda: a.combine(C, out=out),
        "V @ C": lambda: a @ C,
    }
    return calls[case["name"]]


def solve(case: Case, device: str) -> Call:
    """Return a seeded solve of a model, or of a drawn problem as a user has its matrix."""
    from solvers import eigsh

    options: dict[str, Any] = {"k": case["k"], "which": case["which"], "rng": 0, "tol": 1e-8}
    if "method" in case:
        from blockvec.models import model

        return functools.partial(
            eigsh, model(case["matrix"]), device=device, method=case["method"], **options
        )
    from tests.benchmarks.drawn_problems import matrix  # the tree's own

    A = matrix(case["matrix"])
    if device == "gpu":
        from cupyx.scipy.sparse import csr_matrix

        A = csr_matrix(A)
    return functools.partial(eigsh, A, convergence="norm", **options)


def measure(cases: list[Case], device: str) -> list[dict[str, float]]:
    """Return seconds per call, and of products the sum of squares of the first result, case by case."""
    from blockvec import BlockVector

    operators: dict[Any, Any] = {}

    def prepared(case: Case) -> tuple[Call, Call | None]:
        match case["operation"]:
            case "eigsh":
                return solve(case, device), None
            case "call":
                return short_call(case, device), None
            case "spmmv":
                return sparse_call(case, device, operators)
            case _:
                return dense_call(case, device)

    def wait() -> None:
        if device == "gpu":
            import cupy

            cupy.cuda.get_current_stream().synchronize()

    def first(case: Case) -> float:
        call, result = prepared(case)
        if result is None:
            return 0.0
        call()
        values = result()
        wait()
        return float((abs(values) ** 2).sum(dtype="float64"))

    def burst(call: Call, count: int) -> float:
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - begin) / count

    BlockVector.zeros(1, 1, device=device)  # before threads, each of which would import CuPy
    begin = time.perf_counter()
    later = [case["operation"] == "spmmv" for case in cases]  # operators are shared
    with ThreadPoolExecutor(AT_ONCE if device == "gpu" else 1) as pool:
        jobs = [None if one else pool.submit(first, case) for case, one in zip(cases, later, strict=True)]
    squares = [job.result() if job else first(case) for case, job in zip(cases, jobs, strict=True)]
    print(f"first calls of {len(cases)} tasks: {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    found = []
    for case, total in zip(cases, squares, strict=True):
        call, _ = prepared(case)
        is_solve = case["operation"] == "eigsh"
        burst(call, 2 if is_solve else 25)  # formats of sparse matrices change on the way
        count = 1 if is_solve else max(1, min(2000, int(BURST_S / burst(call, 2))))
        repeats = SOLVES_TIMED if is_solve else BURSTS
        found.append({"s": statistics.median(burst(call, count) for _ in range(repeats)), "squares": total})
    return found


def run(tree: Path, cases: list[Case], device: str, caches: Path) -> list[dict[str, float]]:
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


def compare(cases: list[Case], pairs: list[tuple[list[Any], list[Any]]]) -> list[Case]:
    """Return the cases with the times of all pairs, the median ratio and whether the results agree."""
    compared = []
    for i, case in enumerate(cases):
        times = [[one[i]["s"] for one in pair] for pair in pairs]
        old, new = (pairs[0][tree][i]["squares"] for tree in (0, 1))
        accuracy = 1e-4 if case.get("dtype") in ("float32", "complex64") else 1e-10
        agrees = math.isclose(old, new, rel_tol=accuracy)
        ratio = statistics.median(new_s / old_s for old_s, new_s in times)
        compared.append({**case, "times_s": times, "ratio": ratio, "agrees": agrees})
    return compared


def summary(name: str, compared: list[Case]) -> str:
    """Describe the ratios of the times: their geometric mean, the tails and the worst."""
    ratios = sorted(case["ratio"] for case in compared)
    mean = statistics.geometric_mean(ratios)
    slower = sum(ratio > 1.05 for ratio in ratios)
    return (
        f"{name}: new/old {mean:.3f} (geometric mean of {len(ratios)}), {ratios[0]:.3f} to {ratios[-1]:.3f}, "
        f"{slower} more than 5 % slower"
    )


def tasks(arguments: argparse.Namespace) -> list[Case]:
    """List the drawn problems that are given, or products, calls and solves."""
    if arguments.drawn:
        parts = [problem.split() for problem in arguments.drawn]
        return [{"operation": "eigsh", "matrix": A, "k": int(k), "which": which} for A, k, which in parts]
    device, rng = arguments.device, np.random.default_rng(arguments.seed)
    cases = drawn_dense(rng, arguments.dense, arguments.gigabytes or GIGABYTES[device])
    cases += drawn_sparse(rng, arguments.sparse, MATRICES[device])
    cases += [{"operation": "call", "name": name} for name in ("dot", "combine", "V @ C")]
    names = "matrix", "k", "which", "method"
    return cases + [
        {"operation": "eigsh", **dict(zip(names, given, strict=True))} for given in SOLVES[device].values()
    ]


def main() -> int:
    """Measure both trees in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--dense", type=int, default=16, help="products of blocks")
    parser.add_argument("--sparse", type=int, default=8, help="products of sparse matrices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gigabytes", type=float, help="of the largest operands (0.05, GPU 0.5)")
    parser.add_argument("--drawn", nargs="*", default=[], metavar="PROBLEM", help="matrix, k and which")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(json.load(sys.stdin), arguments.device)))
        return 0
    cases, (old, new), pairs = tasks(arguments), arguments.trees, []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(arguments.pairs):
            times = {
                tree: run(tree, cases, arguments.device, Path(folder) / str((old, new).index(tree)))
                for tree in ((old, new) if i % 2 == 0 else (new, old))
            }
            pairs.append((times[old], times[new]))
    compared = compare(cases, pairs)
    for case in sorted(compared, key=lambda case: -case["ratio"]):
        text = " ".join(str(case[name]) for name in case if name not in LEFT_OUT)
        before, after = (statistics.median(pair[i] for pair in case["times_s"]) for i in (0, 1))
        differs = "" if case["agrees"] else "  differs"
        print(f"{case['ratio']:.3f} {before * 1e6:9.1f} us {after * 1e6:9.1f} us  {text}{differs}")
    for name in dict.fromkeys(_kind(case) for case in compared):
        print(summary(name, [case for case in compared if _kind(case) == name]))
    if arguments.json:
        _write(arguments.json, arguments.device, [tree.resolve().name for tree in (old, new)], compared)
    return int(not all(case["agrees"] for case in compared))


def _kind(case: Case) -> str:
    return case["operation"] if case["operation"] in ("eigsh", "call", "spmmv") else "dense"


def _write(file: Path, device: str, trees: list[str], compared: list[Case]) -> None:
    """Write the environment, and the times of each pair of processes by task."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from blockvec.backends import backend_for
    from tests.benchmarks.records import environment

    about = environment(backend_for(device))
    file.write_text(json.dumps({"environment": about, "trees": trees, "records": compared}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
