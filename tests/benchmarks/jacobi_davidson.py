"""Measure block Jacobi-Davidson: operator columns, time and memory beside peers.

    python -m tests.benchmarks.jacobi_davidson --matrices FOLDER --json jacobi_davidson.json

Tables, of which ``--tables`` picks some; each writes as it goes and stops at ``--budget`` seconds:

    primme          columns beside PRIMME's GD+k and JDQMR, equal block and basis (if it is installed)
    interior        values inside a spectrum, beside a filter around them, and a factorisation on the host
    preconditioned  with Jacobi's, algebraic multigrid (pyamg) or an incomplete factor, beside LOBPCG with it
    blocks          block size 1 to 8 for 5, 20 and 50 pairs

A run has done its work when every true residual is at most 1e-8 ||A||. Nobody looks for missed values.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from blockvec import models
from solvers import EigenResult, JacobiDavidsonOptions, eigsh
from tests.benchmarks.harness import recorded, script_parser
from tests.benchmarks.records import read

from .eigen_problems import TARGET, Problem, Source, Task, problems
from .eigen_solvers import HOST_PEERS, cupyx_lobpcg_runs, first_accepted, lobpcg_runs, primme_runs, to_host

PRIMME_TASKS = tuple(
    Task(name, 10, which)
    for name, which in (
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
)
INTERIOR = {
    "cpu": (
        (Task("graphene:nx=128,ny=64", 10, "LM"), 0.0),
        (Task("graphene:nx=128,ny=64", 20, "LM"), 0.0),
        (Task("graphene:nx=128,ny=64,disorder=0.1", 10, "LM"), 0.0),
        (Task("xxz:sites=14,up=7", 10, "LM"), -1.0),
        (Task("graphene:nx=512,ny=512", 10, "LM"), 0.0),
        (Task("graphene:nx=512,ny=512", 20, "LM"), 0.0),
    ),
    "gpu": (
        (Task("graphene:nx=512,ny=512", 10, "LM"), 0.0),
        (Task("graphene:nx=2000,ny=2000", 10, "LM"), 0.0),
        (Task("graphene:nx=2000,ny=2000", 20, "LM"), 0.0),
        *((Task("xxz:sites=20,up=10", k, "LM"), -1.0) for k in (10, 500)),
    ),
}
BY_FILTER = ("xxz:sites=20,up=10",)  # corrections converge nowhere near as fast in so dense a spectrum
BLOCKS = {"cpu": ("laplace3d:n=24", "xxz:sites=16,up=8"), "gpu": ("laplace3d:n=100", "xxz:sites=22,up=11")}
LARGEST_FACTOR = 300_000  # rows of a two-dimensional matrix that is factorised for comparison
REPEAT_BELOW_S = 2.0  # such runs are timed three times
WARM_BELOW_S = 20.0  # on a GPU: the first of such runs, in which kernels are compiled, does not count
SIDES = {"cpu": 40, "gpu": 100}  # points a side of the preconditioned boxes


@dataclass
class Setting:
    """Where and for how long to run."""

    device: str
    folder: Path | None
    deadline: float
    limit_s: float
    side: int
    pairs: Sequence[int]
    block_sizes: Sequence[int]
    only: str = ""  # part of the names of matrices

    @property
    def left_s(self) -> float:
        return max(min(self.limit_s, self.deadline - time.perf_counter()), 0.1)

    def problems(self, tasks: Sequence[Task]) -> Iterator[Problem]:
        """Yield the problems until the time is over."""
        source = problems(tasks, self.folder, self.device)
        try:
            for problem in source:
                if time.perf_counter() > self.deadline:
                    return
                yield problem
        finally:
            source.close()


def solve(setting: Setting, problem: Problem, method: str = "jd", **options: Any) -> dict[str, Any]:
    """Return what goes on record of a run of ours to the common residual; short ones are timed thrice."""
    task, times = problem.task, []
    is_cold, again = setting.device == "gpu", True
    while again:
        begin = time.perf_counter()
        result: EigenResult = eigsh(
            problem.operator,
            task.k,
            which=task.which,
            method=method,
            tol=TARGET * problem.norm,
            convergence="absolute",
            norm=problem.norm,
            rng=0,
            verify="never",
            time_limit=setting.left_s,
            on_unconverged="return",
            return_info=True,
            check_hermitian=False,
            **options,
        )
        problem.operator.backend.synchronize()
        times.append(time.perf_counter() - begin)
        again = bool(result.converged.all()) and (
            (len(times) < 3 and times[-1] < REPEAT_BELOW_S)
            or (len(times) == 1 and is_cold and times[-1] < WARM_BELOW_S)
        )
    info = result.info
    keys = (
        "block_size",
        "ncv",
        "degree",
        "operator_columns",
        "preconditioner_columns",
        "restarts",
        "stopped",
    )
    return {
        "method": method,
        "time_s": statistics.median(times[is_cold:] or times) if result.converged.all() else None,
        "first_s": times[0],
        **{key: info[key] for key in keys},
        "converged": int(result.converged.sum()),
        "residual": float(result.residuals.max()) / problem.norm,
        "basis_bytes": (2 if method == "jd" else 1)
        * info["ncv"]
        * info["n"]
        * problem.operator.dtype.itemsize,
        "values": np.sort(to_host(result.eigenvalues)),
    }


def record_of(table: str, problem: Problem, entry: dict[str, Any], **more: Any) -> dict[str, Any]:
    task = problem.task
    head = {"operation": "eigsh", "table": table, "matrix": task.matrix, "n": problem.n}
    entry.pop("values")
    return head | {"k": task.k, "which": task.which} | entry | {"peers": {}} | more


def beside(solver: Any, problem: Problem, limit_s: float) -> dict[str, Any]:
    """Return what goes on record of a peer's first run that meets the rule."""
    judged = first_accepted(solver, problem, limit_s)
    if judged.run is None:
        return {"time_s": None, "note": judged.note, "limit_s": judged.limit_s}
    counts = {"operator_columns": judged.run.operator_columns, "residual": judged.residual}
    return {"time_s": judged.run.time_s, **counts, **judged.run.facts}


# --- tables -----------------------------------------------------------------------------------------


def primme_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    if "primme" not in HOST_PEERS:
        print("primme: not installed, columns of ours alone", file=sys.stderr)
    for problem in setting.problems(PRIMME_TASKS if setting.device == "cpu" else ()):
        for method, peer in (("davidson", "PRIMME_GD_Olsen_plusK"), ("minres", "PRIMME_JDQMR_ETol")):
            for b, ncv in ((1, 24), (4, 66)):
                how = JacobiDavidsonOptions(correction=method)  # type: ignore[arg-type]
                ours = solve(setting, problem, block_size=b, ncv=ncv, jd_options=how)
                record = record_of("primme", problem, ours, correction=method)
                if "primme" in HOST_PEERS:
                    options = {"method": peer, "ncv": ncv, "maxBlockSize": b, "maxiter": 100_000}
                    record["peers"][peer] = beside(
                        lambda p, s, o=options: primme_runs(p, s, **o), problem, setting.left_s
                    )
                yield record


def interior_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    rows = [row for row in INTERIOR[setting.device] if setting.only in row[0].matrix]
    for problem, (task, sigma) in zip(setting.problems([row[0] for row in rows]), rows, strict=False):
        filtered = solve(setting, problem, "filter", sigma=sigma)
        corrects = task.matrix not in BY_FILTER
        entries = {"jd": solve(setting, problem, sigma=sigma)} if corrects else {}
        entries["filter"] = filtered
        if setting.device == "cpu" and problem.n <= LARGEST_FACTOR:
            entries["shift-invert"] = factorised(problem.host, task.k, sigma + 1e-6)
        reference = list(entries.values())[-1]["values"]
        for entry in entries.values() if len(entries) > 1 else ():
            entry["difference"] = _difference(entry["values"], reference, sigma)
        first, *others = entries
        peers = {name: _without_values(entries[name]) for name in others}
        yield record_of("interior", problem, entries[first], sigma=sigma, peers=peers)


def _difference(values: np.ndarray, reference: np.ndarray, sigma: float) -> float:
    """Return how far distances from sigma differ at most."""
    return float(np.abs(np.sort(np.abs(values - sigma)) - np.sort(np.abs(reference - sigma))).max())


def _without_values(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "values"}


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
    inverse = 1 / A.diagonal()
    return lambda X: X * (inverse if X.ndim == 1 else inverse[:, None])


def multigrid(A: Any) -> Callable[[Any], Any]:
    import pyamg

    cycle = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A)).aspreconditioner(cycle="V")
    return lambda X: np.stack([cycle.matvec(x.copy()) for x in np.atleast_2d(X.T)], axis=-1).reshape(X.shape)


def incomplete(A: Any) -> Callable[[Any], Any]:
    factor = sla.spilu(sp.csc_matrix(A), drop_tol=1e-4)
    return lambda X: factor.solve(np.ascontiguousarray(X))


def preconditioned_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    n, gpu = setting.side, setting.device == "gpu"
    kinds = {"jacobi": jacobi} if gpu else {"jacobi": jacobi, "multigrid": multigrid}
    boxes = (
        (f"laplace3d:n={n}", lambda: models.model(f"laplace3d:n={n}")),
        (f"anisotropic:n={n}", lambda: anisotropic(n)),
    )
    for name, make in boxes:
        problem = Problem(Task(name, 10), Source(make(), None), setting.device)
        yield from _preconditioned(setting, problem, kinds)
    if not gpu and setting.folder:
        for problem in setting.problems([Task("bcsstk09", 10)]):
            yield from _preconditioned(setting, problem, {"jacobi": jacobi, "incomplete": incomplete})


def _preconditioned(
    setting: Setting, problem: Problem, kinds: dict[str, Callable[[Any], Callable[[Any], Any]]]
) -> Iterator[dict[str, Any]]:
    runs = lobpcg_runs if setting.device == "cpu" else cupyx_lobpcg_runs
    for kind, build in kinds.items():
        if time.perf_counter() > setting.deadline:
            return
        begin = time.perf_counter()
        apply = build(problem.matrix)
        setup_s = time.perf_counter() - begin
        ours = solve(setting, problem, preconditioner=apply)
        record = record_of("preconditioned", problem, ours, preconditioner=kind, setup_s=setup_s)
        peer = beside(lambda p, s, apply=apply: runs(p, s, preconditioner=apply), problem, setting.left_s)
        yield record | {"peers": {"lobpcg": peer}}


def block_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    tasks = [Task(name, k) for name in BLOCKS[setting.device] for k in setting.pairs]
    for problem in setting.problems(tasks):
        for b in setting.block_sizes:
            # One basis for all block sizes: what differs is the block alone.
            ncv = problem.task.k + max(problem.task.k, 56)
            yield record_of("blocks", problem, solve(setting, problem, block_size=b, ncv=ncv))


TABLES: dict[str, Callable[[Setting], Iterator[dict[str, Any]]]] = {
    "preconditioned": preconditioned_rows,
    "blocks": block_rows,
    "primme": primme_rows,
    "interior": interior_rows,
}


def line(record: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    kind = record.get("preconditioner") or record.get("correction", "")
    problem = f"{record['matrix']:34} k={record['k']:<3d} b={record['block_size']} {kind:10}"
    text = f"{record['table']:14} {problem} {record['converged']:3d} {_cost(record)}"
    for name, peer in record["peers"].items():
        text += f" | {name} {_cost(peer)}"
    return text


def _cost(entry: dict[str, Any]) -> str:
    seconds = "   gave up" if entry["time_s"] is None else f"{entry['time_s']:8.2f} s"
    return f"{seconds} {entry.get('operator_columns') or 0:7d} columns"


def rows(setting: Setting, tables: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of tables until the budget is spent."""
    for name in tables:
        for record in TABLES[name](setting):
            yield record
            if time.perf_counter() > setting.deadline:
                print("ended by the budget")
                return


def main() -> None:
    parser = script_parser(__doc__, "cpu", "gpu")
    parser.add_argument("--tables", default=",".join(TABLES), metavar="NAMES")
    parser.add_argument(
        "--matrices",
        type=Path,
        default=os.environ.get("BLOCKVEC_TEST_MATRICES"),
        help="folder of the Matrix Market files (default: BLOCKVEC_TEST_MATRICES)",
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=(5, 20, 50), help="of the table of blocks")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=(1, 2, 4, 8), help="of that table")
    parser.add_argument("--side", type=int, help="points a side of the preconditioned boxes (40, GPU 100)")
    parser.add_argument("--budget", type=float, default=600.0, metavar="S", help="for everything (600)")
    parser.add_argument("--time-limit", type=float, default=90.0, metavar="S", help="for one solve (90)")
    parser.add_argument("--only", default="", metavar="TEXT", help="interior: names of matrices with this")
    parser.add_argument("--keep", action="store_true", help="keep other tables that the file holds")
    arguments = parser.parse_args()
    setting = Setting(
        arguments.device,
        arguments.matrices,
        time.perf_counter() + arguments.budget,
        arguments.time_limit,
        arguments.side or SIDES[arguments.device],
        arguments.pairs,
        arguments.block_sizes,
        arguments.only,
    )
    chosen, kept = arguments.tables.split(","), []
    if arguments.keep and arguments.json and arguments.json.exists():
        kept = [record for record in read(arguments.json)["records"] if record["table"] not in chosen]
    recorded(rows(setting, chosen), arguments.json, arguments.device, line, kept)


if __name__ == "__main__":
    main()
