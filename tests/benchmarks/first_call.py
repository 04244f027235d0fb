"""Time first calls of `eigsh` on a GPU in fresh processes, with an empty and with a full kernel cache.

Which source tree is measured is up to PYTHONPATH, so that two of them can be compared:

    PYTHONPATH=/trees/old python tests/benchmarks/first_call.py --json old.json
    PYTHONPATH=/trees/new python tests/benchmarks/first_call.py --json new.json --compare old.json
    PYTHONPATH=$PWD python -m tests.benchmarks.first_call --draw 19 --every 4 --json calls.json

The last form takes problems drawn from a seed, every fourth one. Every solve runs in three processes (drawn
problems: two) on cache folders of its own, also for CuPy and NVRTC: the first process finds them empty, the
others full. The import of the packages, the start of CUDA and the matrix are timed apart from the solve. The
sources are compiled to bytecode before, as installation does.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "filter": {"matrix": "laplace3d:n=60,periodic=True", "k": 14, "method": "filter"},
    "lanczos": {"matrix": "laplace3d:n=40", "k": 10, "method": "lanczos"},
    "jd": {"matrix": "laplace3d:n=40", "k": 10, "method": "jd"},
    "jd inside": {"matrix": "laplace3d:n=24", "k": 5, "method": "jd", "sigma": 2.0},
    "lanczos z": {"matrix": "laplace3d:n=40", "k": 10, "method": "lanczos", "dtype": "complex128"},
    "filter z": {"matrix": "laplace3d:n=40", "k": 10, "method": "filter", "dtype": "complex128"},
    "filter s": {"matrix": "laplace3d:n=40", "k": 10, "method": "filter", "dtype": "float32", "tol": 1e-4},
    "lanczos b=3": {"matrix": "laplace3d:n=40", "k": 7, "method": "lanczos", "block_size": 3},
    "filter b=5": {"matrix": "laplace3d:n=40", "k": 12, "method": "filter", "block_size": 5},
}
SOLVE_S = 20.0  # after which a solve of a drawn problem is stopped, and not measured
PARTS = ("import_s", "cuda_s", "matrix_s", "solve_s", "again_s")

CHILD = """
import json, sys, time
how, is_peer = json.loads(sys.argv[1]), sys.argv[2] == "cupy"
matrix, k, dtype = how.pop("matrix"), how.pop("k"), how.pop("dtype", "float64")
begin = time.perf_counter()
import blockvec, solvers
imported = time.perf_counter()
import cupy, cupyx.scipy.sparse.linalg
cupy.zeros(1).get()
started = time.perf_counter()
if "seed=" in matrix:
    from tests.benchmarks.drawn_problems import matrix as drawn
    A = drawn(matrix)
    how["tol"] *= float(abs(A).sum(axis=0).max())
    how["convergence"] = "absolute"
else:
    A = blockvec.models.model(matrix).astype(dtype)
A = cupyx.scipy.sparse.csr_matrix(A)
cupy.cuda.Device().synchronize()
ready = time.perf_counter()
times = []
for _ in range(2):
    since = time.perf_counter()
    if is_peer:
        w, X = cupyx.scipy.sparse.linalg.eigsh(A, k, which=how["which"], tol=how["tol"])
    else:
        w, X = solvers.eigsh(A, k, rng=0, **how)
    cupy.cuda.Device().synchronize()
    times.append(time.perf_counter() - since)
print(json.dumps({
    "import_s": imported - begin, "cuda_s": started - imported, "matrix_s": ready - started,
    "solve_s": times[0], "again_s": times[1], "tree": blockvec.__file__, "least": float(w.min()),
}))
"""


def measure(how: dict[str, Any], cache: Path, by: str = "blockvec") -> dict[str, Any]:
    """Run a solve twice in a process of its own, of blockvec or of "cupy", and return its seconds."""
    how = {"tol": 1e-8, **how} if "sigma" in how else {"tol": 1e-8, "which": "SA", **how}
    folders = {"BLOCKVEC_CACHE_DIR": "blockvec", "CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "nvrtc"}
    caches = {name: str(cache / folder) for name, folder in folders.items()}
    environment = os.environ | caches | {"PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", CHILD, json.dumps(how), by]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=4 * SOLVE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{how}: NoConvergence of {by} in {error.timeout:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"{how} failed:\n{done.stderr[-2000:]}")
    times: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> None:
    """Measure, print a table, and write or compare records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--draw", type=int, metavar="SEED", help="problems drawn from this seed instead")
    parser.add_argument("--count", type=int, default=40, help="how many of them (40)")
    parser.add_argument("--largest", type=float, default=1e7, metavar="N", help="rows of the largest (1e7)")
    parser.add_argument("--cupy", action="store_true", help="CuPy's eigsh too, of CuPy's own calls")
    parser.add_argument("--every", type=int, default=1, metavar="STEP", help="every so many of them (1)")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="for everything")
    parser.add_argument("--repeats", type=int, default=1, help="caches per kind; the fastest solve counts")
    parser.add_argument("--cache", type=Path, help="folder for the caches; default a temporary one")
    parser.add_argument("--json", type=Path, help="file to write the times to")
    parser.add_argument("--resume", action="store_true", help="keep the times that the file has already")
    parser.add_argument("--compare", type=Path, help="file with the times of another tree")
    arguments = parser.parse_args()
    other = json.loads(arguments.compare.read_text()) if arguments.compare else {}
    for package in ("blockvec", "solvers"):
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            compileall.compile_dir(folder, quiet=1)
    is_continued = arguments.resume and arguments.json and arguments.json.exists()
    found: dict[str, dict[str, Any]] = json.loads(arguments.json.read_text()) if is_continued else {}
    columns = "".join(f"{part:>10}" for part in PARTS)
    print(f"{'kind':14}{'cache':12}{columns}{'other':>10}{'ratio':>8}")
    kinds, full, begin = {name: KINDS[name] for name in arguments.kinds}, 2, time.monotonic()
    if arguments.draw is not None:
        from .drawn_problems import draw

        drawn = draw(arguments.draw, arguments.count, arguments.largest)[:: arguments.every]
        how = {"time_limit": SOLVE_S}
        kinds, full = {text: {"matrix": text, "k": k, "which": which, **how} for text, k, which in drawn}, 1
    for name, kind in kinds.items():
        if f"{name}, full" in found:
            continue
        if time.monotonic() - begin > arguments.budget:
            print("the rest is left out")
            break
        runs: dict[str, list[dict[str, Any]]] = {"empty": [], "full": []}
        for _ in range(arguments.repeats):
            with tempfile.TemporaryDirectory(dir=arguments.cache) as cache:
                try:
                    runs["empty"].append(measure(kind, Path(cache)))
                    runs["full"] += [measure(kind, Path(cache)) for _ in range(full)]
                    if arguments.cupy:
                        peer = Path(cache) / "peer"
                        for state in ("cupy, empty", "cupy, full"):
                            runs.setdefault(state, []).append(measure(kind, peer, by="cupy"))
                except RuntimeError as error:
                    if "NoConvergence" not in str(error):
                        raise
                    print(str(error).strip().splitlines()[-1][:200])
        for state, times in runs.items():
            if not times:
                continue
            best = min(times, key=lambda one: float(one["solve_s"]))
            found[f"{name}, {state}"] = best
            before = other.get(f"{name}, {state}", {}).get("solve_s")
            ratio = f"{before:10.2f}{best['solve_s'] / before:8.2f}" if before else ""
            parts = "".join(f"{best[part]:10.2f}" for part in PARTS)
            print(f"{name[:40]:14}{state:12}{parts}{ratio}", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("tree:", {Path(one["tree"]).parents[1].as_posix() for one in found.values()})


if __name__ == "__main__":
    main()
