r"""
Graphene: density of states and the state of a vacancy
======================================================

The density of states of graphene by the kernel polynomial method, the local density next to
a missing atom, and the state that it adds in the middle of the spectrum.

Electrons in graphene hop between the sites of a honeycomb with an energy :math:`t`. The
density of states vanishes at zero energy, where the bands touch, and diverges at :math:`\pm
t`. A missing atom leaves one sublattice with a site more than the other, and thereby one
state of energy exactly zero on that sublattice.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import density_of_states, eigsh, models

# %%
# The kernel polynomial method [1]_ expands the density in Chebyshev polynomials. Random
# vectors estimate its moments, and their spread the error.

sheet = models.graphene(nx=160, ny=160)
density = density_of_states(sheet, moments=200, vectors=8, rng=0)
energies = np.linspace(*density.bounds, 500)

# %%
# Remove one atom. The density at a site is computed with its unit vector, without a random
# one: next to the vacancy it has a peak at zero, far away it is that of the sheet.

n, hole = 40, (20, 20)
x, y = np.tile(np.arange(n), n), np.repeat(np.arange(n), n)
atoms = np.flatnonzero((x != hole[0]) | (y != hole[1]))
x, y = x[atoms], y[atoms]
vacancy = models.graphene(nx=n, ny=n)[atoms][:, atoms]
near, far = (int(np.flatnonzero((x == a) & (y == hole[1]))[0]) for a in (hole[0] + 1, 5))
local = density_of_states(vacancy, moments=200, sites=[near, far])

# %%
# The eigenvalues next to zero. The matrix itself is singular, but the filter, a polynomial
# of it, factorises nothing.

w, V = eigsh(vacancy, k=5, sigma=0.0, method="filter", tol=1e-10, convergence="norm", rng=0)
print(w.round(6))

# %%
# The state decays slowly and has the threefold symmetry of the sites around the missing
# atom.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
density.plot(left, energies)
left.plot(energies, local(energies), lw=1)
left.legend(["graphene", "its error", "next to a vacancy", "far from it"])
place = 1.5 * x - 0.5 * ((x + y) % 2), np.sqrt(0.75) * y
zero_mode = np.abs(V[:, np.argmin(np.abs(w))])
right.scatter(*place, s=500 * zero_mode, c=zero_mode, cmap="viridis_r")
right.scatter(*place, s=1, c="gray")
right.set(title="state of energy zero", xlim=(17, 43), ylim=(6, 29), aspect="equal")
right.set_axis_off()
plt.show()

# %%
# .. [1] A. Weisse, G. Wellein, A. Alvermann, H. Fehske, Rev. Mod. Phys. 78, 275 (2006).
