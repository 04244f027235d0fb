"""The lowest modes of a box with algebraic multigrid as the preconditioner: pyamg, a V-cycle a column."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import models
from blockvec.solvers import EigenResult, eigsh


def multigrid(A: Any) -> Callable[[Any], Any]:
    """Return smoothed aggregation as a function of a block; symmetric and positive definite."""
    import pyamg

    cycle = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A)).aspreconditioner(cycle="V")
    return lambda X: np.stack([cycle.matvec(column) for column in np.ascontiguousarray(X.T)], axis=1)


def solve(points: int, preconditioned: bool) -> EigenResult:
    """Return the ten lowest modes of a cube."""
    A = models.model(f"laplace3d:n={points}")
    options: dict[str, Any] = {"preconditioner": multigrid(A)} if preconditioned else {}
    options |= {"tol": 1e-8, "convergence": "norm", "rng": 0, "return_info": True}
    return eigsh(A, 10, which="SA", method="jd", **options)


def main() -> None:
    """Print what both ways cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=int, default=40, help="of a side (default 40)")
    points = parser.parse_args().points
    for preconditioned in (False, True):
        result = solve(points, preconditioned)
        info = result.info
        cost = f"{info['operator_columns']} columns of A, {info['preconditioner_columns']} of multigrid"
        print(f"{'multigrid' if preconditioned else 'plain':10} {cost}, {info['time_s']:.2f} s")


if __name__ == "__main__":
    main()
