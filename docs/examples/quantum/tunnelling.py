r"""
A wave packet meets a barrier
=============================

A quantum particle that meets a wall higher than its energy is thrown back, but not all of
it: a part tunnels through. At a wall with two slits the parts behind it interfere.

The particle is a packet of waves on a square grid. Its state satisfies
:math:`\mathrm{i} \, \partial_t \psi = H \psi` with :math:`H = -\Delta + V`, and
:func:`blockvec.evolve` returns the states at given times.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import evolve, models

# %%
# A packet with a wavelength of ten grid points moves to the right.

nx, ny = 160, 96
x, y = np.meshgrid(np.arange(nx), np.arange(ny))
momentum, width = 2 * np.pi / 10, 9.0
packet = np.exp(-((x - 36) ** 2 + (y - ny / 2) ** 2) / (4 * width**2) + 1j * momentum * x)
psi0 = (packet / np.linalg.norm(packet)).ravel()

# %%
# Two walls: a thin one, which lets a part of the packet through, and a thick one with two
# slits. Both are higher than the energy of the packet.

wall = (x >= 80) & (x < 82)
slits = np.abs(np.abs(y - (ny - 1) / 2) - 9) < 3
heights = [np.where(wall, 0.6, 0.0), np.where((x >= 80) & (x < 84) & ~slits, 5.0, 0.0)]
laplacian = models.laplace2d(nx=nx, ny=ny)
times = np.linspace(0, 80, 5)
films, norms = [], []
for height in heights:
    H = laplacian.copy()
    H.setdiag(H.diagonal() + height.ravel())
    states = [psi for _, psi in evolve(H, psi0, times)]
    films.append([np.abs(psi.reshape(ny, nx)) ** 2 for psi in states])
    norms.append([np.linalg.norm(psi) for psi in states])
through = [film[-1][:, 84:].sum() for film in films]

# %%
# Densities from left to right in time.

figure, axes = plt.subplots(2, 5, figsize=(11, 3.4), layout="constrained")
for row, film, height in zip(axes, films, heights, strict=True):
    for ax, density, t in zip(row, film, times, strict=True):
        ax.imshow(density**0.5, cmap="magma", vmax=0.6 * film[0].max() ** 0.5)
        ax.contour(height, levels=[0.1], colors="white", linewidths=0.6)
        ax.set_title(f"t = {t:g}", fontsize=9)
        ax.set_axis_off()
print(f"behind the walls: {through[0]:.1%} and {through[1]:.1%}")
plt.show()
