"""Eigenvalues by factorisations on a GPU, of matrices at which iterations are slow, beside other solvers.

    python -m tests.benchmarks.shift_invert --json FILE [--elements 900] [--grid 100] [--beams 22:scipy:24]

A rough finite-element matrix (bilinear quadrilaterals with a lognormal coefficient), the middle of the
spectrum of a three-dimensional Laplacian with a proof that no nearer value is missing, and the lowest modes
of elastic blocks of tetrahedra (scikit-fem, with their mass matrices), which SciPy's eigsh and ours on the
host solve too, each in a process that is stopped after some times our time on the device. Times are of the
second call; `first_s` is that of the first one, with the loading of libraries and kernels. `residual` is the
largest ||A x - lambda M x|| / (||A|| ||x||).
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec import BlockVector, Factorization, factorize, models
from blockvec.backends import backend_for
from blockvec.operations.profile import ceilings
from solvers import eigsh
from tests.benchmarks import records as results
from tests.benchmarks.drawn_problems import quadrilaterals
from tests.benchmarks.harness import script_parser, timed

SECOND_SHIFT = 1e-3  # of the lowest value: the distance of a second shift


def elastic_block(n: int) -> tuple[Any, Any]:
    """Assemble stiffness and mass of linear tetrahedra in a 3 n x n x n block, clamped at one end."""
    from skfem import Basis, ElementTetP1, ElementVector, MeshTet, condense
    from skfem.models.elasticity import lame_parameters, linear_elasticity
    from skfem.models.poisson import mass

    mesh = MeshTet.init_tensor(
        np.linspace(0, 3, 3 * n + 1), np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1)
    )
    basis = Basis(mesh, ElementVector(ElementTetP1()), intorder=0)  # gradients are constant
    K = linear_elasticity(*lame_parameters(1.0, 0.3)).assemble(basis)
    M = sp.kron(mass.assemble(Basis(mesh, ElementTetP1())), sp.eye_array(3))  # of each component
    K, M, *_ = condense(K, sp.csr_matrix(M), D=basis.get_dofs(lambda x: x[0] == 0))
    return sp.csr_array(K), sp.csr_array(M)


def residual(A: Any, M: Any, w: Any, X: Any) -> float:
    """Compute the largest relative residual on the host."""
    w, X = (part.get() if hasattr(part, "get") else part for part in (w, X))
    R = A @ X - (X if M is None else M @ X) * w
    return float((np.linalg.norm(R, axis=0) / (abs(A).sum(axis=0).max() * np.linalg.norm(X, axis=0))).max())


def record(name: str, A: Any, M: Any, device: str, **options: Any) -> results.Record:
    """Solve, the matrices given by the host, and describe the solves."""
    solve = lambda: eigsh(A, M=M, device=device, rng=0, return_info=True, **options)  # noqa: E731
    run = timed(solve, device=device, warm=1)
    solved, info = run.result, run.result.info
    return {
        "operation": "eigsh",
        "matrix": name,
        "n": int(A.shape[0]),
        "nnz": int(A.nnz),
        "k": options["k"],
        "which": options.get("which", "LM"),
        "sigma": options.get("sigma"),
        "method": info["method"],
        "why": info["why"],
        "verification": info["verification"],
        "time_s": run.time_s,
        "first_s": run.first_s,
        "operator_columns": info["operator_columns"],
        "restarts": info["restarts"],
        "residual": residual(A, M, solved.eigenvalues, solved.eigenvectors),
        "missed": info["missing"],
        "values": [float(value) for value in solved.eigenvalues],
    }


def factor_record(name: str, A: Any, sigma: float, device: str) -> results.Record:
    """Time an analysis with a factorisation, one for a second shift, and solves."""
    first = timed(lambda: factorize(A, sigma=sigma, device=device), device=device)
    F = first.result
    second_s = timed(lambda: F.refactorize(sigma * (1 + SECOND_SHIFT)), device=device).time_s
    times = {}
    for columns in (1, 8, 32):
        B = BlockVector.random(A.shape[0], columns, device=device, rng=0)
        solved = timed(lambda block=B: F.solve(block).norms().sum().item(), device=device, warm=1)
        times[f"solve_{columns}_s"] = solved.time_s
        assert np.isfinite(solved.result)
    return {
        "operation": "factorize",
        "matrix": name,
        "n": int(A.shape[0]),
        "sigma": sigma,
        "time_s": first.time_s,
        "second_s": second_s,
        "entries": F.entries,
        "bytes": F.nbytes,
        "inertia": F.inertia,
        **times,
    }


def peer(name: str, K: Any, M: Any, k: int, limit_s: float) -> results.Record:
    """Solve on the host, in a process of its own that is stopped after `limit_s` seconds."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_solve, args=(sender, name, K, M, k))
    process.start()
    library = receiver.recv()  # the imports have ended
    answer: results.Record = {"library": library, "limit_s": limit_s}
    if receiver.poll(limit_s):
        w, X, seconds = receiver.recv()
        answer = {"library": library, "time_s": seconds, "residual": residual(K, M, w, X)}
    process.kill()
    process.join()
    return answer


def _solve(sender: Any, name: str, K: Any, M: Any, k: int) -> None:
    K, M = sp.csc_array(K), sp.csc_array(M)
    sender.send("SuperLU" if name == "scipy" else Factorization.library("cpu"))
    if name == "scipy":
        run = timed(lambda: scipy_eigsh(K, k, M, sigma=0.0))
    else:
        run = timed(lambda: eigsh(K, k, M=M, sigma=0.0, rng=0))
    sender.send((*run.result, run.time_s))


def main() -> None:
    """Run the table."""
    parser = script_parser(__doc__, "gpu", "cpu")
    parser.add_argument("--elements", type=int, default=900)
    parser.add_argument("--grid", type=int, default=100)
    parser.add_argument(
        "--beams",
        default="22:scipy:24,38:host:5",
        help="elements along the short sides of elastic blocks; a peer, and its limit in our times",
    )
    arguments = parser.parse_args()
    device, table = arguments.device, []
    backend = backend_for(device)
    environment, walls = results.environment(backend), ceilings(backend)
    beams = {int(beam[0]): beam[1:] for beam in (b.split(":") for b in arguments.beams.split(",") if b)}

    def add(entry: results.Record) -> None:
        table.append(entry)
        print({key: value for key, value in entry.items() if key != "values"}, flush=True)
        if arguments.json:
            results.write(arguments.json, environment, walls, table)

    with ProcessPoolExecutor(max(len(beams), 1), multiprocessing.get_context("spawn")) as pool:
        blocks = {beam: pool.submit(elastic_block, beam) for beam in beams}
        if arguments.elements:
            A = quadrilaterals(np.random.default_rng(0), arguments.elements - 1, contrast=2.0)
            name = f"rough elements {arguments.elements} x {arguments.elements}"
            for k in (8, 50):
                add(record(name, A, None, device, k=k, which="SA"))
            add(factor_record(name, A, -table[0]["values"][0], device))
        if arguments.grid:
            A = models.model(f"laplace3d:n={arguments.grid}")
            name = f"laplace3d n={arguments.grid}"
            add(record(name, A, None, device, k=20, sigma=6.0003, verify="always"))
            add(factor_record(name, A, 6.0003, device))
        solved = {beam: block.result() for beam, block in blocks.items()}
    for beam, (K, M) in solved.items():
        add(record(f"elastic block, {beam}", K, M, device, k=20, sigma=0.0))
    for entry, beam in zip(table[len(table) - len(beams) :], beams, strict=True):
        if beams[beam]:
            name, limit = beams[beam]
            entry["peers"] = {name: peer(name, *solved[beam], 20, float(limit) * entry["time_s"])}
            print(entry["matrix"], entry["time_s"], entry["peers"], flush=True)
            if arguments.json:
                results.write(arguments.json, environment, walls, table)


if __name__ == "__main__":
    main()
