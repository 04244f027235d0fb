"""Count the columns that filters apply A to, beside those of other methods, at equal true residuals.

    python -m tests.benchmarks.filter_columns --json FILE [--evsl libevsl.so]

Every method computes all eigenpairs of an interval to residuals of 1e-8 ||A||. What others must be told is
known to them here: their number, the ends of the interval between neighbouring values, and the bounds of the
spectrum. They are

- Chebyshev-filtered subspace iteration (Zhou, Saad, Tiago, Chelikowsky, J. Comput. Phys. 219 (2006) 172),
  with converged pairs locked; R-ChFSI (arXiv 2503.22652) takes the same steps in lower precision;
- ChebFD (Pieper et al., J. Comput. Phys. 325 (2016) 226): windows with Lanczos's kernel, on a search space of
  some times as many columns as values;
- EVSL's filtered thick-restart Lanczos, `ChebLanTr`, if its shared library is given.

The first two take the best of several degrees and numbers of columns, as one would not know them before.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import models
from blockvec.backends import backend_for
from blockvec.operations.profile import ceilings
from solvers import eigsh
from tests.benchmarks import records as results

from .drawn_problems import matrix

TARGET = 1e-8  # residual relative to ||A||
DEGREES, SHARES = (10, 20, 40, 80), (0.25, 0.5)  # of subspace iteration; columns more than pairs, per pair
WINDOW_DEGREES, WINDOW_COLUMNS = (1, 2, 4), (1.5, 3.0)  # of the least degree for a window; per value
MOST_ROUNDS = 60
PATIENCE = 10  # times the columns of `eigsh`, after which others are stopped

Block = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A matrix, an interval with k of its values, and bounds of all of them."""

    name: str
    A: Any
    k: int
    ends: tuple[float, float]
    bounds: tuple[float, float]

    @property
    def norm(self) -> float:
        """The largest magnitude of a value."""
        return max(map(abs, self.bounds))

    @property
    def is_end(self) -> bool:
        """Whether the interval is at the lower end."""
        return self.ends[0] <= self.bounds[0]


class Counted:
    """A matrix that counts the columns it is applied to, up to a limit."""

    def __init__(self, A: Any, limit: float = math.inf) -> None:
        self._A, self.columns, self._limit = A, 0, limit

    def __matmul__(self, X: Block) -> Block:
        self.columns += 1 if X.ndim == 1 else X.shape[1]
        if self.columns > self._limit:
            raise OverflowError
        return np.asarray(self._A @ X)


def cases() -> Iterator[Case]:
    """Lower ends with simple and with multiple values, and windows inside of spectra."""
    for text, k in (
        ("laplace3d:n=32", 20),
        ("laplace2d:nx=100,ny=90", 30),
        ("anderson:n=20,disorder=16.5,seed=5", 20),
    ):
        A = matrix(text) if "seed" in text else models.model(text)
        yield _case(text, A.tocsr(), k, -math.inf)
    for text, sigma, k in (("laplace2d:nx=70,ny=60", 3.2, 30), ("xxz:sites=14,up=7", 0.0, 20)):
        yield _case(text, models.model(text).tocsr(), k, sigma)


def _case(text: str, A: Any, k: int, sigma: float) -> Case:
    """Find an interval with at least k values from sigma on, whose ends lie in gaps."""
    some = {"tol": 1e-10, "rng": 0, "return_eigenvectors": False}
    low, high = (float(eigsh(A, 1, which=which, **some)[0]) for which in ("SA", "LA"))
    margin = 1e-3 * (high - low)
    if sigma == -math.inf:
        values = eigsh(A, k + 8, which="SA", **some)
        begin, least = -1, k
    else:
        values = eigsh(A, 2 * k + 8, sigma=sigma, **some)
        begin, least = 2, k + 3
    gaps = np.diff(values)
    last = next(i for i in range(least - 1, len(gaps)) if gaps[i] > 1e-6 * (high - low))
    first = next(i for i in range(begin, last) if i < 0 or gaps[i] > 1e-6 * (high - low))
    ends = (
        low - margin if first < 0 else (values[first] + values[first + 1]) / 2,
        (values[last] + values[last + 1]) / 2,
    )
    return Case(text, A, last - first, (float(ends[0]), float(ends[1])), (low - margin, high + margin))


def _converged(case: Case, theta: Block, residuals: Block) -> NDArray[np.intp]:
    inside = (theta > case.ends[0]) & (theta < case.ends[1])
    return np.flatnonzero(inside & (residuals <= TARGET * case.norm))


def _ritz(A: Counted, Y: Block) -> tuple[Block, Block, Block]:
    """Orthonormalise a basis; return its Ritz values, vectors and residuals."""
    Q = np.linalg.qr(Y)[0]
    AQ = A @ Q
    theta, U = np.linalg.eigh(Q.T @ AQ)
    X = Q @ U
    return theta, X, np.linalg.norm(AQ @ U - X * theta, axis=0)


def subspace_iteration(case: Case, A: Counted, degree: int, share: float) -> bool:
    """Filter a block by the Chebyshev polynomial for values beyond the block's own."""
    block = case.k + math.ceil(share * case.k)
    X = np.random.default_rng(0).standard_normal((case.A.shape[0], block))
    theta, X, residuals = _ritz(A, X)
    locked = X[:, :0]
    for _ in range(MOST_ROUNDS):
        cut, high = theta[-1], case.bounds[1]
        centre, half = (cut + high) / 2, (high - cut) / 2
        scale = half / (centre - theta[0])  # keeps the filter at the lowest value near one
        before, now, sigma = X, (A @ X - centre * X) * (-scale / half), scale
        for _ in range(degree - 1):
            grown = 1 / (2 / scale - sigma)
            before, now = now, (A @ now - centre * now) * (-2 * grown / half) - sigma * grown * before
            sigma = grown
        now -= locked @ (locked.T @ now)
        theta, X, residuals = _ritz(A, now - locked @ (locked.T @ now))
        done = _converged(case, theta, residuals)
        done = done[: next((i for i, index in enumerate(done) if index != i), len(done))]  # without gaps
        locked = np.hstack([locked, X[:, done]])
        if locked.shape[1] >= case.k:
            return True
        theta, X = theta[len(done) :], X[:, len(done) :]
    return False


def window_filter(case: Case, A: Counted, degree: int, share: float) -> bool:
    """Filter a block by a window function, expanded with Lanczos's kernel, until its pairs are there."""
    centre, half = sum(case.bounds) / 2, (case.bounds[1] - case.bounds[0]) / 2
    begin, end = (math.acos(min(1.0, max(-1.0, (bound - centre) / half))) for bound in case.ends)
    n = np.arange(1, degree + 1)
    c = np.append((begin - end) / math.pi, 2 * (np.sin(n * begin) - np.sin(n * end)) / (n * math.pi))
    c[1:] *= np.sinc(n / (degree + 1)) ** 2
    X = np.random.default_rng(0).standard_normal((case.A.shape[0], math.ceil(share * case.k)))
    for _ in range(MOST_ROUNDS):
        before, now = X, (A @ X - centre * X) / half
        total = c[0] * before + c[1] * now
        for factor in c[2:]:
            before, now = now, (A @ now - centre * now) * (2 / half) - before
            total += factor * now
        theta, X, residuals = _ritz(A, total)
        if len(_converged(case, theta, residuals)) >= case.k:
            return True
    return False


def _best(
    case: Case, run: Callable[..., bool], choices: list[tuple[int, float]], limit: int
) -> dict[str, Any]:
    """Return the least columns over choices of degree and columns; None if none is within the limit."""
    best: dict[str, Any] = {"columns": None, "limit": limit}
    for degree, share in choices:
        A = Counted(case.A, best["columns"] or limit)
        try:
            found = run(case, A, degree, share)
        except OverflowError:
            continue
        if found:
            best |= {"columns": A.columns, "degree": degree, "columns_per_pair": share}
    return best


def ours(case: Case) -> dict[str, Any]:
    """Solve with nothing known but the number of pairs, or the interval where it is inside."""
    options = {"tol": TARGET * case.norm, "convergence": "absolute", "rng": 0, "return_info": True}
    if case.is_end:
        found = eigsh(case.A, case.k, which="SA", **options)
    else:
        found = eigsh(case.A, interval=case.ends, method="filter", **options)
    X, w = found.eigenvectors, found.eigenvalues
    residual = float(np.linalg.norm(case.A @ X - X * w, axis=0).max() / case.norm)
    told = {name: found.info[name] for name in ("degree", "block_size", "restarts", "verification_columns")}
    columns = found.info["operator_columns"]
    return {"columns": columns, "missed": case.k - len(w), "residual": residual, **told}


class _Filter(ctypes.Structure):
    """EVSL's `polparams`."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("max_deg", "min_deg", "damping")),
        *((name, ctypes.c_double) for name in ("thresh_ext", "thresh_int", "intvtol")),
        ("type", ctypes.c_int),
        ("mu", ctypes.c_void_p),
        *((name, ctypes.c_double) for name in ("cc", "dd", "gam", "bar")),
        ("deg", ctypes.c_int),
    ]


def evsl(case: Case, library: Path) -> dict[str, Any]:
    """Run EVSL's filtered Lanczos method with its default parameters."""
    own, n, A = ctypes.CDLL(str(library)), case.A.shape[0], Counted(case.A)
    double, integer = ctypes.POINTER(ctypes.c_double), ctypes.c_int

    @ctypes.CFUNCTYPE(None, double, double, ctypes.c_void_p)
    def product(x: Any, y: Any, _: Any) -> None:
        np.ctypeslib.as_array(y, (n,))[:] = A @ np.ctypeslib.as_array(x, (n,))

    own.EVSLStart()
    own.SetAMatvec(integer(n), product, None)
    limits = (ctypes.c_double * 4)(*case.ends, *case.bounds)
    chosen = _Filter()
    own.set_pol_def(ctypes.byref(chosen))
    own.find_pol(limits, ctypes.byref(chosen))
    start = np.random.default_rng(0).standard_normal(n)
    found, arrays = integer(0), [double() for _ in range(3)]
    asked, most, steps = case.k + 2, max(4 * case.k, 100), 100 * case.k
    own.ChebLanTr(
        *(integer(most), integer(asked), limits, integer(steps), ctypes.c_double(TARGET * case.norm)),
        *(start.ctypes.data_as(double), ctypes.byref(chosen), ctypes.byref(found)),
        *(*map(ctypes.byref, arrays), None),
    )
    count = found.value
    w, X = np.ctypeslib.as_array(arrays[0], (count,)), np.ctypeslib.as_array(arrays[1], (count, n)).T
    residual = float(np.linalg.norm(case.A @ X - X * w, axis=0).max() / case.norm)
    return {"columns": A.columns, "missed": case.k - count, "residual": residual, "degree": chosen.deg}


def record(case: Case, library: Path | None) -> dict[str, Any]:
    """Solve a case by all methods."""
    width = (case.ends[1] - case.ends[0]) / (case.bounds[1] - case.bounds[0])
    windows = [(round(times / width), share) for times in WINDOW_DEGREES for share in WINDOW_COLUMNS]
    ends = [(degree, share) for degree in DEGREES for share in SHARES]
    own = ours(case)
    limit = PATIENCE * own["columns"]
    peers = {"ChebFD": _best(case, window_filter, windows, limit)}
    if case.is_end:
        peers["ChFSI"] = _best(case, subspace_iteration, ends, limit)
    if library is not None:
        peers["EVSL"] = evsl(case, library)
    return {
        "operation": "eigsh",
        "table": "filter_columns",
        "matrix": case.name,
        "n": case.A.shape[0],
        "k": case.k,
        "interval": case.ends,
        **own,
        "peers": peers,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--evsl", type=Path, metavar="LIBRARY", help="shared library of EVSL 1.1.1")
    arguments = parser.parse_args()
    backend = backend_for("cpu")
    environment, walls = results.environment(backend), ceilings(backend)
    records = []
    for case in cases():
        records.append(one := record(case, arguments.evsl))
        peers = ", ".join(f"{name} {peer['columns']}" for name, peer in one["peers"].items())
        print(f"{case.name:36} {case.k:4d} values: {one['columns']:7d} columns; {peers}", flush=True)
        if arguments.json:
            results.write(arguments.json, environment, walls, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
