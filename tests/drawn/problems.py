"""Calls of `eigsh` drawn by kind and seed, and the problems that they stand for."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from tests.drawn import matrices, oracle
from tests.drawn.oracle import Spectrum

ENDS = ("LA", "SA", "LM", "SM", "BE")
TOLERANCES = (0.0, 1e-9, 1e-6, 1e-4)
METHODS = ("auto", "lanczos", "filter", "jd")
LARGE = 3000  # rows: dense LAPACK takes over up to here
DISTINCT = 1e-6  # of the largest value: a gap that a shift is placed in


@dataclass(frozen=True, repr=False)
class Draw:
    """One call: what it prints makes it again.

    Attributes
    ----------
    kind : str
        The kind of the draw, a key of `KINDS`.
    seed : int
        Of the call, and of the changes of variables.
    pieces : tuple of str
        Texts of matrices; several make the Kronecker sum.
    masses : str
        Text of a mass matrix; "" for none.
    penalty : float
        What is added to the diagonal at one side, in units of its largest entry.
    copies, join
        Copies of each eigenvalue, and how they are joined: "blocks", "permuted", "gauged".
    dtype, form
        Element type, and "csr", "dense" or "function".
    which : str
        An end of the spectrum, "interval" or "count".
    place : str
        Of sigma or of the interval relative to the spectrum: "" for none, or "below:0.1", "above:0.1",
        "inside:0.3", "at:0.3", "near:0.3", where 0.3 is the share of eigenvalues below.
    """

    kind: str
    seed: int
    pieces: tuple[str, ...]
    which: str
    k: int
    masses: str = ""
    penalty: float = 0.0
    copies: int = 1
    join: str = "blocks"
    dtype: str = "float64"
    form: str = "csr"
    place: str = ""
    tol: float = 0.0
    convergence: str = "value"
    method: str = "auto"
    verify: str = "auto"

    def __repr__(self) -> str:
        """Write the call without what is left at its default."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Draw({', '.join(f'{name}={value!r}' for name, value in given)})"


@dataclass(frozen=True)
class Problem:
    """Matrices of a call, numbers that depend on their spectrum, and the spectrum.

    Attributes
    ----------
    norm, mass_norm : float
        ||A||_2 without the rows held by penalties, and ||M||_2.
    unit : float
        Unit roundoff of the element type.
    """

    draw: Draw
    A: Any
    M: Any
    sigma: float | None
    interval: tuple[float, float] | None
    spectrum: Spectrum
    norm: float
    mass_norm: float
    unit: float

    @property
    def given(self) -> Any:
        """A in the form of the call."""
        if self.draw.form == "dense":
            return self.A.toarray()
        if self.draw.form == "function":
            A = self.A
            return LinearOperator(A.shape, matvec=lambda x: A @ x, matmat=lambda X: A @ X, dtype=A.dtype)
        return self.A


def build(draw: Draw) -> Problem:
    """Make the matrices of a call, and solve them by LAPACK."""
    dtype = np.dtype(draw.dtype)
    unit = float(np.finfo(dtype).eps) / 2
    (A, M), *others = (_pair(draw, i) for i in range(len(draw.pieces)))
    base, held = A, 0
    if draw.penalty:
        held = _side(draw.pieces[0])
        base = A[held:, held:]
        A = sp.csr_array(A + sp.diags_array(draw.penalty * abs(A).max() * (np.arange(A.shape[0]) < held)))
        spectrum = oracle.of_penalised(*_dense(A, M), held, unit)
    else:
        spectrum = oracle.of_pair(*_dense(A, M), unit)
    for B, N in others:
        spectrum = spectrum.plus(oracle.of_pair(*_dense(B, N), unit), unit)
        beside, above = (sp.eye_array(X.shape[0]) if W is None else W for X, W in ((B, N), (A, M)))
        A = base = sp.csr_array(sp.kron(A, beside) + sp.kron(above, B))
        M = None if M is None else sp.csr_array(sp.kron(M, N))
    norms = matrices.norm(base), 1.0 if M is None else matrices.norm(M)
    spectrum = spectrum.repeated(draw.copies)
    sigma = interval = None
    reachable = spectrum.values[: len(spectrum.values) - held * draw.copies]
    if draw.which in ("interval", "count"):
        interval = _interval(draw.place, reachable)
    elif draw.place:
        sigma = _shift(draw.place, reachable)
    change = draw.copies, draw.join, draw.seed, dtype.kind == "c" and A.dtype.kind != "c"
    A, M = (None if X is None else matrices.joined(X, *change).astype(dtype) for X in (A, M))
    return Problem(draw, A, M, sigma, interval, spectrum, *norms, unit)


def _pair(draw: Draw, i: int) -> tuple[Any, Any]:
    A = matrices.matrix(draw.pieces[i])
    return A, matrices.mass(draw.masses, A, draw.seed + i) if draw.masses else None


def _dense(A: Any, M: Any) -> tuple[np.ndarray, np.ndarray | None]:
    return matrices.dense(A), None if M is None else matrices.dense(M)


def _side(piece: str) -> int:
    """Count the first rows, which are one side of a grid or one end of a chain."""
    return int(matrices.parsed(piece)[1].get("ny", 1))


def _shift(place: str, values: np.ndarray) -> float:
    """Place a shift in a gap, at or near a value, or outside by a share of the distance of ten values."""
    name, _, text = place.partition(":")
    number, n = float(text), len(values)
    size = float(np.abs(values).max()) or 1.0
    few = min(10, n - 1)
    if name == "below":
        return float(values[0] - number * (values[few] - values[0] or size))
    if name == "above":
        return float(values[-1] + number * (values[-1] - values[-1 - few] or size))
    i = int(number * (n - 1))
    if name == "at":
        return float(values[i])
    if name == "near":
        return float(values[i] + 1e-9 * size)
    distinct = np.flatnonzero(np.diff(values) > DISTINCT * size)
    if not len(distinct):
        return float(values[0] + 0.1 * size)
    j = distinct[np.abs(distinct - i).argmin()]
    return float(values[j] + 0.37 * (values[j + 1] - values[j]))


def _interval(place: str, values: np.ndarray) -> tuple[float, float]:
    """Place an interval that starts at, inside or below the spectrum and holds some tens of values."""
    name, _, text = place.partition(":")
    share = float(text)
    if name == "below":
        return -math.inf, _shift(f"inside:{share}", values)
    if name == "above":
        return _shift(f"inside:{1 - share}", values), math.inf
    last = min(1.0, share + min(40, len(values) // 3) / len(values))
    low, high = (_shift(f"{name}:{at}", values) for at in (share, last))
    return low, high


# --- draws ------------------------------------------------------------------------------------------


def _size(r: random.Random, least: float, most: float) -> int:
    return round(math.exp(r.uniform(math.log(least), math.log(max(least, most)))))


def _masses(r: random.Random, *kinds: str) -> str:
    name = r.choice(kinds)
    return name and f"{name}:decades={r.randrange(5)}"


def _request(r: random.Random, n: int) -> dict[str, Any]:
    """Draw which values are wanted of n, and how."""
    asked = r.choices(("end", "sigma", "interval"), (5, 4, 1))[0]
    share = r.random()
    how: dict[str, Any] = {"which": r.choice(ENDS)}
    if asked == "sigma":
        place = r.choice(("below", "above", "inside", "inside", "at", "near"))
        how["place"] = f"{place}:{share:.2f}"
        if place != "inside" or r.random() < 0.8:
            how["which"] = "LM"
    elif asked == "interval":
        place = r.choice(("below", "above", "inside", "at"))
        how["which"] = r.choice(("interval", "interval", "count"))
        how["place"] = f"{place}:{share / 5 if place in ('below', 'above') else share:.2f}"
    how |= {"tol": r.choice(TOLERANCES), "convergence": r.choice(("value", "value", "norm"))}
    how["k"] = max(1, min(r.choice((1, 2, 3, 4, 6, 6, 10, 15, 20, 40)), n // 3))
    if r.random() < 0.1:
        how["verify"] = "always"
    return how


def _method(r: random.Random, how: dict[str, Any], share: float = 0.4) -> dict[str, Any]:
    """Name a method in a share of the calls, where it takes what is asked for."""
    if r.random() >= share or how["which"] == "count":
        return {}
    method = r.choice(METHODS[1:])
    if how["which"] == "interval":
        return {"method": "filter"}
    return {} if "place" in how and how["which"] != "LM" and method != "lanczos" else {"method": method}


def doubled(seed: int, largest: int) -> Draw:
    """Draw a matrix or a pair of which every eigenvalue has two or three copies."""
    r = random.Random(f"doubled:{seed}")
    copies = r.choices((2, 3, 30), (6, 3, 1))[0]
    masses = _masses(r, "", "", "diagonal", "consistent")
    is_large = r.random() < 0.3 and largest > 2 * LARGE
    if is_large:
        side = math.sqrt(r.uniform(1.1 * LARGE, largest) / copies)
        aspect = r.uniform(0.8, 1.25)
        pieces = tuple(matrices.spring_piece(r, round(n), (0, 0, 1)) for n in (side * aspect, side / aspect))
        n = round(side**2) * copies
    else:
        n = _size(r, 40, min(1200, largest))
        pieces = (matrices.any_piece(r, max(13, n // copies)),)
        n = _rows(pieces[0]) * copies
    how = _request(r, n)
    if is_large and masses and r.random() < 0.6:  # what engineers type first
        how = {"which": "SA", "k": r.choice((4, 6, 10, 15, 20)), "tol": r.choice((1e-8, 1e-6, 1e-4))}
        how["convergence"] = r.choice(("value", "norm"))
    how |= _method(r, how, 0.2 if is_large else 0.4)
    if not masses and not is_large and how["which"] not in ("SM", "interval", "count"):
        how["form"] = r.choice(("csr", "csr", "csr", "dense", "function"))
    join = r.choice(("permuted", "gauged", "gauged", "blocks"))
    dtype = r.choice(("float64", "float64", "complex128"))
    if pieces[0].startswith("peierls"):
        dtype = "complex128"
    return Draw("doubled", seed, pieces, masses=masses, copies=copies, join=join, dtype=dtype, **how)


def generalised(seed: int, largest: int) -> Draw:
    """Draw a pair of 5 to 400 rows: free or fixed, masses over decades, some zero, k up to n."""
    r = random.Random(f"generalised:{seed}")
    n = _size(r, 5, min(400, largest))
    masses = _masses(r, "diagonal", "consistent", "massless")
    is_any = n >= 40 and not masses.startswith("massless") and r.random() < 0.3
    piece = matrices.any_piece(r, n) if is_any else matrices.elastic_piece(r, n)
    n = _rows(piece)
    how = _request(r, n)
    if masses.startswith("massless"):
        _semidefinite(r, how)
        n -= max(1, n // 4)
    how["k"] = max(1, min(n - 1, r.choice((1, 3, 6, n // 2, n - 1, how["k"], how["k"]))))
    if r.random() < 0.1 and not masses.startswith("massless"):
        how["k"] = n
    how |= _method(r, how, 0.2) if not masses.startswith("massless") else {}
    dtype = "complex128" if piece.startswith("peierls") or r.random() < 0.2 else "float64"
    return Draw("generalised", seed, (piece,), masses=masses, dtype=dtype, **how)


def _semidefinite(r: random.Random, how: dict[str, Any]) -> None:
    """Ask for what a singular M allows: finite values nearest to a shift, or in a bounded interval."""
    if how["which"] not in ("interval", "count"):
        how["which"] = "LM"
        how.setdefault("place", f"{r.choice(('below', 'inside', 'at'))}:{r.uniform(0, 0.6):.2f}")
    if how["place"].startswith("above"):
        how["place"] = how["place"].replace("above", "inside")


@functools.cache
def _rows(piece: str) -> int:
    return int(matrices.matrix(piece).shape[0])


def sizeable(seed: int, largest: int) -> Draw:
    """Draw a pair of 200 to 5,000 rows, as a Kronecker sum of chains of springs."""
    r = random.Random(f"sizeable:{seed}")
    side = math.sqrt(_size(r, 200, min(5000, largest)))
    aspect = r.uniform(0.7, 1.4)
    pieces = tuple(matrices.spring_piece(r, max(3, round(n))) for n in (side * aspect, side / aspect))
    masses = _masses(r, "diagonal", "consistent")
    how = _request(r, round(side**2))
    how |= _method(r, how, 0.15)
    dtype = "complex128" if r.random() < 0.2 else "float64"
    return Draw("sizeable", seed, pieces, masses=masses, dtype=dtype, join="permuted", **how)


def single(seed: int, largest: int) -> Draw:
    """Draw a matrix in single precision, with or without copies."""
    r = random.Random(f"single:{seed}")
    copies = r.choice((1, 1, 2, 3))
    n = _size(r, 30, min(1500, largest))
    rows = max(13, min(700, n // copies))
    piece = matrices.any_piece(r, rows)
    if r.random() < 0.4:
        names = (
            f"outliers:n={rows},outside={r.randint(1, 4)}",
            f"normalised:n={rows}",
            f"factors:n={min(rows, 300)}",
        )
        piece = matrices.seeded(r, r.choice(names))
    how = _request(r, _rows(piece) * copies) | {"tol": r.choice((0.0, 1e-4, 1e-3))}
    how |= _method(r, how)
    dtype = r.choice(("float32", "complex64"))
    if piece.startswith(("peierls", "factors")):
        dtype = "complex64"
    if piece.startswith("normalised"):
        copies, dtype = 1, "float32"  # as it is, with its asymmetry
    join = "blocks" if copies == 1 else r.choice(("permuted", "gauged"))
    if copies == 1 and piece.startswith("factors"):
        how["form"] = r.choice(("csr", "dense"))
    return Draw("single", seed, (piece,), copies=copies, join=join, dtype=dtype, **how)


def penalty(seed: int, largest: int) -> Draw:
    """Draw a stiffness matrix, one side of which is held by penalties of 1e6 to 1e15."""
    r = random.Random(f"penalty:{seed}")
    n = _size(r, 20, min(900, largest))
    nx = max(3, round(math.sqrt(n)))
    chain = f"springs:n={min(n, 300)},decades=0,ends=0"
    piece = r.choice((f"grid:nx={nx},ny={nx}", f"grid:nx={nx},ny={nx + 1}", chain))
    masses = _masses(r, "", "", "diagonal", "consistent")
    how = _request(r, n)
    if "place" not in how and how["which"] in (
        "LA",
        "LM",
        "BE",
    ):  # no more high values than there are penalties
        how["k"] = min(how["k"], _side(piece) * (2 if how["which"] == "BE" else 1))
    how |= _method(r, how, 0.1)
    size = 10.0 ** r.randint(6, 15)
    return Draw("penalty", seed, (matrices.seeded(r, piece),), masses=masses, penalty=size, **how)


KINDS: dict[str, Callable[[int, int], Draw]] = {
    "doubled": doubled,
    "generalised": generalised,
    "sizeable": sizeable,
    "single": single,
    "penalty": penalty,
}
