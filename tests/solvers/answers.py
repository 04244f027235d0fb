"""Calls of eigsh, their answers beside dense LAPACK, and matrices that several files of tests take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp

from solvers import EigenResult, eigsh


def solve(A: Any, k: int | None = None, M: Any = None, **options: Any) -> EigenResult:
    """Return the whole result of a call, with random vectors of seed 0."""
    return eigsh(A, k, M, **{"rng": 0, "return_info": True, **options})


def dense(A: Any) -> Any:
    """Return a matrix as an array in double precision; None stays."""
    if A is None:
        return None
    A = A.toarray() if sp.issparse(A) else A
    return A.astype(np.promote_types(A.dtype, float))


def eigenvalues(A: Any, M: Any = None) -> np.ndarray:
    """Compute all eigenvalues, ascending."""
    return sl.eigh(dense(A), dense(M), eigvals_only=True)


def wanted(
    values: np.ndarray, k: int, which: str = "LM", sigma: float | None = None, mode: str = "normal"
) -> np.ndarray:
    """Select the k values that a call asks for, ascending; "BE" takes one more of the high ones."""
    if sigma is None and which == "SM":
        sigma, which = 0.0, "LM"
    theta = values
    if sigma is not None:
        with np.errstate(divide="ignore"):
            theta = {"normal": 1.0, "cayley": values + sigma, "buckling": values}[mode] / (values - sigma)
    order = np.argsort({"LM": -abs(theta), "SM": abs(theta), "LA": -theta}.get(which, theta), kind="stable")
    return np.sort(values[np.r_[order[: k // 2], order[k // 2 - k :]] if which == "BE" else order[:k]])


def answered(
    A: Any,
    k: int | None = None,
    M: Any = None,
    *,
    exact: np.ndarray | None = None,
    apply_to: Any = None,
    mass: Any = None,
    rtol: float = 0.0,
    atol: float = 1e-12,
    loss: float = 1e-12,
    **options: Any,
) -> EigenResult:
    """Solve, check the answer, and return it.

    Checked are the values with their copies, that residuals are the true ones and within their limits, the
    orthonormality of the vectors, and that `info` holds the arguments. `exact` are all eigenvalues, by
    default those of dense LAPACK; `apply_to` and `mass` are other forms of A and M, which are solved for.
    Values may be off by ``rtol |w| + atol ||A||``, without M also by their limits; `atol` and `loss` are
    those of double precision, others are scaled. A sigma of "20.5" lies between values 20 and 21, "20+1e-9"
    beside one.
    """
    exact = eigenvalues(A, M) if exact is None else exact
    if isinstance(options.get("sigma"), str):
        place, _, distance = options["sigma"].partition("+")
        sides = exact[int(float(place))], exact[math.ceil(float(place))]
        options["sigma"] = float(sum(sides) / 2 + float(distance or 0))
    result = solve(A if apply_to is None else apply_to, k, M if mass is None else mass, **options)
    w, X, info = result.eigenvalues, result.eigenvectors, result.info
    w, X = (part.get() if hasattr(part, "get") else part for part in (w, X))
    given = {"which": "LM", "sigma": None, "mode": "normal"} | options
    given = {name: given[name] for name in ("which", "sigma", "mode")}
    coarse = float(np.finfo(X.dtype).eps) / np.finfo(float).eps
    if "interval" in options:
        ends, blur = options["interval"], coarse * atol * info["norm"]
        right = exact[(exact >= ends[0] - blur) & (exact <= ends[1] + blur)]
        assert len(w) == len(right)
        assert info["missing"] == 0
    else:
        right = wanted(exact, k, **given)
        assert {name: info[name] for name in given} == given
    assert result.converged.all()
    assert (np.diff(w) >= 0).all()
    allowed = rtol * np.abs(w) + coarse * atol * max(info["norm"], np.finfo(float).tiny)
    allowed += result.limits if M is None else 0.0
    if given["which"] in ("LM", "SM") and given["mode"] == "normal" and "interval" not in options:
        assert (np.abs(w[:, None] - exact).min(axis=1, initial=np.inf) <= allowed).all()
        # At equal distances either value is right.
        distances = (np.sort(np.abs(part - (given["sigma"] or 0.0))) for part in (w, right))
        np.testing.assert_allclose(*distances, rtol=0, atol=allowed.max(initial=0))
    else:
        assert (np.abs(w - right) <= allowed).all(), (w, right)
    A, X = dense(A) if isinstance(A, np.ndarray) else A, dense(X)
    MX, N = (X, X) if M is None else (M @ X, M @ X)
    if given["mode"] == "buckling":
        N = A @ X
    assert np.abs(X.conj().T @ N - np.eye(len(w))).max(initial=0) <= coarse * loss
    residuals = np.linalg.norm(A @ X - MX * w, axis=0)
    rounding = coarse * 1e-13 * info["norm"] * np.linalg.norm(X, axis=0)
    assert (np.abs(residuals - result.residuals) <= 0.1 * residuals + rounding).all()
    assert (residuals <= 1.1 * result.limits + rounding).all()
    return result


def laplacian(adjacency: Any) -> sp.csr_array:
    """Form the Laplacian of a graph."""
    return sp.csr_array(sp.diags_array(adjacency.sum(axis=1)) - adjacency)


def twice(*matrices: Any) -> tuple[sp.csr_array, ...]:
    """Form matrices whose eigenvalues are those of the given ones, each twice."""
    return tuple(sp.csr_array(sp.block_diag([A, A])) for A in matrices)


def torus(n: int, light: float = 0.0) -> tuple[Any, Any, np.ndarray]:
    """Form stiffness and mass of n x n bilinear elements of a torus; return them and the exact values.

    With `light` there is a second torus, whose matrices are smaller by this factor, with the same values.
    """
    turn = sp.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)))
    stiff, mass = 2 * sp.eye_array(n) - turn - turn.T, (4 * sp.eye_array(n) + turn + turn.T) / 6
    A, M = sp.csr_array(sp.kron(stiff, mass) + sp.kron(mass, stiff)), sp.csr_array(sp.kron(mass, mass))
    wave = np.cos(2 * np.pi * np.arange(n) / n)
    values = (2 - 2 * wave) / ((4 + 2 * wave) / 6)
    values = np.sort(np.add.outer(values, values).ravel())
    if light:
        A, M = (sp.csr_array(sp.block_diag([B, light * B])) for B in (A, M))
        values = np.repeat(values, 2)
    return A, M, values
