"""exp(t A) B beside SciPy's `expm_multiply` on the host; states of a long chain on a GPU beside its limits.

    python -m tests.benchmarks.functions --json docs/results/<device>/functions.json [--gpu] [--only chain]

On the host both functions alternate, and the least time of each counts. Errors are relative to exp(t A) B by
Taylor polynomials in three parts. On a GPU a record has the second of two calls, as fractions of what memory
and L2 allow for its products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import expm_multiply as scipy_expm_multiply

from blockvec import BlockVector, as_operator, expm_multiply, models
from blockvec.backends import backend_for
from blockvec.kernels.roofline import gather_time, memory_time, traffic
from blockvec.operations.profile import ceilings
from tests.benchmarks.harness import in_turns, recorded, script_parser, timed

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
    runs = in_turns(calls, TURNS)
    times = {peer: run.time_s for peer, run in runs.items()}
    errors = {
        peer: float(np.linalg.norm(run.result - exact) / np.linalg.norm(exact)) for peer, run in runs.items()
    }
    info = expm_multiply(A, B, return_info=True)[1]
    kept = {key: info[key] for key in KEPT}
    found = {"operation": "expm_multiply", "matrix": name, "n": A.shape[0], "nnz": A.nnz, "width": b}
    return found | kept | {"time_s": times, "error": errors, "ratio": times["scipy"] / times["blockvec"]}


def evolved(spec: str, b: int, walls: Any) -> dict[str, Any]:
    """Time exp(-i t H) times b complex states of a chain on a GPU, and compute its limits."""
    H = models.operator(spec, device="gpu")
    psi = BlockVector.random(H.shape[0], b, "complex128", device="gpu", rng=0)
    run = timed(lambda: expm_multiply(-1j * TIME * H, psi, return_info=True), device="gpu", warm=1)
    (found, info), elapsed_s = run.result, run.time_s
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


def line(one: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "ratio" not in one:
        return str(one)
    pairs = zip(one["time_s"].values(), one["error"].values(), strict=True)
    return " ".join(
        [one["matrix"], str(one["width"]), *(f"{s:.3f} s {e:.1e}" for s, e in pairs), f"{one['ratio']:.2f}"]
    )


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    if arguments.gpu:
        walls = ceilings(backend_for("gpu"))
        recorded(iter([evolved(CHAIN, 8, walls)]), arguments.json, "gpu")
        return
    rows = (compared(name, A, b) for name, A in cases() if arguments.only in name for b in (1, 8))
    found = recorded(rows, arguments.json, line=line)
    print("geometric mean", np.exp(np.mean(np.log([one["ratio"] for one in found]))))


if __name__ == "__main__":
    main()
