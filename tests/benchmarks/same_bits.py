"""Compare results of two source trees bit by bit: store hashes with one tree, compare them with the other.

    python tests/benchmarks/same_bits.py store before.json [--device gpu] [--dtype float64]
    PYTHONPATH=<other tree> python tests/benchmarks/same_bits.py compare before.json [--device gpu]

Only public names are used, so that the script runs with any version. Hashes hold for one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import blockvec
from blockvec import BlockVector, as_operator
from blockvec.models import model
from solvers import eigsh

DTYPES = ("float64", "complex128", "float32", "complex64")
WIDTHS = ((1, 1), (2, 2), (3, 5), (8, 8), (7, 13), (16, 4), (32, 32), (64, 64), (128, 4))
MATRICES = ("laplace3d:n=24", "graphene:nx=48,ny=48", "xxz:sites=12,up=6", "laplace1d:n=5000")
SOLVES: dict[str, dict[str, Any]] = {
    "lanczos": {"A": "laplace2d:n=60", "k": 6, "which": "LA", "method": "lanczos"},
    "filter": {"A": "laplace3d:n=20", "k": 8, "which": "SA", "method": "filter"},
    "jd": {"A": "xxz:sites=12,up=6", "k": 4, "which": "SA", "method": "jd"},
    "auto": {"A": "laplace3d:n=16", "k": 5, "which": "SA"},
    "both ends": {"A": "laplace2d:n=40", "k": 5, "which": "BE"},
    "interior": {"A": "graphene:nx=32,ny=32", "k": 6, "sigma": 0.3, "method": "filter"},
}
HOST_SOLVES: dict[str, dict[str, Any]] = {
    "shift-invert": {"A": "laplace2d:n=50", "k": 6, "sigma": 0.0},
    "smallest": {"A": "laplace2d:n=50", "k": 4, "which": "SM"},
}


def digest(*arrays: Any) -> str:
    """Return a hash of the bytes of arrays of any device."""
    total = hashlib.sha256()
    for array in arrays:
        host = array.get() if hasattr(array, "get") else np.asarray(array)
        total.update(str((host.shape, host.dtype)).encode() + np.ascontiguousarray(host).tobytes())
    return total.hexdigest()[:16]


def dense_results(device: str, dtypes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a name and a hash per product, sweep and elementwise operation."""
    for dtype in dtypes:
        for M, N in WIDTHS:
            for K in (40_000, 999):
                where = f"{dtype} {K} {M}x{N}"
                wide = BlockVector.random(K, M + N + 3, dtype, rng=1, device=device)
                tall = [
                    ("contiguous", wide[:, :M].copy(), wide[:, M : M + N].copy()),
                    ("view", wide[:, :M], wide[:, M + 1 : M + N + 1]),
                ]
                C = BlockVector.random(M, N, dtype, rng=2, device=device).array
                for kind, A, B in tall:
                    yield f"dot {kind} {where}", digest(A.dot(B), A.T @ B, A.dot(B, alpha=0.5))
                    yield f"gram {kind} {where}", digest(A.gram())
                    yield f"combine {kind} {where}", digest((A @ C).array, A.combine(C, alpha=2.0).array)
                    yield f"norms {kind} {where}", digest(A.norms(), A.column_dot(A))
                    update = B.copy().axpby(2.0, B, -0.5)
                    yield f"axpby {kind} {where}", digest(update.array)
                V, W = wide[:, :N].copy(), wide[:, N : N + M].copy()
                small = BlockVector.random(N, N, dtype, rng=3, device=device).array
                S = V.combine_dot(small, W)
                yield f"combine_dot {where}", digest(V.array, S)
                yield f"update_gram {where}", digest(V.update_gram(W, C), V.array)


def sparse_results(device: str, dtypes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a name and a hash per sparse product, plain and fused."""
    for name in MATRICES:
        for dtype in dtypes:
            A = model(name).astype(dtype)
            op = as_operator(A, device=device)
            for width in (1, 2, 3, 4, 8, 16, 32):
                X = BlockVector.random(A.shape[0], width, dtype, rng=4, device=device)
                Y = BlockVector.random(A.shape[0], width, dtype, rng=5, device=device)
                repeated = [digest(op.apply(X).array) for _ in range(25)]  # formats change on the way
                yield f"spmmv {name} {dtype} {width}", ",".join(dict.fromkeys(repeated))
                op.apply(X, out=Y, alpha=0.5, beta=-1.0, shift=0.25)
                yield f"spmmv updated {name} {dtype} {width}", digest(Y.array)


def solve_results(device: str, dtypes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a name and a hash per seeded solve."""
    tasks = SOLVES if device == "gpu" else SOLVES | HOST_SOLVES
    for name, task in tasks.items():
        for dtype in sorted({"float64", "complex128"} & set(dtypes), reverse=True):
            keywords = {key: value for key, value in task.items() if key != "A"}
            A = model(task["A"]).astype(dtype)
            w, X = eigsh(A, rng=0, device=device, **keywords)
            yield f"eigsh {name} {dtype}", digest(w, X)


def results(device: str, dtypes: Sequence[str]) -> dict[str, str]:
    """Return all hashes by name."""
    found: dict[str, str] = {}
    for part in (dense_results, sparse_results, solve_results):
        found |= dict(part(device, dtypes))
    return found


def main() -> int:
    """Store or compare hashes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("store", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--dtype", nargs="+", default=DTYPES, choices=DTYPES)
    arguments = parser.parse_args()
    found = results(arguments.device, arguments.dtype)
    print(f"{len(found)} results of {Path(blockvec.__file__).parent} on {arguments.device}")
    if arguments.action == "store":
        arguments.file.write_text(json.dumps(found, indent=0))
        return 0
    before = json.loads(arguments.file.read_text())
    changed = [name for name in before if before[name] != found.get(name)]
    for name in changed:
        print(f"differs: {name}: {before[name]} before, {found.get(name)} now")
    print(f"{len(before) - len(changed)} of {len(before)} results are the same to the bit")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
