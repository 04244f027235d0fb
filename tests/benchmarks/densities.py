"""Time Chebyshev moments of densities of states beside NumPy loops over SciPy's products.

    python tests/benchmarks/densities.py --json docs/results/host-2core/densities.json
    python tests/benchmarks/densities.py --gpu --json docs/results/h200/densities.json

`time_s` is that of a whole call of `density_of_states`, with bounds, `column_s` that of a vector and two
moments; so are those of `peers`: loops over vectors, and over a block. Calls and loops take turns, and the
fastest count. `difference` compares the moments of both for the same vectors. `fraction` is that of the
roofline: the time of the steps' products with their dots at the limit, divided by `time_s`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import blockvec
from blockvec.backends import backend_for
from blockvec.kernels.roofline import gather_time, time_limit
from blockvec.operations.profile import ceilings
from solvers.functions.vectors import random_signs
from tests.benchmarks.records import environment, write

VECTORS, ROUNDS, PEER_MOMENTS, PEER_VECTORS = 16, 3, 16, 2
MATRICES = {
    "cpu": (("graphene:nx=512,ny=512", 256), ("laplace3d:n=64", 256), ("xxz:sites=18,up=9", 256)),
    "gpu": (("graphene:nx=2000,ny=2000", 1024),),
}


def loop(h: Any, X: Any, moments: int) -> Any:
    """Compute moments of vectors, or of a block, with the scaled matrix h."""
    previous, current = X, h @ X
    dots = [np.vecdot(previous.T, current.T), np.vecdot(current.T, current.T)]
    for _ in range(moments // 2 - 1):
        previous, current = current, 2 * (h @ current) - previous
        dots += [np.vecdot(previous.T, current.T), np.vecdot(current.T, current.T)]
    return np.array(dots) / X.shape[0]


def measured(name: str, moments: int, device: str) -> dict[str, Any]:
    """Measure one matrix."""
    A, best = blockvec.models.model(name), {}
    op = blockvec.as_operator(A, device=device)

    def timed(kind: str, call: Any) -> Any:
        begin = time.perf_counter()
        found = call()
        best[kind] = min(best.get(kind, float("inf")), time.perf_counter() - begin)
        return found

    first_s = time.perf_counter()
    rho = blockvec.density_of_states(op, moments, VECTORS, rng=0)
    first_s = time.perf_counter() - first_s
    centre, half_width = rho.bounds.centre, rho.bounds.half_width
    X = blockvec.BlockVector(random_signs(op, VECTORS, int(np.random.default_rng(0).integers(1 << 63))))
    h = ((A - centre * sp.eye_array(A.shape[0])) / half_width).tocsr()
    columns = [] if device == "gpu" else [X.array[:, j].copy() for j in range(PEER_VECTORS)]
    for _ in range(ROUNDS):
        timed("own", lambda: blockvec.density_of_states(op, moments, VECTORS, rng=0))
        if device == "cpu":
            timed("scipy", lambda: [loop(h, x, PEER_MOMENTS) for x in columns])
            rows = timed("scipy block", lambda: loop(h, X.array, PEER_MOMENTS))
    record: dict[str, Any] = {"operation": "density_of_states", "matrix": name, "n": A.shape[0], "nnz": A.nnz}
    record |= {"moments": moments, "vectors": VECTORS, "time_s": best["own"], "first_s": first_s}
    record["column_s"] = best["own"] / (moments // 2 * VECTORS)
    problem, _ = op.explain(X)
    fused = {"alpha": "general", "beta": "general", "shift": "scalar", "dots": ("xy", "yy")}
    problem, limits = dataclasses.replace(problem, **fused), ceilings(backend_for(device))
    record["fraction"] = moments // 2 * time_limit(problem, limits) / best["own"]
    if (gather_s := gather_time(problem, limits)) is not None:
        record["fraction_gather"] = moments // 2 * gather_s / best["own"]
    if device == "cpu":
        steps = PEER_MOMENTS // 2
        record["peers"] = {"scipy": best["scipy"] / steps / PEER_VECTORS}
        record["peers"] |= {"scipy block": best["scipy block"] / steps / VECTORS}
        record["speedup"] = record["peers"]["scipy"] / record["column_s"]
        own = rho.samples[2:PEER_MOMENTS:2]  # mu_2j = 2 <T_j x|T_j x> - mu_0
        record["difference"] = float(np.abs(2 * rows[1 : 2 * len(own) : 2] - 1 - own).max())
    return record


def main() -> None:
    """Print a record per matrix, and write the document of the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="measure on a GPU")
    parser.add_argument("--json", metavar="FILE", help="write the document of the run to this file")
    arguments = parser.parse_args()
    device = "gpu" if arguments.gpu else "cpu"
    records = []
    for name, moments in MATRICES[device]:
        records.append(measured(name, moments, device))
        print(json.dumps(records[-1]), flush=True)
    if arguments.json:
        backend = backend_for(device)
        write(arguments.json, environment(backend), ceilings(backend), records)


if __name__ == "__main__":
    main()
