"""Time Chebyshev moments of densities of states beside NumPy loops over SciPy's products.

    python -m tests.benchmarks.densities --json docs/results/host-2core/densities.json
    python -m tests.benchmarks.densities --gpu --json docs/results/h200/densities.json

`time_s` is that of a whole call of `density_of_states`, with bounds, `column_s` that of a vector and two
moments; so are those of `peers`: loops over vectors, and over a block. Calls and loops take turns, and the
fastest count. `difference` compares the moments of both for the same vectors. `fraction` is that of the
roofline: the time of the steps' products with their dots at the limit, divided by `time_s`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp

import blockvec
from blockvec.backends import backend_for
from blockvec.kernels.roofline import gather_time, time_limit
from blockvec.operations.profile import ceilings
from solvers.functions.operands import random_signs
from tests.benchmarks.harness import in_turns, recorded, script_parser, timed

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
    A = blockvec.models.model(name)
    op = blockvec.as_operator(A, device=device)

    own: Any = lambda: blockvec.density_of_states(op, moments, VECTORS, rng=0)  # noqa: E731
    first = timed(own, device=device)
    rho = first.result
    centre, half_width = rho.bounds.centre, rho.bounds.half_width
    X = blockvec.BlockVector(random_signs(op, VECTORS, int(np.random.default_rng(0).integers(1 << 63))))
    h = ((A - centre * sp.eye_array(A.shape[0])) / half_width).tocsr()
    columns = [] if device == "gpu" else [X.array[:, j].copy() for j in range(PEER_VECTORS)]
    calls = {"own": own}
    if device == "cpu":
        calls["scipy"] = lambda: [loop(h, x, PEER_MOMENTS) for x in columns]
        calls["scipy block"] = lambda: loop(h, X.array, PEER_MOMENTS)
    runs = in_turns(calls, ROUNDS, device)
    best = {kind: run.time_s for kind, run in runs.items()}
    record: dict[str, Any] = {"operation": "density_of_states", "matrix": name, "n": A.shape[0], "nnz": A.nnz}
    record |= {"moments": moments, "vectors": VECTORS, "time_s": best["own"], "first_s": first.time_s}
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
        same = rho.samples[2:PEER_MOMENTS:2]  # mu_2j = 2 <T_j x|T_j x> - mu_0
        rows = runs["scipy block"].result[1 : 2 * len(same) : 2]
        record["difference"] = float(np.abs(2 * rows - 1 - same).max())
    return record


def main() -> None:
    """Print a record per matrix, and write the document of the run."""
    parser = script_parser(__doc__)
    parser.add_argument("--gpu", action="store_true", help="measure on a GPU")
    arguments = parser.parse_args()
    device = "gpu" if arguments.gpu else "cpu"
    recorded((measured(*each, device) for each in MATRICES[device]), arguments.json, device)


if __name__ == "__main__":
    main()
