r"""
Hofstadter's butterfly
======================

The energies of electrons on a square lattice in a magnetic field form a fractal, when drawn
against the magnetic flux.

In a magnetic field the hopping energies become complex: around each plaquette, an electron
collects the phase :math:`2 \pi \phi`, where :math:`\phi` is the flux in quanta. For
:math:`\phi = p/q` the band splits into :math:`q` bands. The matrix is complex Hermitian.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh, models

# %%
# Compute all energies of a torus of 72 x 4 sites, for each flux that fits on it. Fluxes of
# :math:`\phi` and :math:`1 - \phi` have the same energies. If all eigenvalues are wanted,
# ``eigsh`` calls LAPACK.

nx, ny = 72, 4
fluxes = np.arange(nx // 2 + 1)
tori = [models.hofstadter(nx=nx, ny=ny, p=p, q=nx) for p in fluxes]
energies = np.array(
    [eigsh(H, k=nx * ny, which="SA", return_eigenvectors=False) for H in tori]
)

# %%
# On a lattice with edges, states run along the edges at energies between two bands: these
# are the states of the quantum Hall effect. For a flux of 1/8, one of these energies is
# -2.6.

side = 40
H = models.hofstadter(nx=side, ny=side, p=1, q=8, periodic=False)
w, X = eigsh(H, k=4, sigma=-2.6, rng=0)
on_edge = np.abs(X[:, 0].reshape(side, side)) ** 2

# %%
# Left: the butterfly. Right: the density of a state at an edge.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
for flux in (fluxes / nx, 1 - fluxes / nx):
    left.plot(energies, np.repeat(flux[:, None], nx * ny, axis=1), "k.", markersize=1.2)
left.set(xlabel="energy / t", ylabel="flux per plaquette / flux quantum")
right.imshow(on_edge, cmap="magma", interpolation="bicubic")
right.set_title(f"energy {w[0]:.2f} t")
right.set_axis_off()
plt.show()
