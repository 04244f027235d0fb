"""Time a step of block Lanczos on a GPU, of problems that take hardly longer than the calls from Python.

    python tests/benchmarks/lanczos_step.py
    python tests/benchmarks/lanczos_step.py --calls     # without recorded steps

A run of a fixed number of restarts is divided by its number of steps; restarts and checks are part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import blockvec
from blockvec.backends import backend_for
from solvers import eigsh
from solvers.iterations import krylov

PROBLEMS: tuple[tuple[str, str, int, int, int], ...] = (
    # matrix, element type, block size, eigenpairs, restarts
    *(("laplace2d:n=100", "float64", b, 6, 20) for b in (1, 2, 4, 8)),
    ("laplace2d:n=100", "complex128", 4, 6, 20),
    ("laplace3d:n=40", "float64", 8, 10, 20),
    ("laplace3d:n=100", "float64", 4, 6, 5),
)
REPEATS = 5


def measure(matrix: str, dtype: str, b: int, k: int, restarts: int) -> dict[str, Any]:
    """Return the fastest time of a run, in all and per step."""
    A = blockvec.as_operator(blockvec.models.model(matrix).astype(dtype), device="gpu")
    wait = backend_for("gpu").synchronize
    times = []
    for _ in range(2 + REPEATS):
        wait()
        begin = time.perf_counter()
        result: Any = eigsh(
            *(A, k),
            **{"method": "lanczos", "which": "SA", "block_size": b, "maxiter": restarts, "tol": 1e-12},
            **{"rng": 0, "on_unconverged": "return", "return_info": True},
        )
        wait()
        times.append(time.perf_counter() - begin)
    steps = result.info["block_applications"]
    sizes = {"matrix": matrix, "dtype": dtype, "block_size": b, "k": k, "restarts": restarts, "steps": steps}
    return {"operation": "lanczos_step", **sizes, "time_s": min(times), "step_s": min(times) / steps}


def main() -> None:
    """Print a record per problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true", help="call the operations of every step")
    if parser.parse_args().calls:
        krylov.recorder_for = lambda *_: None
    for problem in PROBLEMS:
        print(json.dumps(measure(*problem)), flush=True)


if __name__ == "__main__":
    main()
