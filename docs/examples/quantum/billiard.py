r"""
Scars in a quantum billiard
===========================

A ball in a stadium moves chaotically. Some waves in the same stadium remember its unstable
periodic orbits: their density is high along them.

The states satisfy :math:`-\Delta \psi = E \psi` inside and are zero at the boundary. Around
the 200th state, wavelengths are short compared with the stadium. Shift-invert computes the
states there without those below.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh, models

# %%
# The stadium is a rectangle between two half discs of radius 1, cut out of a grid.

points = 48
along, across = (np.arange(-m, m + 1) / points for m in (2 * points, points))
x, y = np.meshgrid(along, across)
inside = np.hypot(np.maximum(np.abs(x) - 1, 0), y) < 1
grid = models.laplace2d(nx=inside.shape[1], ny=inside.shape[0])
where = np.flatnonzero(inside)
A = grid[where][:, where] * points**2

# %%
# Compute 40 states around E = 400, and select those that occupy the smallest area.

E, X = eigsh(A, k=40, sigma=400.0, rng=0)
concentrated = np.argsort(-np.sum(X**4, axis=0))[:6]

# %%
# Some bounce between the straight walls, others run along the axis.

figure, axes = plt.subplots(3, 2, figsize=(9, 7), layout="constrained")
for ax, state in zip(axes.flat, concentrated, strict=True):
    density = np.full(inside.shape, np.nan)
    density[inside] = X[:, state] ** 2
    ax.imshow(density, cmap="inferno", vmax=0.6 * np.nanmax(density))
    ax.set_title(f"E = {E[state]:.2f}")
    ax.set_axis_off()
plt.show()
