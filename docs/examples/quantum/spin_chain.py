r"""
The gap of a spin chain
=======================

The lowest states of a ring of quantum spins, and the energy that separates them, against
the anisotropy of the coupling.

Neighbouring spins of the XXZ chain, :math:`H = \sum_i S^x_i S^x_{i+1} + S^y_i S^y_{i+1} +
\Delta S^z_i S^z_{i+1}`, are free fermions at :math:`\Delta = 0` and Heisenberg's
antiferromagnet at :math:`\Delta = 1`. Up to there an infinite chain has no gap. Beyond, its
ground state is one of two patterns of alternating spins, and a gap opens above both.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh, models

# %%
# The magnetisation is conserved. With as many spins up as down, a ring of 14 spins has 3432
# states instead of 16384.

deltas = np.linspace(0, 4, 17)
sizes = (8, 10, 12, 14)
levels = {}
for sites in sizes:
    chains = [models.xxz(sites=sites, up=sites // 2, delta=delta) for delta in deltas]
    options = {"which": "SA", "tol": 1e-8, "rng": 0, "return_eigenvectors": False}
    levels[sites] = np.array([eigsh(H, k=4, **options) for H in chains])

# %%
# Left: excitation energies of the longest ring. The lowest one falls to zero, as both
# patterns become ground states. Right: the gap above both patterns. Below :math:`\Delta =
# 1` it shrinks like 1 / sites.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
excitations = levels[sizes[-1]] - levels[sizes[-1]][:, :1]
left.plot(deltas, excitations[:, 1:], ".-")
left.set(
    xlabel=r"anisotropy $\Delta$",
    ylabel="energy above the ground state",
    title=f"{sizes[-1]} spins",
)
for sites in sizes:
    right.plot(
        deltas, levels[sites][:, 2] - levels[sites][:, 0], ".-", label=f"{sites} spins"
    )
right.set(xlabel=r"anisotropy $\Delta$", ylabel="gap above both patterns", ylim=(0, None))
right.legend()
plt.show()
