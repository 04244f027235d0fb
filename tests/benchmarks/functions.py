"""exp(t A) B beside SciPy's `expm_multiply` on the host; states of a long chain on a GPU beside its limits.

    python -m tests.benchmarks.functions --json docs/results/<device>/functions.json [--gpu] [--only chain]

On the host both functions alternate, and the least time of each counts. Errors are relative to exp(t A) B by
Taylor polynomials in three parts. On a GPU a record has the second of two calls, as fractions of what memory
and L2 allow for its products.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import expm_multiply as scipy_expm_multiply

from blockvec import BlockVector, as_operator, expm_multiply, models
from blockvec.backends import backend_for
from blockvec.kernels.roofline import gather_time, memory_time, traffic
from blockvec.operations.profile import ceilings
from tests.benchmarks import records as results

TURNS, TIME = 5, 10.0
KEPT = ("method", "degree", "products", "columns", "error_bound")
CHAIN = "xxz:sites=24,up=12"


def cases() -> Iterator[tuple[str, Any]]:
    """Matrices A, times t."""
    for sites in (14, 16, 18):
        yield f"chain of {sites}", -1j * TIME * models.model(f"xxz:sites={sites},up={sites // 2}")
    yield "graphene", -1j * TIME * models.model("graphene:nx=256,ny=256")
    rng, n = np.random.default_rng(0), 20_000
    real, imaginary = (sp.random_array((n, n), density=5 / n, rng=rng, format="csr") for _ in range(2))
    upper = sp.csr_array(real + 1j * imaginary)
    yield "random Hermitian", sp.csr_array(-1j * TIME / 4 * (upper + upper.conj().T))
    wind = [np.full(n - abs(k), value) for k, value in ((0, -4.0), (-1, 3.0), (1, 1.0), (141, 1.0))]
    yield "non-normal", sp.csr_array(TIME / 4 * sp.diags_array(wind, offsets=[0, -1, 1, 141], format="csr"))


def compared(name: str, A: Any, b: int) -> dict[str, Any]:
    """Time both functions for a block of b columns."""
    rng = np.random.default_rng(1)
    B = rng.standard_normal((A.shape[0], b))
    if A.dtype.kind == "c":
        B = B + 1j * rng.standard_normal(B.shape)
    B = B[:, 0].copy() if b == 1 else B
    calls: dict[str, Callable[[], Any]] = {
        "blockvec": lambda: expm_multiply(A, B),
        "scipy": lambda: scipy_expm_multiply(A, B),
    }
    exact = B
    for _ in range(3):
        exact = scipy_expm_multiply(A / 3, exact)
    times, errors = dict.fromkeys(calls, np.inf), {}
    for _ in range(TURNS):
        for peer, call in calls.items():
            begin = time.perf_counter()
            found = call()
            times[peer] = min(times[peer], time.perf_counter() - begin)
            errors[peer] = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    info = expm_multiply(A, B, return_info=True)[1]
    kept = {key: info[key] for key in KEPT}
    found = {"operation": "expm_multiply", "matrix": name, "n": A.shape[0], "nnz": A.nnz, "width": b}
    return found | kept | {"time_s": times, "error": errors, "ratio": times["scipy"] / times["blockvec"]}


def evolved(spec: str, b: int, walls: Any) -> dict[str, Any]:
    """Time exp(-i t H) times b complex states of a chain on a GPU, and compute its limits."""
    H, backend = models.operator(spec, device="gpu"), backend_for("gpu")
    psi = BlockVector.random(H.shape[0], b, "complex128", device="gpu", rng=0)
    for _ in range(2):
        backend.synchronize()
        begin = time.perf_counter()
        found, info = expm_multiply(-1j * TIME * H, psi, return_info=True)
        backend.synchronize()
        elapsed_s = time.perf_counter() - begin
    problem: Any = as_operator(H).explain(BlockVector.empty(H.shape[0], 2 * b, device="gpu"))
    step = replace(problem[0], beta="general", chain="one", ldz=2 * b, align_z=16)
    memory_s, gather_s = memory_time(traffic(step), walls), gather_time(step, walls) or 0.0
    share = info["products"] / elapsed_s
    return {
        **{"operation": "expm_multiply", "matrix": spec, "n": H.shape[0], "width": b, "time": TIME},
        **{key: info[key] for key in KEPT},
        **{"time_s": elapsed_s, "norm_error": float(abs(BlockVector(found).norms() / psi.norms() - 1).max())},
        **{"memory_fraction": share * memory_s, "gather_fraction": share * gather_s},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    backend, records = backend_for("gpu" if arguments.gpu else "cpu"), []
    environment, walls = results.environment(backend), ceilings(backend)
    if arguments.gpu:
        records = [evolved(CHAIN, 8, walls)]
        print(records[0])
    for name, A in () if arguments.gpu else cases():
        for b in (1, 8) if arguments.only in name else ():
            records.append(one := compared(name, A, b))
            times, errors = one["time_s"].values(), one["error"].values()
            print(name, b, *(f"{x:.3f} s {e:.1e}" for x, e in zip(times, errors, strict=True)), one["ratio"])
    if not arguments.gpu:
        print("geometric mean", np.exp(np.mean(np.log([one["ratio"] for one in records]))))
    if arguments.json:
        results.write(arguments.json, environment, walls, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
