"""`svds`, principal components and `cg` on a GPU, beside CuPy's and RAFT's.

    python -m tests.benchmarks.doors_on_gpu --json docs/results/h200/doors.json

Sparse matrices are drawn on the GPU, in CSR as CuPy has it. Times are the least of three calls, after one
that compiles, vectors returned. CuPy's cg takes four right-hand sides one after the other; its time for all
is their mean times the number of columns.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

import blockvec
from tests.benchmarks.harness import recorded, script_parser, timed

TURNS = 3
LONG_S = 8  # after which no turn begins
MATRICES = (
    (100_000, 20_000, 2_000_000, "float64", 10),
    (200_000, 2_000, 20_000_000, "float32", 50),
    (200_000, 2_000, 20_000_000, "float64", 50),
    (1_000_000, 2_000, 100_000_000, "float32", 50),
)
CELLS = 467_000, 5_000, 467_000 * 250, "float32", 50  # 5 per cent of the entries
GRID, SYSTEMS, RTOL = 160, (16, 32), 1e-8


def drawn(m: int, n: int, nnz: int, dtype: str) -> Any:
    """Draw a matrix with equally many entries per row, of which columns repeat seldom."""
    import cupy as cp
    import cupyx.scipy.sparse as csp

    rng, per_row = cp.random.default_rng(0), nnz // m
    indptr = cp.arange(0, m * per_row + 1, per_row, dtype=cp.int32)
    indices = cp.sort(rng.integers(0, n, (m, per_row), dtype=cp.int32), axis=1).ravel()
    data = rng.standard_normal(m * per_row, dtype=cp.float32).astype(dtype)
    return csp.csr_matrix((data, indices, indptr), shape=(m, n))


def triplets(A: Any, mean: Any, call: Callable[[], Any], exact: Any = None) -> dict[str, Any]:
    """Time a solver, and measure the residuals of its triplets, and errors of its values, relative to s_1."""
    import cupy as cp

    run = timed(call, TURNS, "gpu", warm=1, enough_s=LONG_S)
    u, s, vh = (cp.asarray(part) for part in run.result)
    V = cp.ascontiguousarray(vh.T)
    right = A @ V - (0 if mean is None else mean @ V) - u * s
    left = A.T @ cp.ascontiguousarray(u) - (0 if mean is None else mean[:, None] * u.sum(axis=0)) - V * s
    residual = max(float(cp.linalg.norm(part, axis=0).max()) for part in (left, right)) / float(s.max())
    s = np.sort(s.get().astype(np.float64))
    error = {} if exact is None else {"value_error": float(np.abs(s - exact).max() / exact.max())}
    return {"time_s": run.time_s, "residual": residual, **error, "s": s}


def singular(m: int, n: int, nnz: int, dtype: str, k: int, center: bool) -> dict[str, Any]:
    """Measure svds of one matrix."""
    import cupy as cp
    from cupyx.scipy.sparse.linalg import svds as cupy_svds

    A = drawn(m, n, nnz, dtype)
    mean = cp.asarray(A.sum(axis=0)).ravel() / m if center else None
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    ours = triplets(A, mean, lambda: blockvec.svds(A, k, center=center, rng=0))
    memory, exact = pool.total_bytes() - before, ours.pop("s")
    draft = triplets(A, mean, lambda: blockvec.svds(A, k, center=center, solver="randomized", rng=0), exact)
    peers: dict[str, Callable[[], Any]] = {} if center else {"cupy": lambda: cupy_svds(A, k)}
    if importlib.util.find_spec("pylibraft") and not center:
        from pylibraft.sparse.linalg import svds as raft_svds

        peers |= {
            f"raft {each}": lambda each=each: raft_svds(A, k, seed=0, solver=each)  # type: ignore[misc]
            for each in ("randomized", "lanczos")
        }
    found = {}
    for name, call in peers.items():
        try:
            found[name] = triplets(A, None, call, exact)
            del found[name]["s"]
        except Exception as failure:  # of a peer
            found[name] = {"error": repr(failure)[:200]}
    del draft["s"]
    about = {"operation": "svds", "center": center, "m": m, "n": n, "nnz": nnz, "dtype": dtype, "k": k}
    return about | ours | {"added_gb": memory / 1e9, "randomized": draft, "peers": found}


def systems(b: int) -> dict[str, Any]:
    """Measure cg with b right-hand sides."""
    import cupy as cp
    from cupyx.scipy.sparse import csr_matrix
    from cupyx.scipy.sparse.linalg import cg as cupy_cg

    A = csr_matrix(blockvec.models.model(f"laplace3d:n={GRID}"))
    B = cp.asarray(np.random.default_rng(0).standard_normal((A.shape[0], b)))
    ours, peers = (
        timed(call, TURNS, "gpu", warm=1, enough_s=LONG_S)
        for call in (
            lambda: blockvec.cg(A, B, rtol=RTOL, return_info=True),
            lambda: cp.stack([cupy_cg(A, B[:, j], rtol=RTOL)[0] for j in range(4)], axis=1),
        )
    )
    solved, X = ours.result, peers.result
    sizes = cp.linalg.norm(B, axis=0)
    errors = [float((cp.linalg.norm(A @ Y - C, axis=0) / s).max())
              for Y, C, s in ((solved.X, B, sizes), (X, B[:, :4], sizes[:4]))]  # fmt: skip
    peer = {"time_s": peers.time_s / 4 * b, "residual": errors[1]}
    about = {"operation": "cg", "matrix": f"laplace3d:n={GRID}", "columns": b}
    steps = int(solved.iterations.max())
    found = {"time_s": ours.time_s, "residual": errors[0], "iterations": steps}
    return about | found | {"peers": {"cupy": peer}}


def main() -> None:
    arguments = script_parser(__doc__).parse_args()
    cases = [lambda b=b: systems(b) for b in SYSTEMS]  # type: ignore[misc]
    cases += [lambda each=each: singular(*each, center=False) for each in MATRICES]  # type: ignore[misc]
    cases.append(lambda: singular(*CELLS, center=True))
    recorded((case() for case in cases), arguments.json, "gpu")


if __name__ == "__main__":
    main()
