"""The lowest modes of a drum, with a rim that may be heavier than its skin.

    python docs/examples/drum.py --rows 120 --k 12 --rim 3 --picture drum.svg

The picture has the residuals of all pairs over the operator columns spent, and the modes.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import models
from blockvec.solvers import EigenResult, eigsh


def drum(rows: int, rim: float) -> tuple[Any, Any, np.ndarray]:
    """Return stiffness and mass of a disc cut out of a grid, and where the disc is.

    Parameters
    ----------
    rows : int
        Of the grid.
    rim : float
        Mass of the outer tenth of the disc; 1 is that of the rest.
    """
    place = (np.arange(rows) + 0.5) / rows - 0.5
    radius = 2 * np.hypot(place[:, None], place[None, :])
    inside = radius < 1
    where = np.flatnonzero(inside)
    spacing = 2 / rows
    stiffness = models.model(f"laplace2d:n={rows}")[where][:, where] / spacing**2
    mass = sp.diags_array(np.where(radius[inside] > 0.9, rim, 1.0), format="csr")
    return sp.csr_array(stiffness), mass, inside


def solve(rows: int, k: int, rim: float) -> EigenResult:
    """Return the k lowest modes."""
    A, M, _ = drum(rows, rim)
    options = {"which": "SA", "tol": 1e-9, "convergence": "norm", "rng": 0, "return_info": True}
    return eigsh(A, k, M=None if rim == 1 else M, **options)


def draw(result: EigenResult, inside: np.ndarray, path: str) -> None:
    """Draw convergence and modes."""
    import matplotlib.pyplot as plt

    k = len(result.eigenvalues)
    figure = plt.figure(figsize=(12, 4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[2, 3])
    result.plot(left.subplots())
    places = right.subplots(2, -(-k // 2)).flat
    for place, value, mode in zip(places, result.eigenvalues, result.eigenvectors.T, strict=False):
        field = np.full(inside.shape, np.nan)
        field[inside] = mode
        most = np.abs(mode).max()
        place.imshow(field, cmap="RdBu", vmin=-most, vmax=most)
        place.set_title(f"{value:.3f}", fontsize=9)
        place.set_axis_off()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None, dpi=80)


def main() -> None:
    """Solve, print, and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=120, help="of the grid (default 120)")
    parser.add_argument("--k", type=int, default=12, help="modes (default 12)")
    parser.add_argument("--rim", type=float, default=1.0, help="mass of the outer tenth (default 1)")
    parser.add_argument("--picture", metavar="FILE", help="where to draw")
    arguments = parser.parse_args()
    result = solve(arguments.rows, arguments.k, arguments.rim)
    print(result)
    if arguments.picture:
        draw(result, drum(arguments.rows, arguments.rim)[2], arguments.picture)


if __name__ == "__main__":
    main()
