"""Loss of orthogonality over the condition number, of solvers.orthogonalization.

    python -m tests.benchmarks.orthogonality --json docs/results/host-2core/orthogonality.json
    python -m tests.benchmarks.plot docs/results

Matrices of known difficulty are orthogonalised, a few columns at a time against what came before, and as one
block. The bound is u times ten times the number of columns. It takes seconds; the same numbers come out each
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blockvec import BlockVector
from solvers.orthogonalization import orthogonalize
from tests.benchmarks.harness import recorded, script_parser

UNIT = 2.0**-53
ROWS, COLUMNS, WIDTH = 400, 24, 4
WIDTHS = WIDTH, COLUMNS


def laeuchli(kappa: float) -> np.ndarray:
    """A row of ones above a small multiple of the identity (Laeuchli 1961)."""
    A = np.zeros((ROWS, COLUMNS))
    A[0] = 1
    A[range(1, COLUMNS + 1), range(COLUMNS)] = COLUMNS**0.5 / kappa
    return A


def glued(kappa: float) -> np.ndarray:
    """Blocks that are as ill conditioned as the matrix they make up (Smoktunowicz, Barlow, Langou 2006)."""
    rng = np.random.default_rng(1)
    half = np.log10(kappa) / 2
    A = _orthonormal(rng, ROWS, COLUMNS) * np.logspace(0, -half, COLUMNS) @ _orthonormal(rng, COLUMNS)
    for begin in range(0, COLUMNS, WIDTH):
        block = A[:, begin : begin + WIDTH] * np.logspace(0, -half, WIDTH)
        A[:, begin : begin + WIDTH] = block @ _orthonormal(rng, WIDTH)
    return A


def piled(kappa: float) -> np.ndarray:
    """Blocks that differ from the one before by little (Carson, Lund, Ma, Oktay 2024)."""
    rng = np.random.default_rng(2)
    A = np.empty((ROWS, COLUMNS))
    A[:, :WIDTH] = _orthonormal(rng, ROWS, WIDTH)
    for begin in range(WIDTH, COLUMNS, WIDTH):
        step = _orthonormal(rng, ROWS, WIDTH) / kappa
        A[:, begin : begin + WIDTH] = A[:, begin - WIDTH : begin] + step
    return A


def _orthonormal(rng: np.random.Generator, rows: int, columns: int | None = None) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((rows, columns or rows)))[0]


MATRICES: dict[str, Callable[[float], np.ndarray]] = {"Läuchli": laeuchli, "glued": glued, "piled": piled}


def factor(A: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Q and R of a QR factorisation, `width` columns at a time."""
    columns = A.shape[1]
    Q, R = BlockVector(A, copy=True), np.zeros((columns, columns), A.dtype)
    for begin in range(0, columns, width):
        block = slice(begin, begin + width)
        result = orthogonalize(Q[:, block], Q[:, :begin] if begin else None, rng=begin)
        R[:begin, block], R[block, block] = result.S, result.R
    return Q.array, R


def record(name: str, kappa: float, width: int) -> dict[str, Any]:
    """Return the record of one factorisation."""
    A = MATRICES[name](kappa)
    sigma = np.linalg.svd(A, compute_uv=False)
    measured = float(sigma[0] / sigma[-1]) if kappa < 1e14 else kappa  # beyond, rounding decides
    Q, R = factor(A, width)
    return {
        "operation": "orthogonality",
        "dtype": A.dtype.name,
        "matrix": name,
        "K": ROWS,
        "columns": COLUMNS,
        "width": width,
        "policy": "default",
        "kappa": measured,
        "bound": 10 * COLUMNS * UNIT,
        "loss": float(np.linalg.norm(Q.T @ Q - np.eye(COLUMNS), 2)),
        "residual": float(np.linalg.norm(A - Q @ R) / np.linalg.norm(A)),
    }


def records() -> Iterator[dict[str, Any]]:
    """Yield all records."""
    for name in MATRICES:
        for width in WIDTHS:
            for exponent in np.arange(0.25, 15.01, 0.75):
                yield record(name, 10.0**exponent, width)


def main() -> None:
    arguments = script_parser(__doc__).parse_args()
    found = recorded(records(), arguments.json, line=lambda one: f"{one['matrix']} {one['loss']:.1e}")
    print(f"largest loss {max(one['loss'] / one['bound'] for one in found):.2g} of its bound")


if __name__ == "__main__":
    main()
