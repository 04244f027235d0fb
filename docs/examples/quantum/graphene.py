r"""
Graphene: density of states and the state of a vacancy
======================================================

The density of states of graphene by the kernel polynomial method, and the state that a
missing atom adds in the middle of the spectrum.

Electrons in graphene hop between the sites of a honeycomb with an energy :math:`t`. The
density of states vanishes at zero energy, where the bands touch, and diverges at :math:`\pm
t`. A missing atom leaves one sublattice with a site more than the other, and thereby one
state of energy exactly zero on that sublattice.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import BlockVector, as_operator, eigsh, models

nx, ny, reach, terms = 160, 160, 3.1, 200  # all eigenvalues are in [-reach, reach]
sheet = models.graphene(nx=nx, ny=ny)

# %%
# The kernel polynomial method [1]_ expands the density in Chebyshev polynomials of
# :math:`A`. Its moments are averages over random vectors. One call of ``apply`` makes one
# step of the recurrence for a block of vectors and returns the inner products of two
# moments.

A = as_operator(sheet)
X = BlockVector.random(nx * ny, 8, rng=0)
X.normalize()
Y, dots, _ = A.apply(X, alpha=1 / reach, dots="xy")
moments = [1.0, dots["xy"].mean()]
for _ in range(terms // 2 - 1):
    X, dots, _ = A.apply(Y, out=X, alpha=2 / reach, beta=-1, dots=("xx", "xy"))
    moments += [2 * dots["xx"].mean() - moments[0], 2 * dots["xy"].mean() - moments[1]]
    X, Y = Y, X

# %%
# Jackson's factors damp the oscillations of the truncated series.

order, theta = np.arange(terms), np.linspace(0.01, np.pi - 0.01, 500)
step = np.pi / (terms + 1)
jackson = (terms + 1 - order) * np.cos(order * step) + np.sin(order * step) / np.tan(step)
weights = np.where(order == 0, 1, 2) * jackson / (terms + 1) * moments
energies = reach * np.cos(theta)
density = np.cos(np.outer(theta, order)) @ weights / (np.pi * reach * np.sin(theta))

# %%
# Remove one atom and compute the eigenvalues next to zero. :math:`A` itself is singular,
# but the filter, a polynomial of :math:`A`, factorises nothing.

x, y = np.tile(np.arange(40), 40), np.repeat(np.arange(40), 40)
atoms = np.flatnonzero((x != 20) | (y != 20))
vacancy = models.graphene(nx=40, ny=40)[atoms][:, atoms]
w, V = eigsh(vacancy, k=5, sigma=0.0, method="filter", tol=1e-10, convergence="norm", rng=0)
print(w.round(6))

# %%
# The state decays slowly and has the threefold symmetry of the sites around the missing
# atom.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.plot(energies, density)
left.set(xlabel="energy / t", ylabel="density of states", ylim=(0, None))
x, y = x[atoms], y[atoms]
place = 1.5 * x - 0.5 * ((x + y) % 2), np.sqrt(0.75) * y
zero_mode = np.abs(V[:, np.argmin(np.abs(w))])
right.scatter(*place, s=500 * zero_mode, c=zero_mode, cmap="viridis_r")
right.scatter(*place, s=1, c="gray")
right.set(title="state of energy zero", xlim=(17, 43), ylim=(6, 29), aspect="equal")
right.set_axis_off()
plt.show()

# %%
# .. [1] A. Weisse, G. Wellein, A. Alvermann, H. Fehske, Rev. Mod. Phys. 78, 275 (2006).
