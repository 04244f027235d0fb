"""Measure block Jacobi-Davidson: operator columns, time and memory beside peers.

    python tests/benchmarks/jacobi_davidson.py --matrices FOLDER --json jacobi_davidson.json

Tables, of which ``--tables`` picks some; each writes as it goes and stops at ``--budget`` seconds:

    primme          columns beside PRIMME's GD+k and JDQMR, equal block and basis (if it is installed)
    interior        values inside a spectrum, beside a factorisation where one is affordable
    preconditioned  with Jacobi's, algebraic multigrid (pyamg) or an incomplete factor, beside LOBPCG with it
    blocks          block size 1 to 8 for 5, 20 and 50 pairs

A run has done its work when every true residual is at most 1e-8 ||A||.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from blockvec import array_namespace, as_operator, models, results
from blockvec.backends import backend_for
from blockvec.io import open_matrix
from blockvec.profile import ceilings
from solvers import EigenResult, JacobiDavidsonOptions, eigsh

TARGET = 1e-8  # of ||A||
PRIMME_ROWS = (
    ("1138_bus", "LA"),
    ("1138_bus", "SA"),
    ("bcsstk09", "SA"),
    ("bcsstk09", "LA"),
    ("bcsstk16", "SA"),
    ("gr_30_30", "SA"),
    ("mhd1280b", "LA"),
    ("graphene128x64", "SA"),
    ("xxz:sites=16,up=8", "SA"),
)
INTERIOR = {
    "cpu": (
        ("graphene:nx=128,ny=64", 0.0, 10),
        ("graphene:nx=128,ny=64", 0.0, 20),
        ("graphene:nx=128,ny=64,disorder=0.1", 0.0, 10),
        ("xxz:sites=14,up=7", -1.0, 10),
        ("graphene:nx=512,ny=512", 0.0, 10),
    ),
    "gpu": (
        ("graphene:nx=128,ny=64", 0.0, 10),
        ("graphene:nx=512,ny=512", 0.0, 10),
        ("graphene:nx=2000,ny=2000", 0.0, 10),
    ),
}
BLOCKS = {"cpu": ("laplace3d:n=32", "xxz:sites=16,up=8"), "gpu": ("laplace3d:n=100", "xxz:sites=22,up=11")}
LARGEST_FACTOR = 300_000  # rows of a two-dimensional matrix that is factorised for comparison


@dataclass
class Run:
    """Where and for how long to run."""

    device: str
    matrices: Path | None
    deadline: float
    limit_s: float
    size: int
    pairs: tuple[int, ...]
    block_sizes: tuple[int, ...]

    @property
    def left_s(self) -> float:
        return min(self.limit_s, self.deadline - time.perf_counter())

    def matrix(self, name: str) -> Any:
        path = self.matrices / f"{name}.mtx" if self.matrices else None
        A = open_matrix(path if path and path.exists() else name)
        return self.moved(A)

    def moved(self, A: Any) -> Any:
        if self.device == "cpu":
            return A
        from cupyx.scipy.sparse import csr_matrix

        return csr_matrix(A)


def norm_of(A: Any) -> float:
    """Return ||A||_2 to a per cent; on a GPU the largest row sum, which needs no kernels to be compiled."""
    if as_operator(A).device != "cpu":
        return float(abs(A).sum(axis=1).max())
    options = {"which": "LM", "tol": 1e-2, "method": "lanczos", "rng": 0, "return_eigenvectors": False}
    return float(abs(eigsh(A, 1, **options)[0]))


def solve(run: Run, A: Any, k: int, norm: float, **options: Any) -> tuple[EigenResult, float]:
    """Return a result of Jacobi-Davidson to the common residual, and its time."""
    backend = as_operator(A).backend
    begin = time.perf_counter()
    result = eigsh(
        A,
        k,
        method="jd",
        tol=TARGET * norm,
        convergence="absolute",
        norm=norm,
        rng=0,
        time_limit=max(run.left_s, 0.1),
        on_unconverged="return",
        return_info=True,
        check_hermitian=False,
        **options,
    )
    backend.synchronize()
    return result, time.perf_counter() - begin


def entry(result: EigenResult, time_s: float, norm: float) -> dict[str, Any]:
    """Return what goes on record of a run."""
    info = result.info
    keys = ("block_size", "ncv", "operator_columns", "verification_columns", "preconditioner_columns")
    return {
        "method": "jd",
        "time_s": time_s,
        **{key: info[key] for key in (*keys, "restarts", "stopped")},
        "converged": int(result.converged.sum()),
        "residual": float(result.residuals.max()) / norm,
        "verification": info["verification"],
        "basis_bytes": 2 * info["ncv"] * info["n"] * result.eigenvectors.dtype.itemsize,
    }


def head(table: str, name: str, n: int, k: int, which: str) -> dict[str, Any]:
    return {"operation": "eigsh", "table": table, "matrix": name, "n": n, "k": k, "which": which}


# --- tables -----------------------------------------------------------------------------------------


def primme_rows(run: Run) -> Iterator[dict[str, Any]]:
    try:
        import primme
    except ImportError:
        print("primme: not installed, columns of ours alone", file=sys.stderr)
        primme = None
    k = 10
    for name, which in PRIMME_ROWS:
        A = run.matrix(name)
        norm = norm_of(A)
        for method, peer in (("davidson", "PRIMME_GD_Olsen_plusK"), ("minres", "PRIMME_JDQMR_ETol")):
            for b, ncv in ((1, 24), (4, 66)):
                how = JacobiDavidsonOptions(correction=method)  # type: ignore[arg-type]
                options = {"which": which, "block_size": b, "ncv": ncv, "verify": "never"}
                result, time_s = solve(run, A, k, norm, jd_options=how, **options)
                record = head("primme", name, A.shape[0], k, which) | entry(result, time_s, norm)
                record |= {"correction": method, "peers": {}}
                if primme is not None:
                    record["peers"][peer] = primme_run(primme, A, k, which, norm, peer, b, ncv)
                yield record


def primme_run(
    primme: Any, A: Any, k: int, which: str, norm: float, method: str, b: int, ncv: int
) -> dict[str, Any]:
    v0 = np.random.default_rng(0).uniform(-1, 1, (A.shape[0], 1)).astype(A.dtype)
    options = {"which": which, "ncv": ncv, "maxBlockSize": b, "method": method, "v0": v0, "tol": TARGET}
    begin = time.perf_counter()
    try:
        w, X, stats = primme.eigsh(sp.csr_matrix(A), k, return_stats=True, maxiter=100_000, **options)
    except primme.PrimmeError as error:
        return {"time_s": None, "note": str(error)}
    time_s = time.perf_counter() - begin
    residual = float(np.linalg.norm(A @ X - X * w, axis=0).max()) / norm
    return {"time_s": time_s, "operator_columns": stats["numMatvecs"], "residual": residual}


def interior_rows(run: Run) -> Iterator[dict[str, Any]]:
    for name, sigma, k in INTERIOR[run.device]:
        A = run.matrix(name)
        norm = norm_of(A)
        result, time_s = solve(run, A, k, norm, sigma=sigma)
        record = head("interior", name, A.shape[0], k, "LM") | {"sigma": sigma}
        record |= entry(result, time_s, norm) | {"peers": {}}
        if run.device == "cpu" and A.shape[0] <= LARGEST_FACTOR:
            record["peers"]["shift-invert"] = peer = factorised(A, k, sigma + 1e-6)
            near = np.sort(np.abs(np.asarray(result.eigenvalues) - sigma))
            peer["difference"] = float(np.abs(near - np.sort(np.abs(peer.pop("values") - sigma))).max())
        yield record


def factorised(A: Any, k: int, sigma: float) -> dict[str, Any]:
    """Return the same values by shift-invert, and the memory of the factor."""
    begin = time.perf_counter()
    factor = sla.splu(sp.csc_matrix(A - sigma * sp.eye_array(A.shape[0])))
    inverse = sla.LinearOperator(A.shape, matvec=factor.solve, matmat=factor.solve, dtype=A.dtype)
    options = {"tol": 1e-10, "convergence": "norm", "on_unconverged": "return", "return_info": True}
    result = eigsh(A, k, sigma=sigma, OPinv=inverse, rng=0, **options)
    time_s = time.perf_counter() - begin
    size = (factor.L.nnz + factor.U.nnz) * (A.dtype.itemsize + 4)
    counts = {"operator_columns": result.info["operator_columns"], "factor_bytes": size}
    return {"time_s": time_s, **counts, "values": np.asarray(result.eigenvalues)}


def anisotropic(n: int) -> Any:
    """Return a Laplacian on n^3 points whose directions are coupled by 1, 0.1 and 0.01."""
    one = sp.csr_array(models.model(f"laplace1d:n={n}"))
    same = sp.eye_array(n)
    along = (sp.kron(sp.kron(one, same), same), sp.kron(sp.kron(same, one), same))
    return sp.csr_array(along[0] + 0.1 * along[1] + 0.01 * sp.kron(sp.kron(same, same), one))


def jacobi(A: Any) -> Callable[[Any], Any]:
    inverse = (1 / A.diagonal())[:, None]
    return lambda X: X * inverse


def multigrid(A: Any) -> Callable[[Any], Any]:
    import pyamg

    cycle = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A)).aspreconditioner(cycle="V")
    return lambda X: np.stack([cycle.matvec(X[:, j].copy()) for j in range(X.shape[1])], axis=1)


def incomplete(A: Any) -> Callable[[Any], Any]:
    factor = sla.spilu(sp.csc_matrix(A), drop_tol=1e-4)
    return lambda X: factor.solve(np.ascontiguousarray(X))


def preconditioned_rows(run: Run) -> Iterator[dict[str, Any]]:
    k, n = 10, run.size
    problems = {
        f"laplace3d:n={n}": (lambda: models.model(f"laplace3d:n={n}"), {"jacobi": jacobi, "amg": multigrid}),
        f"anisotropic:n={n}": (lambda: anisotropic(n), {"jacobi": jacobi, "amg": multigrid}),
        "bcsstk09": (lambda: run.matrix("bcsstk09"), {"jacobi": jacobi, "incomplete": incomplete}),
    }
    for name, (make, kinds) in problems.items():
        if name == "bcsstk09" and not run.matrices:
            continue
        A = run.moved(make())
        norm = norm_of(A)
        for kind, build in kinds.items():
            if run.device == "gpu" and kind != "jacobi":
                continue
            begin = time.perf_counter()
            apply = build(A)
            setup_s = time.perf_counter() - begin
            options = {"which": "SA", "preconditioner": apply, "verify": "never"}
            result, time_s = solve(run, A, k, norm, **options)
            record = head("preconditioned", name, A.shape[0], k, "SA") | entry(result, time_s, norm)
            record |= {"preconditioner": kind, "setup_s": setup_s}
            yield record | {"peers": {"lobpcg": lobpcg_run(run, A, k, norm, apply)}}


class OutOfTimeError(Exception):
    """Raised inside an operator to stop a solver that has no time limit."""


def lobpcg_run(run: Run, A: Any, k: int, norm: float, apply: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what LOBPCG takes to the same residual with the same preconditioner."""
    linalg: Any = sla
    if run.device == "gpu":
        import cupyx.scipy.sparse.linalg as linalg
    xp = array_namespace(A.data)
    counts = {"operator_columns": 0, "preconditioner_columns": 0}
    deadline = time.perf_counter() + max(run.left_s, 0.1)

    def counted(name: str, function: Callable[[Any], Any]) -> Any:
        def product(X: Any) -> Any:
            counts[name] += 1 if X.ndim == 1 else X.shape[1]
            if time.perf_counter() > deadline:
                raise OutOfTimeError
            return function(X)

        return linalg.LinearOperator(A.shape, matvec=product, matmat=product, dtype=A.dtype)

    note = "residual not reached"
    for share in (1.0, 0.2):
        X = xp.asarray(np.random.default_rng(0).uniform(-1, 1, (A.shape[0], k)))
        counts.update(operator_columns=0, preconditioner_columns=0)
        operator, M = counted("operator_columns", lambda X: A @ X), counted("preconditioner_columns", apply)
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # whether it has converged is looked at here
                tol = share * TARGET * norm
                w, V = linalg.lobpcg(operator, X, M=M, tol=tol, maxiter=10_000, largest=False)
        except OutOfTimeError:
            return {"time_s": None, "note": f"not done in {run.limit_s:g} s", **counts}
        residual = float(xp.linalg.norm(A @ V - V * w, axis=0).max()) / norm
        time_s = time.perf_counter() - begin
        if residual <= TARGET:
            return {"time_s": time_s, "residual": residual, **counts}
    return {"time_s": None, "note": note, "residual": residual, **counts}


def block_rows(run: Run) -> Iterator[dict[str, Any]]:
    for name in BLOCKS[run.device]:
        A = run.matrix(name)
        norm = norm_of(A)
        for k in run.pairs:
            for b in run.block_sizes:
                # One basis for all block sizes: what differs is the block alone.
                options = {"which": "SA", "block_size": b, "ncv": k + max(k, 56), "verify": "never"}
                result, time_s = solve(run, A, k, norm, **options)
                yield head("blocks", name, A.shape[0], k, "SA") | entry(result, time_s, norm)


TABLES: dict[str, Callable[[Run], Iterator[dict[str, Any]]]] = {
    "primme": primme_rows,
    "interior": interior_rows,
    "preconditioned": preconditioned_rows,
    "blocks": block_rows,
}


def line(record: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    kind = record.get("preconditioner") or record.get("correction", "")
    problem = f"{record['matrix']:34} k={record['k']:<3d} b={record['block_size']} {kind:10}"
    cost = f"{record['time_s']:8.2f} s {record['operator_columns']:7d} columns"
    text = f"{record['table']:14} {problem} {record['converged']:3d} {cost}"
    for name, peer in record.get("peers", {}).items():
        seconds = "   none" if peer["time_s"] is None else f"{peer['time_s']:7.2f}"
        text += f" | {name} {seconds} s {peer.get('operator_columns', 0):7d}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--tables", default=",".join(TABLES), metavar="NAMES")
    parser.add_argument(
        "--matrices",
        type=Path,
        default=os.environ.get("BLOCKVEC_TEST_MATRICES"),
        help="folder of the Matrix Market files (default: BLOCKVEC_TEST_MATRICES)",
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=(5, 20, 50), help="of the table of blocks")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=(1, 2, 4, 8), help="of that table")
    parser.add_argument("--size", type=int, default=24, help="points a side of the preconditioned boxes")
    parser.add_argument("--budget", type=float, default=600.0, metavar="S", help="for everything (600)")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S", help="for one solve (120)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--keep", action="store_true", help="keep other tables that the file holds")
    arguments = parser.parse_args()
    deadline = time.perf_counter() + arguments.budget
    run = Run(
        arguments.device,
        arguments.matrices,
        deadline,
        arguments.time_limit,
        arguments.size,
        tuple(arguments.pairs),
        tuple(arguments.block_sizes),
    )
    backend = backend_for(arguments.device)
    chosen = arguments.tables.split(",")
    records: list[dict[str, Any]] = []
    if arguments.keep and arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())["records"]
        records = [record for record in known if record["table"] not in chosen]
    for name in chosen:
        for record in TABLES[name](run):
            records.append(record)
            print(line(record), flush=True)
            if arguments.json:
                results.write(arguments.json, results.environment(backend), ceilings(backend), records)
            if run.left_s <= 0:
                return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
