"""Problems drawn at random: kinds of matrices that users have, sizes, numbers of pairs, ends of the spectrum.

A problem is the text of its matrix, such as ``regular_graph:n=13042,degree=4,seed=17``, from which anybody
can make it again, with k and `which`. Those of one seed may be known while a solver is written; those of
another one, drawn afterwards, show what it does elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import models

from .eigsh_easy import laplacian, neighbours, peierls, power_law_graph, random_symmetric, regular_graph

COUNTS = (1, 6, 20, 100)  # of wanted pairs
LEAST_PER_PAIR = 50  # rows: of smaller matrices nobody wants so many pairs by iteration
LEAST = 1e3  # rows


def quadrilaterals(rng: np.random.Generator, nx: int, contrast: float) -> Any:
    """Assemble bilinear elements on a square of nx x nx nodes, with lognormal or two coefficients.

    With a negative contrast c, a fifth of the elements is 10^-c times as stiff as the others.
    """
    stiffness = np.array([[4, -1, -2, -1], [-1, 4, -1, -2], [-2, -1, 4, -1], [-1, -2, -1, 4]]) / 6
    cells = nx + 1
    if contrast > 0:
        coefficient = np.exp(contrast * rng.standard_normal(cells * cells))
    else:
        coefficient = np.where(rng.random(cells * cells) < 0.2, 10.0**-contrast, 1.0)
    corner = np.arange(cells * cells) // cells * (cells + 1) + np.arange(cells * cells) % cells
    nodes = corner[:, None] + np.array([0, 1, cells + 2, cells + 1])
    rows, columns = np.repeat(nodes, 4, axis=1), np.tile(nodes, (1, 4))
    entries = coefficient[:, None] * stiffness.ravel()
    shape = ((cells + 1) ** 2,) * 2
    A = sp.coo_array((entries.ravel(), (rows.ravel(), columns.ravel())), shape=shape).tocsr()
    inner = np.arange((cells + 1) ** 2).reshape(cells + 1, -1)[1:-1, 1:-1].ravel()  # fixed at the edge
    return sp.csr_array(A[inner][:, inner])


def separated(rng: np.random.Generator, n: int, outside: int) -> Any:
    """Form a diagonal matrix with a few values far above the others."""
    above = np.linspace(2, outside, outside) ** 1.5
    return sp.diags_array(np.concatenate([above, rng.uniform(0, 1, n - outside)]), format="csr")


def clustered(rng: np.random.Generator, n: int) -> Any:
    """Form a random sparse matrix whose lowest values lie in clusters."""
    levels = np.repeat(np.linspace(-6, -4, 8), 5)
    values = np.concatenate(
        [levels + 1e-3 * rng.standard_normal(len(levels)), rng.uniform(-1, 4, n - len(levels))]
    )
    return sp.csr_array(0.01 * random_symmetric(rng, n, 6) + sp.diags_array(rng.permutation(values)))


@dataclass(frozen=True)
class Kind:
    """One kind of matrix.

    Attributes
    ----------
    make : callable
        Takes a generator of random numbers and the parameters of the text without the seed.
    sized : callable
        Takes a generator and about how many rows; returns parameters.
    ends : sequence of str
        The ends that people ask for.
    most : float
        Rows up to which the matrix is made in seconds.
    """

    make: Callable[..., Any]
    sized: Callable[[np.random.Generator, float], dict[str, float]]
    ends: Sequence[str]
    most: float = 1e7


def _n(_rng: np.random.Generator, n: float) -> dict[str, float]:
    return {"n": round(n)}


def _side(_rng: np.random.Generator, n: float) -> dict[str, float]:
    return {"nx": round(math.sqrt(n))}


KINDS = {
    "rough_elements": Kind(
        quadrilaterals,
        lambda rng, n: {"nx": round(n**0.5), "contrast": round(rng.uniform(0.5, 2), 2)},
        ("SA", "LM"),
    ),
    "jumping_elements": Kind(
        quadrilaterals,
        lambda rng, n: {"nx": round(n**0.5), "contrast": -int(rng.integers(1, 5))},
        ("SA", "LA"),
    ),
    "separated": Kind(
        separated,
        lambda rng, n: {"n": round(n), "outside": int(rng.integers(30, 120))},
        ("LA",),
    ),
    "clustered": Kind(lambda rng, n: clustered(rng, n), _n, ("SA", "LA"), 1e6),
    "regular_graph": Kind(
        regular_graph,
        lambda rng, n: {"n": round(n), "degree": 2 * int(rng.integers(2, 5))},
        ("LA", "LM"),
        3e6,
    ),
    "power_law_graph": Kind(power_law_graph, _n, ("LM", "LA"), 1e6),
    "power_law_laplacian": Kind(lambda rng, n: laplacian(power_law_graph(rng, n)), _n, ("LA",), 1e6),
    "neighbours": Kind(neighbours, _n, ("LA",), 3e5),
    "peierls": Kind(peierls, _side, ("SA", "LM"), 3e6),
    "laplace2d": Kind(lambda _rng, nx: models.laplace2d(nx=nx, ny=nx + 1).tocsr(), _side, ("LA", "SA")),
    "torus3d": Kind(
        lambda _rng, n: models.laplace3d(n=n, periodic=True).tocsr(),
        lambda _rng, n: {"n": round(n ** (1 / 3))},
        ("SA", "LA"),
    ),
    "anderson": Kind(
        lambda rng, **sizes: models.anderson(**sizes, seed=int(rng.integers(1000))).tocsr(),
        lambda rng, n: {"n": round(n ** (1 / 3)), "disorder": round(rng.uniform(8, 20), 1)},
        ("SA", "LA"),
    ),
    "graphene": Kind(
        lambda rng, nx: models.graphene(nx=nx, ny=nx, disorder=1.0, seed=int(rng.integers(1000))).tocsr(),
        lambda _rng, n: {"nx": 2 * round(math.sqrt(n) / 2)},
        ("LA",),
    ),
    "xxz": Kind(
        lambda _rng, sites: models.xxz(sites=sites, up=sites // 2).tocsr(),
        lambda _rng, n: {"sites": 2 * round((math.log2(n) + 2) / 2)},
        ("SA",),
        3e6,
    ),
}


def draw(seed: int, count: int, largest: float) -> list[tuple[str, int, str]]:
    """Draw problems with up to `largest` rows, as matrix, k, which; those with the fewest rows times k first.

    No kind comes up again before all others have.
    """
    rng = np.random.default_rng(seed)
    names: list[str] = []
    drawn = []
    for _ in range(count):
        names = names or list(rng.permutation(sorted(KINDS)))
        name = names.pop()
        kind = KINDS[name]
        n = math.exp(rng.uniform(math.log(LEAST), math.log(min(largest, kind.most))))
        parameters = kind.sized(rng, n) | {"seed": int(rng.integers(1000))}
        text = ",".join(f"{key}={value}" for key, value in parameters.items())
        k = int(rng.choice([k for k in COUNTS if k * LEAST_PER_PAIR <= n]))
        drawn.append((n * k, f"{name}:{text}", k, str(rng.choice(kind.ends))))
    return [problem for _, *problem in sorted(drawn)]  # type: ignore[misc]


def matrix(text: str) -> Any:
    """Make the matrix of a text."""
    name, _, rest = text.partition(":")
    numbers = (pair.split("=") for pair in rest.split(","))
    parameters = {key: float(value) if "." in value else int(value) for key, value in numbers}
    return KINDS[name].make(np.random.default_rng(parameters.pop("seed")), **parameters)


def is_drawn(text: str) -> bool:
    """Check whether a matrix is one of the drawn kinds: a model of that name has no seed."""
    return text.partition(":")[0] in KINDS and "seed=" in text
