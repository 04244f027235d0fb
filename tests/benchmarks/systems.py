"""Linear systems with 16 right-hand sides and with one: `blockvec.cg` beside a loop over SciPy's cg.

    OMP_NUM_THREADS=1 BLOCKVEC_THREADS=1 python -m tests.benchmarks.systems --json FILE

Both solve to true residuals of 1e-8 ||b||, plain, with the Jacobi preconditioner, and with a V-cycle of
algebraic multigrid: SciPy with PyAMG's, for one vector, blockvec with `MultigridPreconditioner`, for blocks.
They take turns; the times are the least of all turns, of the processor and of the wall clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import cg as scipy_cg
from scipy.spatial import cKDTree

import blockvec
from blockvec import models
from solvers import MultigridPreconditioner
from tests.benchmarks.harness import in_turns, recorded, script_parser
from tests.benchmarks.records import grouped

RTOL = 1e-8
SHIFT = 1e-3  # of the graph's Laplacian, with whose null vector PyAMG's cycles need not converge


def problems(scale: float = 1.0) -> Iterator[tuple[str, Any, Any]]:
    """Make the matrices, with vectors that they nearly map to zero; `scale` shrinks them for tests."""
    from pyamg.gallery import linear_elasticity

    size = [max(int(scale * n), 4) for n in (40, 200, 120, 50_000)]
    yield f"laplace3d:n={size[0]}", models.model(f"laplace3d:n={size[0]}"), None
    yield f"laplace2d:n={size[1]}", models.model(f"laplace2d:n={size[1]}"), None
    A, motions = linear_elasticity((size[2], size[2]), format="csr")
    yield f"elasticity, {size[2]} x {size[2]}", sp.csr_array(A), motions
    points = np.random.default_rng(0).random((size[3], 3))
    near = cKDTree(points).query(points, 9)[1][:, 1:]
    rows = np.repeat(np.arange(size[3]), 8)
    graph = sp.csr_array((np.ones(rows.size), (rows, near.ravel())), shape=(size[3], size[3]))
    L = sp.csgraph.laplacian(graph + graph.T) + SHIFT * sp.eye_array(size[3])
    yield f"graph Laplacian, n={size[3]}", sp.csr_array(L), None


def record(name: str, A: Any, near_null: Any, preconditioner: str, b: int, turns: int) -> dict[str, Any]:
    """Measure one matrix with one preconditioner."""
    B = np.random.default_rng(1).standard_normal((A.shape[0], b))
    M = theirs = None
    if preconditioner == "jacobi":
        inverse = 1 / A.diagonal()
        M = theirs = sp.diags_array(inverse, format="csr")
    elif preconditioner == "multigrid":
        M = MultigridPreconditioner(A, near_null=near_null)
        theirs = M.hierarchy.aspreconditioner(cycle="V")
    count = [0]

    def loop() -> Any:
        count[0] = 0
        note = lambda x: count.__setitem__(0, count[0] + 1)  # noqa: E731
        return np.stack([scipy_cg(A, x, rtol=RTOL, M=theirs, callback=note)[0] for x in B.T], axis=1)

    runs = in_turns({"": lambda: blockvec.cg(A, B, rtol=RTOL, M=M, return_info=True), "scipy_": loop}, turns)
    solved, X = (run.result for run in runs.values())
    lengths = np.linalg.norm(B, axis=0)
    errors = [float((np.linalg.norm(A @ Y - B, axis=0) / lengths).max()) for Y in (solved.X, X)]
    return {
        "operation": "cg",
        "matrix": name,
        "n": A.shape[0],
        "columns": b,
        "preconditioner": preconditioner,
        "threads": blockvec.options().threads,
        "iterations": int(solved.iterations.max()),
        "scipy_iterations": count[0] / b,
        "residual": errors[0],
        "scipy_residual": errors[1],
        **{f"{peer}{name}": s for peer, run in runs.items() for name, s in run.times().items()},
    }


def line(one: dict[str, Any]) -> str:
    """Return a row of the table."""
    ratios = one["scipy_cpu_s"] / one["cpu_s"], one["scipy_time_s"] / one["time_s"]
    return (
        f"{one['matrix']:28} {one['preconditioner']:10} {one['columns']:3} {one['iterations']:5} "
        f"{one['scipy_iterations']:7.1f} {ratios[0]:6.2f} {ratios[1]:6.2f}"
    )


def main() -> None:
    """Measure all, and write the results."""
    parser = script_parser(__doc__)
    parser.add_argument("--columns", default="16,1", help="numbers of right-hand sides")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    widths, kinds = map(int, arguments.columns.split(",")), ("none", "jacobi", "multigrid")
    rows = (record(*each, kind, b, arguments.turns) for b in widths for each in problems() for kind in kinds)
    for (b,), group in grouped(recorded(rows, arguments.json, line=line), "columns").items():
        logs = [math.log(one["scipy_cpu_s"] / one["cpu_s"]) for one in group]
        print(f"{b} columns: geometric mean of the ratios of processor times {math.exp(np.mean(logs)):.2f}")


if __name__ == "__main__":
    main()
