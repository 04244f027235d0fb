"""Eigenvalues of graphene around the Dirac point, deep inside its spectrum, without a factorisation.

    python docs/examples/graphene_interior.py --sites 96 --k 12 --picture graphene_interior.svg

The picture has the residuals of all pairs over the operator columns spent, what was found among the values
of the clean sheet, and the density of the state nearest to the Dirac point.
"""

from __future__ import annotations

import argparse

import numpy as np

from blockvec import models
from blockvec.models import spectra
from blockvec.solvers import EigenResult, eigsh


def solve(sites: int, k: int, disorder: float) -> EigenResult:
    """Return the k eigenpairs nearest to zero of a sheet of sites x sites."""
    A = models.model(f"graphene:nx={sites},ny={sites},disorder={disorder}")
    return eigsh(A, k, sigma=0.0, method="jd", tol=1e-8, convergence="norm", rng=0, return_info=True)


def draw(result: EigenResult, sites: int, path: str) -> None:
    """Draw convergence, values and the density of one state."""
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    result.plot(left)
    clean = spectra.graphene_eigenvalues(sites, sites)
    reach = 1.5 * np.abs(result.eigenvalues).max()
    near = clean[np.abs(clean) <= reach]
    middle.plot(near, np.zeros_like(near), "|", markersize=20, label="clean sheet, closed form")
    middle.plot(result.eigenvalues, np.ones_like(result.eigenvalues), "|", markersize=20, label="found")
    middle.set_ylim(-1, 2)
    middle.set_yticks([])
    middle.set_xlabel("energy")
    middle.legend(fontsize=8)
    state = int(np.argmin(np.abs(result.eigenvalues)))
    density = np.abs(result.eigenvectors[:, state].reshape(sites, sites)) ** 2
    image = right.imshow(density, cmap="magma", origin="lower")
    right.set_title(f"density at energy {result.eigenvalues[state]:.4f}")
    figure.colorbar(image, ax=right, shrink=0.8)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    """Solve, print, and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sites", type=int, default=96, help="of a side, even (default 96)")
    parser.add_argument("--k", type=int, default=12, help="eigenvalues (default 12)")
    parser.add_argument("--disorder", type=float, default=0.3, help="width of the energies of the sites")
    parser.add_argument("--picture", metavar="FILE", help="where to draw")
    arguments = parser.parse_args()
    result = solve(arguments.sites, arguments.k, arguments.disorder)
    print(result)
    if arguments.picture:
        draw(result, arguments.sites, arguments.picture)


if __name__ == "__main__":
    main()
