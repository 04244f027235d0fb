r"""
Anderson localisation
=====================

Disorder stops quantum waves: states in the middle of the spectrum extend over the whole
crystal, or are localised at a few of its sites.

In Anderson's model an electron hops on a cubic lattice whose sites have random energies
from an interval of width :math:`W`. The participation ratio :math:`1 / \sum_i |\psi_i|^4`
counts the sites that a state occupies. In three dimensions the states at energy zero of an
infinite lattice are localised for :math:`W > 16.5`.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh, models

# %%
# Compute the 16 states nearest to energy zero, for several widths.

n = 12
widths = np.array([2, 5, 8, 11, 14, 16.5, 19, 22, 26, 30])
states = []
for width in widths:
    A = models.anderson(n=n, disorder=width, seed=1)
    energies, X = eigsh(A, k=16, sigma=0.0, rng=0)
    states.append(X)
participation = np.array([1 / np.sum(X**4, axis=0) for X in states])

# %%
# Real random vectors would occupy a third of all sites. The pictures are densities, summed
# along one direction.

shape = {"figsize": (11, 3.6), "width_ratios": (1.4, 1, 1)}
figure, axes = plt.subplots(1, 3, layout="constrained", **shape)
axes[0].semilogy(widths, participation / n**3, "k.", markersize=3, alpha=0.5)
axes[0].semilogy(widths, participation.mean(axis=1) / n**3, "o-")
axes[0].axhline(1 / 3, color="gray", linestyle=":")
axes[0].axvline(16.5, color="gray", linestyle="--")
axes[0].set(xlabel="width W of the disorder", ylabel="participation ratio / sites")
for ax, index in zip(axes[1:], (1, -1), strict=True):
    density = (states[index][:, 8] ** 2).reshape(n, n, n).sum(axis=0)
    ax.imshow(density, cmap="magma", interpolation="bicubic")
    ax.set_title(f"W = {widths[index]:g}: {participation[index, 8]:.0f} sites")
    ax.set_axis_off()
plt.show()
