"""Is every pair that solvers.eigsh returns right? On real matrices and pairs, and on degenerate spectra.

    python -m tests.benchmarks.eigsh_accuracy --matrices FOLDER --json docs/results/host-2core/accuracy.json

A solve is right when it returns, without a word of warning, every wanted eigenvalue with every copy to within
what its residual and the rounding of the reference allow, all residuals (computed here) at the floor of
100 u ||A||, and ||V^H M V - I|| <= 1e-13. References are dense LAPACK's, or known by construction.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import models
from blockvec.errors import BlockvecError
from blockvec.io import read_matrix
from solvers import EigenResult, eigsh
from solvers.problem import select
from tests.benchmarks.harness import recorded, script_parser

U = 2.0**-53
ORTHONORMAL = 1e-13  # for up to as many columns as `COLUMNS`, growing with them
COLUMNS = 100
STIFFNESS = ("bcsstk03", "bcsstk06", "bcsstk08", "bcsstk09", "bcsstk10", "bcsstk16")
MASS = ("bcsstm06", "bcsstm08", "bcsstm09", "bcsstm10", "bcsstm13", "elast_A", "elast_B", "lund_a", "lund_b")
MATRICES = (*STIFFNESS, *MASS, "1138_bus", "gr_30_30", "graphene128x64", "mhd1280b")
PAIRS = ("bcsstk06 bcsstm06", "bcsstk08 bcsstm08", "bcsstk09 bcsstm09", "lund_a lund_b", "elast_A elast_B")
WANTED = (1, 5, 10, 20)
EVERY = 64  # rows of the degenerate matrices of which every k is asked for


@dataclass(frozen=True)
class Case:
    """A problem and all of its eigenvalues, or enough of both ends, ascending."""

    name: str
    A: Any
    M: Any
    values: np.ndarray

    def norm(self) -> float:
        return (
            float(np.abs(self.values).max(initial=0.0))
            if self.M is None
            else float(sl.norm(self.A.toarray(), 2))
        )


def solve(case: Case, k: int, which: str, options: dict[str, Any]) -> tuple[EigenResult, float]:
    """Solve to the floor; return what comes back, and the seconds."""
    begin_s = time.perf_counter()
    result = eigsh(
        case.A, k, M=case.M, which=which, rng=0, return_info=True, on_unconverged="return", **options
    )
    assert isinstance(result, EigenResult)
    return result, time.perf_counter() - begin_s


def judge(case: Case, result: EigenResult, wanted: np.ndarray) -> dict[str, Any]:
    """Compare a result with the wanted values, all errors in units of what is allowed."""
    w, X, A, M = result.eigenvalues, result.eigenvectors, case.A, case.M
    k, norm = len(w), case.norm()
    MX = X if M is None else M @ X
    R = A @ X - MX * w
    residuals = np.linalg.norm(R, axis=0)
    orthogonality = float(np.linalg.norm(X.conj().T @ MX - np.eye(k)))
    if M is None:
        allowed = residuals + 100 * U * norm
    else:  # |lambda - theta| <= ||r|| in the norm of M^-1; the reference is LAPACK's, by a factor of M
        dense = M.toarray()
        live = np.flatnonzero(np.abs(dense).sum(axis=1))
        inner = dense[np.ix_(live, live)]
        inverse = np.linalg.inv(inner)
        allowed = np.sqrt(np.einsum("ij,ij->j", R[live].conj(), inverse @ R[live]).real)
        allowed = allowed + 100 * U * norm * np.linalg.norm(inverse, 2)
    error = (
        np.abs(w - wanted) / np.maximum(allowed, np.finfo(float).tiny)
        if k == len(wanted)
        else np.array([np.inf])
    )
    return {
        "converged": int(result.converged.sum()),
        "value_error": float(error.max(initial=0.0)),
        "residual": float(np.max(residuals / np.maximum(result.limits, np.finfo(float).tiny), initial=0.0)),
        "orthogonality": orthogonality,
        "right": bool(
            result.converged.all()
            and not result.info["missing"]
            and error.max(initial=0.0) <= 1
            and np.all(residuals <= 1.05 * result.limits + 10 * U * norm)
            and orthogonality <= ORTHONORMAL * max(1.0, k / COLUMNS)
        ),
    }


def record(case: Case, k: int, which: str, **options: Any) -> dict[str, Any]:
    """Solve, judge, and describe."""
    head = {"operation": "accuracy", "matrix": case.name, "n": case.A.shape[0], "k": k, "which": which}
    head |= {name: value for name, value in options.items() if name in ("sigma", "method")}
    try:
        result, time_s = solve(case, k, which, options)
    except BlockvecError as error:
        return head | {"right": False, "refused": str(error)}
    values = case.values if which != "LM" or "sigma" not in options else np.sort(case.values)
    if "sigma" in options:
        wanted = np.sort(values[np.argsort(np.abs(values - options["sigma"]), kind="stable")[:k]])
    else:
        wanted = np.sort(values[select(values, which)[:k]])  # type: ignore[arg-type]
    facts = {name: result.info[name] for name in ("method", "operator_columns", "restarts", "verification")}
    return head | facts | {"time_s": time_s} | judge(case, result, wanted)


# --- the cases -------------------------------------------------------------------------------------


def real_matrices(folder: Path, names: tuple[str, ...] = MATRICES) -> Iterator[dict[str, Any]]:
    """Both ends of every matrix; by iteration also where `auto` would take dense LAPACK."""
    for name in names:
        A = read_matrix(folder / f"{name}.mtx")
        case = Case(name, A, None, np.linalg.eigvalsh(A.toarray()))
        for which in ("SA", "LA"):
            for k in WANTED:
                yield record(
                    case, k, which, time_limit=60.0, **({} if A.shape[0] > 500 else {"block_size": 4})
                )
        yield record(case, 10, "BE", time_limit=60.0, block_size=4)


def pairs(folder: Path, names: tuple[str, ...] = PAIRS) -> Iterator[dict[str, Any]]:
    """Stiffness and mass: the low end by shift-invert, the high end by a factor of the mass."""
    for name in names:
        A, M = (read_matrix(folder / f"{part}.mtx") for part in name.split())
        case = Case(name, A, M, sl.eigvalsh(A.toarray(), M.toarray()))
        gap = 0.01 * (case.values[20] - case.values[0])
        for k in WANTED:
            yield record(case, k, "LM", sigma=float(case.values[0] - gap), method="lanczos", time_limit=60.0)
            yield record(case, k, "LA", method="lanczos", time_limit=60.0)
            yield record(case, k, "SA", time_limit=60.0)
    A, mass = read_matrix(folder / "bcsstk09.mtx"), read_matrix(folder / "bcsstm09.mtx").diagonal()
    mass[::5] = 0  # degrees of freedom without mass
    live, dead = np.flatnonzero(mass), np.flatnonzero(mass == 0)
    D = A.toarray()
    condensed = D[np.ix_(live, live)] - D[np.ix_(live, dead)] @ np.linalg.solve(
        D[np.ix_(dead, dead)], D[np.ix_(dead, live)]
    )
    values = sl.eigvalsh((condensed + condensed.T) / 2, np.diag(mass[live]))
    case = Case("bcsstk09 with a singular mass", A, sp.diags_array(mass, format="csr"), values)
    for k in WANTED:
        yield record(case, k, "LM", sigma=-1.0, time_limit=60.0)


def zoo(n: int) -> Iterator[Case]:
    """Matrices of n rows, a multiple of 16, of which one vector finds wrong or too few values."""
    rng = np.random.default_rng(0)
    thin = np.linalg.qr(rng.standard_normal((n, 3)))[0]
    block = rng.standard_normal((n // 4, n // 4))
    block = block + block.T
    two = np.repeat([0.0, 1.0], n // 2)
    cube = models.spectra.laplace_eigenvalues([4, 4, n // 16])
    yield Case("identity", sp.eye_array(n, format="csr"), None, np.ones(n))
    yield Case("zero", sp.csr_array((n, n)), None, np.zeros(n))
    yield Case("two values", sp.diags_array(two, format="csr"), None, two)
    three = sp.csr_array((thin * [-1.0, 2.0, 2.0]) @ thin.T)
    yield Case("rank three", (three + three.T) / 2, None, np.r_[-1.0, np.zeros(n - 3), 2.0, 2.0])
    four = sp.kron(sp.eye_array(4), sp.csr_array(block)).tocsr()
    yield Case("a block four times", four, None, np.sort(np.repeat(np.linalg.eigvalsh(block), 4)))
    grid = models.model(f"laplace3d:nx=4,ny=4,nz={n // 16}")
    yield Case("laplace3d", grid, None, np.sort(cube))


def degenerate(folder: Path) -> Iterator[dict[str, Any]]:
    """All copies of everything: a few pairs of larger matrices, and every k of small ones."""
    names = ("lanczos", "filter", "jd")
    larger = [*zoo(208), Case("laplace3d:n=12", models.model("laplace3d:n=12"), None, _cube(12))]
    A = read_matrix(folder / "gr_30_30.mtx")
    larger.append(Case("gr_30_30", A, None, np.linalg.eigvalsh(A.toarray())))
    for case in larger:
        for which in ("SA", "LA"):
            for k in WANTED:
                yield from (record(case, k, which, method=method, time_limit=60.0) for method in names)
    for case in zoo(EVERY):
        for which in ("SA", "LA", "LM", "BE"):
            for method in names:
                yield every_k(case, which, method)


def _cube(n: int) -> np.ndarray:
    return np.sort(models.spectra.laplace_eigenvalues([n] * 3))


def every_k(case: Case, which: str, method: str) -> dict[str, Any]:
    """Ask for every number of pairs, one after the other; return the worst, and which were not right."""
    n = case.A.shape[0]
    found = [record(case, k, which, method=method, time_limit=60.0) for k in range(1, n + 1)]
    worst = {
        name: max(one.get(name, np.inf) for one in found)
        for name in ("value_error", "residual", "orthogonality")
    }
    head = {
        "operation": "accuracy",
        "matrix": case.name,
        "n": n,
        "k": f"1..{n}",
        "which": which,
        "method": method,
    }
    time_s = sum(one.get("time_s", 0.0) for one in found)
    wrong = [one["k"] for one in found if not one["right"]]
    return head | worst | {"time_s": time_s, "right": not wrong, "wrong": wrong}


def refusals(folder: Path) -> Iterator[dict[str, Any]]:
    """What must not be solved: the error that says so."""
    read = {
        name: read_matrix(folder / f"{name}.mtx") for name in ("qc324", "bcsstk10", "bcsstm10", "bcsstm13")
    }
    stiff = sp.eye_array(2003, format="csr")
    calls: dict[str, Callable[[], Any]] = {
        "A = qc324, complex symmetric": lambda: eigsh(read["qc324"], 3),
        "M = bcsstm10, indefinite": lambda: eigsh(read["bcsstk10"], 3, M=read["bcsstm10"], sigma=0.0),
        "M = bcsstm13, singular, without sigma": lambda: eigsh(stiff, 3, M=read["bcsstm13"]),
    }
    for name, call in calls.items():
        try:
            call()
            yield {"operation": "refusal", "matrix": name, "right": False}
        except BlockvecError as error:
            yield {"operation": "refusal", "matrix": name, "right": True, "refused": str(error)}


def line(one: dict[str, Any]) -> str:
    """Return a row of the table."""
    if one["operation"] == "refusal":
        return f"{one['matrix']:40} {'refused: ' + one['refused'] if one['right'] else 'NOT REFUSED'}"
    head = f"{one['matrix']:30} {one['n']:5d} {one['k']:>5} {one['which']:3} {one.get('method', ''):13}"
    if "refused" in one:
        return f"{head} REFUSED: {one['refused']}"
    numbers = f"{one['value_error']:8.2g} {one['residual']:8.2g} {one['orthogonality']:8.1e}"
    wrong = "" if one["right"] else f"  WRONG {one.get('wrong', one.get('converged'))}"
    return f"{head} {numbers} {one['time_s']:8.2f}{wrong}"


PARTS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "real": real_matrices,
    "pairs": pairs,
    "degenerate": degenerate,
    "refusals": refusals,
}


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--matrices", type=Path, default=os.environ.get("BLOCKVEC_TEST_MATRICES"))
    parser.add_argument("--part", default=",".join(PARTS), help="comma-separated parts to run")
    arguments = parser.parse_args()
    print(
        f"{'matrix':30} {'n':>5} {'k':>5} {'':3} {'method':13} "
        f"{'value':>8} {'residual':>8} {'orthog.':>8} {'s':>8}"
    )
    rows = (one for part in arguments.part.split(",") for one in PARTS[part](arguments.matrices))
    records = recorded(rows, arguments.json, line=line)
    right = sum(one["right"] for one in records)
    print(f"{right} of {len(records)} right")
    return int(right < len(records))


if __name__ == "__main__":
    sys.exit(main())
