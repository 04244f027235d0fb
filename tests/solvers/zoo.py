"""Spectra that are hard for eigensolvers, and requests that the judge of drawn calls judges."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from blockvec.models import model
from tests.drawn.judge import Verdict, judged
from tests.drawn.oracle import Spectrum
from tests.drawn.problems import Draw, Problem
from tests.matrices import random_sparse, with_values

METHODS = ("auto", "lanczos", "filter", "jd", "dense")
REQUESTS = ("LA", "SA", "LM", "SM", "BE", "sigma")
LIMIT_S = 10.0  # of the processor, with BLAS on one thread


def tridiagonal(diagonal: Any, off: Any) -> sp.csr_array:
    """Return a symmetric tridiagonal matrix."""
    return sp.diags_array([off, diagonal, off], offsets=[-1, 0, 1]).tocsr()


def glued_wilkinson(blocks: int, glue: float) -> sp.csr_array:
    """Return Wilkinson matrices W21+, coupled by tiny entries: clusters of pairs that agree to 1e-14."""
    diagonal = np.tile(np.abs(np.arange(-10.0, 11.0)), blocks)
    off = np.ones(21 * blocks - 1)
    off[20::21] = glue
    return tridiagonal(diagonal, off)


def arrowhead(n: int) -> sp.csr_array:
    """Return a matrix with entries in the diagonal and the last row and column."""
    A = sp.lil_array(sp.diags_array(np.linspace(-1, 1, n)))
    A[-1, :-1] = A[:-1, -1] = 0.1
    return sp.csr_array(A)


def rank_one(n: int) -> sp.csr_array:
    """Return x x^T for a sparse x of length two."""
    x = np.zeros((n, 1))
    x[::7] = 1.0
    return sp.csr_array(4 * x @ x.T / (x**2).sum())


# Names say the spectrum; those with more than 500 rows are not solved densely at once by "auto".
ZOO: dict[str, Callable[[], Any]] = {
    "glued Wilkinson": lambda: glued_wilkinson(30, 1e-6),
    "glued Wilkinson 1e-11": lambda: glued_wilkinson(50, 1e-11),
    "glued Wilkinson 1e-14": lambda: glued_wilkinson(15, 1e-14),
    "ten values of a hundred copies": lambda: sp.diags_array(np.repeat(np.arange(10.0), 100)).tocsr(),
    "ten values of forty copies, dense": lambda: with_values(np.repeat(np.arange(-3.0, 7.0), 40), 0),
    "fifty-fold clusters within 1e-13": lambda: with_values(
        np.repeat(np.arange(12.0), 50) + 1e-13 * np.random.default_rng(1).uniform(-1, 1, 600), 0
    ),
    "log-spaced 1e-15..1": lambda: with_values(np.logspace(-15, 0, 300), 0),
    "log-spaced 1e-15..1, sparse": lambda: sp.diags_array(np.logspace(-15, 0, 600)).tocsr(),
    "graded tridiagonal": lambda: tridiagonal(np.logspace(0, -18, 600), 0.4 * np.logspace(0, -18, 599)),
    "graded tridiagonal, 1e8": lambda: tridiagonal(np.logspace(0, 8, 520), 0.3 * np.logspace(0, 8, 519)),
    "one value at 1e16": lambda: sp.diags_array(np.r_[np.linspace(1, 2, 599), 1e16]).tocsr(),
    "one value at 1e8": lambda: with_values(np.r_[np.linspace(-1, 1, 299), 1e8], 0),
    "one value at 1e8, sparse": lambda: sp.diags_array(np.r_[1e8, np.linspace(0, 1, 199)]).tocsr(),
    "zero matrix": lambda: sp.csr_array((600, 600)),
    "rank one": lambda: rank_one(600),
    "identity": lambda: sp.eye_array(600).tocsr(),
    "identity plus low rank": lambda: with_values(np.r_[np.ones(295), 2, 3, 4, -5, 9], 0),
    "two-valued": lambda: sp.diags_array(np.where(np.arange(600) % 3, -1.0, 1.0)).tocsr(),
    "two-valued, dense": lambda: with_values(np.repeat([1.0, 2.0], 150), 0),
    "diagonal with exact ties": lambda: sp.diags_array(np.arange(300.0) // 3 - 40).tocsr(),
    "block diagonal copies": lambda: sp.block_diag([random_sparse(3, 60)] * 10).tocsr(),
    "Toeplitz": lambda: scipy.linalg.toeplitz(0.9 ** np.arange(300)),
    "arrowhead": lambda: arrowhead(600),
    "random sparse": lambda: random_sparse(3, 600),
    "random sparse complex": lambda: random_sparse(3, 550, dtype=complex),
    "Laplacian 2-D": lambda: model("laplace2d:n=25"),
    "Laplacian 3-D": lambda: model("laplace3d:n=9"),
    "Laplacian 1-D": lambda: model("laplace1d:n=1200"),
    "negative definite": lambda: with_values(-np.linspace(1, 100, 300), 0),
    "large null space": lambda: with_values(np.r_[np.zeros(280), np.linspace(-1, 1, 20)], 0),
    "symmetric about zero": lambda: sp.block_array(
        [[None, sp.diags_array(np.linspace(0.1, 1, 300))], [sp.diags_array(np.linspace(0.1, 1, 300)), None]]
    ).tocsr(),
    "complex clusters": lambda: with_values(np.repeat(np.linspace(-1, 1, 30), 10), 0, dtype=complex),
    "float32 uniform": lambda: with_values(np.linspace(-1, 1, 300), 0, dtype=np.float32),
    "float32 Laplacian": lambda: model("laplace2d:n=24").astype(np.float32),
    "complex64 low rank": lambda: with_values(
        np.r_[np.zeros(290), np.arange(1, 11.0)], 0, dtype=np.complex64
    ),
    "geometric, both signs": lambda: with_values(
        np.r_[-np.logspace(-10, 0, 150), np.logspace(-10, 0, 150)], 0
    ),
}
PAIRS = dict.fromkeys([name for name in ZOO if name.startswith("glued")], 30)  # k; six of the others


@cache
def matrix(name: str) -> tuple[Any, np.ndarray]:
    """Return a matrix and its eigenvalues by dense LAPACK."""
    A = ZOO[name]()
    dense = A.toarray() if sp.issparse(A) else A
    return A, np.linalg.eigvalsh(dense.astype(np.promote_types(dense.dtype, float)))


def target(values: np.ndarray) -> float:
    """Return a shift inside a spectrum that is no eigenvalue."""
    n, width = len(values), float(values[-1] - values[0])
    return float(values[n // 3]) + 0.0137 * (width or 1.0)


def ask(name: str, request: str, method: str = "auto", form: str = "csr", k: int | None = None) -> Verdict:
    """Make a request, and judge the answer."""
    A, values = matrix(name)
    which, sigma = ("LM", target(values)) if request == "sigma" else (request, None)
    unit, norm, n = float(np.finfo(A.dtype).eps) / 2, float(np.abs(values).max()), len(values)
    spectrum = Spectrum(values, np.full(n, 64 * unit * norm), np.ones(n), np.ones(n), np.ones(n))
    form = "dense" if isinstance(A, np.ndarray) and form == "csr" else form
    draw = Draw("zoo", 0, (name,), which, k or PAIRS.get(name, 6), form=form, method=method)
    problem = Problem(draw, sp.csr_array(A), None, sigma, None, spectrum, norm, 1.0, unit)
    return judged(problem, time_limit=4 * LIMIT_S)
