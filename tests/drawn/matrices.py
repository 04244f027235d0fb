"""Matrices by a text that anybody can make again, such as ``springs:n=40,decades=2,ends=0,seed=3``.

The kinds of `tests.benchmarks.drawn_problems` are among them. Copies of one matrix are joined in ways that
hide them: by a permutation, or by a rotation of the copies at every node, which leaves a connected graph.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.stats import ortho_group, unitary_group

from tests.benchmarks import drawn_problems
from tests.benchmarks.eigsh_easy import laplacian, neighbours, random_symmetric, regular_graph

JUMPS = (1, 2, 4)  # decades between stiff and soft elements


def springs(rng: np.random.Generator, n: int, decades: float, ends: int) -> Any:
    """Form a chain of n masses whose springs differ by decades; 0, 1 or 2 ends are fixed."""
    stiffness = 10.0 ** (decades * rng.uniform(-0.5, 0.5, n + 1))
    stiffness[0] *= ends > 0
    stiffness[n] *= ends > 1
    inner = -stiffness[1:n]
    return sp.diags_array([inner, stiffness[:-1] + stiffness[1:], inner], offsets=[-1, 0, 1], format="csr")


def grid(_rng: np.random.Generator, nx: int, ny: int) -> Any:
    """Form the Laplacian of the graph of a rectangle: no side is fixed."""
    x, y = (springs(np.random.default_rng(0), n, 0, 0) for n in (nx, ny))
    return sp.csr_array(sp.kron(x, sp.eye_array(ny)) + sp.kron(sp.eye_array(nx), y))


def kagome(_rng: np.random.Generator, nx: int) -> Any:
    """Form hopping on the lattice of corner-sharing triangles, periodic: -2 has nx^2 + 1 copies."""
    cells = np.arange(nx * nx).reshape(nx, nx)
    a, b, c = 3 * cells, 3 * cells + 1, 3 * cells + 2
    left, below = np.roll(cells, 1, 1), np.roll(cells, 1, 0)
    aside = np.roll(np.roll(cells, -1, 1), 1, 0)
    bonds = [(a, b), (b, c), (c, a), (a, 3 * left + 1), (a, 3 * below + 2), (b, 3 * aside + 2)]
    i, j = (np.concatenate([bond[end].ravel() for bond in bonds]) for end in (0, 1))
    A = sp.coo_array((np.ones(len(i)), (i, j)), shape=(3 * nx * nx,) * 2).tocsr()
    return sp.csr_array(A + A.T)


def hubs(_rng: np.random.Generator, n: int, hubs: int) -> Any:
    """Form the Laplacian of a ring, some nodes of which are joined to all."""
    ring = sp.coo_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    centres = np.linspace(0, n, hubs, endpoint=False).astype(int)
    ends = np.repeat(centres, n), np.tile(np.arange(n), hubs)
    graph = (ring + sp.coo_array((np.ones(n * hubs), ends), shape=(n, n))).tocsr()
    graph.setdiag(0)
    graph = sp.csr_array(graph + graph.T)
    graph.eliminate_zeros()
    graph.data[:] = 1
    return laplacian(graph)


def outliers(rng: np.random.Generator, n: int, outside: int) -> Any:
    """Form a diagonal matrix with a bulk in (0, 1) and several copies of -1 and of 2."""
    return sp.diags_array(rng.permutation(np.r_[rng.uniform(0, 1, n), [-1.0, 2.0] * outside]), format="csr")


def normalised(rng: np.random.Generator, n: int) -> Any:
    """Form a normalised Laplacian in single precision, symmetric but for its rounding."""
    graph = sp.csr_array(neighbours(rng, n)).astype(np.float32)
    return sp.csr_array(sp.csgraph.laplacian(graph, normed=True))


def factors(rng: np.random.Generator, n: int) -> Any:
    """Form a a^H / n in single precision."""
    a = (rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))).astype(np.complex64)
    return sp.csr_array(a @ a.conj().T / np.float32(n))


KINDS: dict[str, Callable[..., Any]] = {
    "springs": springs,
    "grid": grid,
    "kagome": kagome,
    "hubs": hubs,
    "outliers": outliers,
    "normalised": normalised,
    "factors": factors,
    "random": lambda rng, n, row: random_symmetric(rng, n, row),
    "graph": lambda rng, n, degree: laplacian(regular_graph(rng, n, degree)),
} | {name: kind.make for name, kind in drawn_problems.KINDS.items()}


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Split a text into its name and its numbers."""
    name, _, rest = text.partition(":")
    pairs = (pair.split("=") for pair in rest.split(",") if pair)
    return name, {key: float(value) if "." in value else int(value) for key, value in pairs}


def matrix(text: str) -> Any:
    """Make the matrix of a text."""
    name, numbers = parsed(text)
    return sp.csr_array(KINDS[name](np.random.default_rng(numbers.pop("seed")), **numbers))


def mass(text: str, A: Any, seed: int) -> Any:
    """Make a mass matrix for A: "diagonal", "consistent" (with its neighbours) or "massless" in part."""
    name, numbers = parsed(text)
    rng = np.random.default_rng(seed)
    n = A.shape[0]
    masses = 10.0 ** (numbers["decades"] * rng.uniform(-0.5, 0.5, n))
    if name == "massless":
        masses[rng.permutation(n)[: max(1, n // 4)]] = 0
    if name != "consistent":
        return sp.diags_array(masses, format="csr")
    pattern = abs(A) > 0
    pattern.setdiag(False)
    pattern.eliminate_zeros()
    neighbours_of = pattern.astype(float)
    scale = sp.diags_array(np.maximum(neighbours_of.sum(axis=1), 1) ** -0.5)
    root = sp.diags_array(np.sqrt(masses))
    return _hermitian(root @ (sp.eye_array(n) + 0.4 * scale @ neighbours_of @ scale) @ root)


def _hermitian(A: Any) -> Any:
    return sp.csr_array((A + A.conj().T) / 2)


def joined(A: Any, copies: int, join: str, seed: int, becomes_complex: bool) -> Any:
    """Form a matrix with the eigenvalues of A, each as many times as there are copies.

    The same seed makes the same change of variables, so that a pair stays one.
    """
    rng = np.random.default_rng(seed)
    n = A.shape[0]
    if copies > 1:
        A = sp.csr_array(sp.kron(A, sp.eye_array(copies)))
    if join == "permuted":
        order = rng.permutation(n * copies)
        A = sp.csr_array(A[order][:, order])
    elif join == "gauged":
        group = unitary_group if becomes_complex else ortho_group
        turns = group.rvs(copies, size=n, random_state=rng).reshape(n, copies, copies)
        A = _turned(A, sp.bsr_array((turns, np.arange(n), np.arange(n + 1))).tocsr())
    if becomes_complex and join != "gauged":
        A = _turned(A, sp.diags_array(np.exp(2j * math.pi * rng.random(n * copies)), format="csr"))
    return A


def _turned(A: Any, U: Any) -> Any:
    """Change variables; entries that only rounding errors leave are dropped, as is asymmetry."""
    B = _hermitian(U @ A @ U.conj().T)
    B.data[abs(B.data) <= 1e-15 * abs(B.data).max(initial=0)] = 0
    B.eliminate_zeros()
    return B


def any_piece(r: random.Random, n: int) -> str:
    """Draw a matrix of about n rows."""
    side = max(3, round(math.sqrt(n)))
    even = 2 * max(2, round(side / 2))
    cube = max(2, round(n ** (1 / 3)))
    texts = [
        spring_piece(r, n),
        f"grid:nx={side},ny={side + r.randrange(2)}",
        f"laplace2d:nx={side}",
        f"torus3d:n={max(3, cube)}",
        f"kagome:nx={max(3, round(math.sqrt(n / 3)))}",
        f"hubs:n={n},hubs={r.choice((2, 5))}",
        f"outliers:n={n},outside={r.randint(1, 3)}",
        f"random:n={n},row={r.choice((4, 8))}",
        f"graph:n={n},degree=4",
        f"regular_graph:n={n},degree={r.choice((4, 6))}",
        f"power_law_graph:n={n}",
        f"power_law_laplacian:n={n}",
        f"neighbours:n={n}",
        f"peierls:nx={side}",
        f"anderson:n={max(3, cube)},disorder={r.uniform(8, 20):.1f}",
        f"graphene:nx={even}",
        f"rough_elements:nx={side},contrast={r.uniform(0.5, 2):.2f}",
        f"jumping_elements:nx={side},contrast={-r.choice(JUMPS)}",
        f"xxz:sites={max(4, 2 * round((math.log2(n) + 2) / 2))}",
    ]
    if n >= 150:  # their clusters have forty values
        texts += [f"separated:n={n},outside={r.randint(20, 60)}", f"clustered:n={n}"]
    return seeded(r, r.choice(texts))


def spring_piece(r: random.Random, n: int, decades: Sequence[int] = (0, 0, 1, 2, 4)) -> str:
    """Draw a chain of springs, many of them uniform."""
    return seeded(r, f"springs:n={n},decades={r.choice(decades)},ends={r.randrange(3)}")


def elastic_piece(r: random.Random, n: int) -> str:
    """Draw a semidefinite matrix of which every proper principal submatrix is definite."""
    side = max(2, round(math.sqrt(n)))
    texts = [
        spring_piece(r, n),
        spring_piece(r, n),
        f"grid:nx={side},ny={side}",
        f"rough_elements:nx={max(3, side)},contrast={r.uniform(0.5, 2):.2f}",
        f"jumping_elements:nx={max(3, side)},contrast={-r.choice(JUMPS)}",
    ]
    return seeded(r, r.choice(texts))


def seeded(r: random.Random, text: str) -> str:
    """Complete a text by a seed."""
    return text if "seed=" in text else f"{text},seed={r.randrange(1000)}"


def dense(A: Any) -> np.ndarray:
    """Return the Hermitian part of a sparse matrix in double precision."""
    D = A.toarray()
    D = D.astype(np.promote_types(D.dtype, np.float64))
    return (D + D.conj().T) / 2


def norm(A: Any) -> float:
    """Compute ||A||_2 to a digit."""
    if A.shape[0] <= 600:
        return float(np.abs(scipy.linalg.eigvalsh(dense(A))).max())
    start = np.random.default_rng(0).uniform(-1, 1, A.shape[0])
    w = sp.linalg.eigsh(A, 1, which="LM", tol=1e-2, return_eigenvectors=False, v0=start.astype(A.dtype))
    return float(abs(w[0]))
