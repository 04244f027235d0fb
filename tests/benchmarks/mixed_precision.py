"""Compare filters in single precision with ones in double precision: time of a column, and of whole solves.

    python tests/benchmarks/mixed_precision.py                           # on the host
    python tests/benchmarks/mixed_precision.py --device gpu laplace3d:n=160 graphene:nx=2000,ny=2000

Prints a record per matrix as a line of JSON. Solves in both precisions alternate, and the fastest ones count;
values that differ by more than the limits of residuals count as missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import blockvec
from blockvec import BlockVector
from blockvec.backends import backend_for
from solvers import EigenResult, eigsh

MATRICES = ("laplace3d:n=64", "graphene:nx=512,ny=512")
WIDTH = 8  # columns of a block
WARM, STEPS = 60, 100  # products before the measurement, while a GPU converts the matrix, and in it


def clock(device: str) -> float:
    """Return seconds: CPU time on the host, which other processes share, and elapsed time on a GPU."""
    backend = backend_for(device)
    if backend.name == "cpu":
        return time.process_time()
    backend.synchronize()
    return time.perf_counter()


def column_s(operator: Any, device: str) -> float:
    """Time a step of the recurrence per column."""
    S = operator.affine(0.1, 0.3)
    X = BlockVector.random(S.shape[0], WIDTH, operator.dtype, rng=0, device=device)
    Y = X.copy()
    for _ in range(WARM):
        X, Y = S.apply(X, out=Y, beta=-1), X
    begin = clock(device)
    for _ in range(STEPS):
        X, Y = S.apply(X, out=Y, beta=-1), X
    return (clock(device) - begin) / (STEPS * WIDTH)


def measure(name: str, k: int, tol: float, device: str, repeats: int) -> dict[str, Any]:
    """Measure one matrix."""
    A = blockvec.as_operator(blockvec.models.model(name), device=device)
    single = {"float64": "float32", "complex128": "complex64"}[A.dtype.name]
    record: dict[str, Any] = {
        "operation": "mixed_precision",
        "matrix": name,
        "n": A.shape[0],
        "k": k,
        "tol": tol,
    }
    for precision, operator in (("double", A), ("mixed", A.converted(single))):
        record[precision] = {"column_s": column_s(operator, device), "time_s": np.inf}
    values = []
    for _ in range(repeats):
        for precision in ("double", "mixed"):
            begin = clock(device)
            result: Any = eigsh(
                *(A, k),
                **{"which": "SA", "tol": tol, "convergence": "norm", "rng": 0, "method": "filter"},
                **{"precision": precision, "return_info": True},
            )
            part = record[precision]
            part["time_s"] = min(part["time_s"], clock(device) - begin)
            part |= facts(result)
            values.append(A.backend.to_host(result.eigenvalues))
    record["missed"] = int((abs(values[0] - values[1]) > 2 * result.limits).sum())
    return record


def facts(result: EigenResult) -> dict[str, Any]:
    """Return what a solve took and reached."""
    told = ("operator_columns", "single_columns", "degree", "restarts", "reductions")
    residual = float(result.residuals.max() / result.info["norm"])
    return {**{name: result.info[name] for name in told}, "residual": residual}  # type: ignore[literal-required]


def main() -> None:
    """Print a record per matrix."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrices", nargs="*", default=MATRICES)
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--tol", type=float, default=5e-9)
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.matrices:
        record = measure(name, arguments.k, arguments.tol, arguments.device, arguments.repeats)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
