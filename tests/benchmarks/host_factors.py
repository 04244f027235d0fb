"""Factorisations on the host: PARDISO (extra mkl) beside SuperLU, and `eigsh` by each, beside SciPy's.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.host_factors --matrices FOLDER --json FILE [--only NAME]
                      [--libraries pardiso,superlu,scipy]

The ten eigenvalues nearest to zero: of a cube, of an elastic block of tetrahedra with its mass matrix
(scikit-fem), and of a stiffness matrix. `factor_s` is the time of one factorisation with its analysis,
`solve_s` that of a solve with eight columns, and `time_s` that of `eigsh`; `cpu_s` are seconds of the
processor. `predicted_s` is what `solvers.factorization.work` expects of the factorisation. Runs of other
libraries in the file are kept, so that each may have a run of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec import factorize, models
from blockvec.backends import backend_for
from blockvec.backends.host import pardiso
from blockvec.io import read_matrix
from blockvec.operations.profile import ceilings
from blockvec.system.config import options
from solvers import eigsh
from solvers.factorization.work import FactorWork
from tests.benchmarks import records as results
from tests.benchmarks.shift_invert import elastic_block, residual

WANTED = 10
BEAM = 22  # elements along the short sides: 104,742 unknowns


def cases(folder: Path | None, beam: int) -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """List names and functions that form A and M."""
    yield "laplace3d:n=40", lambda: (models.model("laplace3d:n=40"), None)
    if folder is not None:
        yield "bcsstk16", lambda: (sp.csr_array(read_matrix(folder / "bcsstk16.mtx")), None)
    yield f"elastic block, {beam}", lambda: elastic_block(beam)


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Call, and measure the seconds of the wall clock and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - wall, time.process_time() - processor


def record(name: str, A: Any, M: Any, library: str) -> dict[str, Any]:
    """Factorise and solve by a library; SciPy solves only."""
    entry: dict[str, Any] = {
        "operation": "eigsh",
        "table": "host_factors",
        "matrix": name,
        "library": library,
        "n": int(A.shape[0]),
        "nnz": int(A.nnz),
        "k": WANTED,
        "sigma": 0.0,
        "threads": options().threads,
    }
    if library == "scipy":
        (w, X), entry["time_s"], entry["cpu_s"] = timed(lambda: scipy_eigsh(A, WANTED, M=M, sigma=0.0))
    else:
        mkl = pardiso.library() if library == "pardiso" else None
        with mock.patch.object(pardiso, "library", return_value=mkl):
            entry["predicted_s"] = FactorWork.of(A, M).factor_s("cpu")
            F, entry["factor_s"], entry["factor_cpu_s"] = timed(lambda: factorize(A, M))
            entry["entries"], entry["bytes"] = F.entries, F.nbytes
            B = np.asfortranarray(np.random.default_rng(0).standard_normal((A.shape[0], 8)))
            entry["solve_s"] = min(timed(lambda: F.solve_columns(B))[1] for _ in range(3))
            del F
            result, entry["time_s"], entry["cpu_s"] = timed(
                lambda: eigsh(A, WANTED, M=M, sigma=0.0, rng=0, return_info=True)
            )
        w, X = result.eigenvalues, result.eigenvectors
        entry |= {key: result.info[key] for key in ("block_size", "operator_columns", "restarts", "stopped")}
    entry["residual"] = residual(A, M, w, X)
    entry["values"] = [float(value) for value in w]
    return entry


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--matrices", type=Path, default=os.environ.get("BLOCKVEC_TEST_MATRICES"))
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", default="", help="part of the names of the matrices")
    parser.add_argument("--libraries", default="pardiso,superlu", help="also scipy")
    parser.add_argument("--beam", type=int, default=BEAM)
    arguments = parser.parse_args()
    backend = backend_for("cpu")
    environment, walls = results.environment(backend), ceilings(backend)
    table = json.loads(arguments.json.read_text())["records"] if arguments.json.exists() else []
    for name, form in cases(arguments.matrices, arguments.beam):
        if arguments.only not in name:
            continue
        A, M = form()
        for library in arguments.libraries.split(","):
            entry = record(name, A, M, library)
            print({key: value for key, value in entry.items() if key != "values"}, flush=True)
            same = name, library
            table = [*(old for old in table if (old["matrix"], old["library"]) != same), entry]
            results.write(arguments.json, environment, walls, table)


if __name__ == "__main__":
    main()
