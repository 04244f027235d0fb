r"""
Vibrations of a bridge, from two files
======================================

Programs for structures write the stiffness and the mass of a model to files. Here, both
files come from a steel truss bridge with a span of 60 m.

The modes satisfy :math:`K u = \omega^2 M u`. The lowest frequencies are the ones that wind
and pedestrians can excite.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.io
import scipy.sparse as sp
from blockvec import eigsh, read_matrix

# %%
# The truss: nodes of the lower and the upper chord, and the bars between them.

panels = 20
lower = np.arange(panels + 1)
upper = lower[:-1] + panels + 1
nodes = np.vstack(
    [np.c_[3.0 * lower, 0 * lower], np.c_[3.0 * lower[:-1] + 1.5, 0 * upper + 4.0]]
)
ends = [
    (lower[:-1], lower[1:]),
    (upper[:-1], upper[1:]),
    (lower[:-1], upper),
    (upper, lower[1:]),
]
bars = np.hstack(ends).T

# %%
# A bar is a spring along its axis. Its row in ``B`` maps the motions of its ends, x and y
# of each node in turn, to its elongation. The bridge lies on bearings: the left end is
# fixed, the right end can move along x.

along = nodes[bars[:, 1]] - nodes[bars[:, 0]]
length = np.linalg.norm(along, axis=1)
signs = np.c_[-along, along] / length[:, None]
columns = np.c_[2 * bars[:, 0], 2 * bars[:, 0] + 1, 2 * bars[:, 1], 2 * bars[:, 1] + 1]
start = np.arange(0, columns.size + 1, 4)
B = sp.csr_array((signs.ravel(), columns.ravel(), start), shape=(len(bars), nodes.size))
area, modulus, mass_density = 0.01, 210e9, 7850.0  # m^2, Pa, kg / m^3
K = B.T @ sp.diags_array(modulus * area / length) @ B
half = mass_density * area * length / 2  # of a bar, at each of its ends
M = sp.diags_array(
    np.repeat(np.bincount(bars.ravel(), np.repeat(half, 2)), 2), format="csr"
)
free = np.setdiff1d(np.arange(nodes.size), [0, 1, 2 * panels + 1])

folder = Path(tempfile.mkdtemp())
for name, matrix in (("stiffness", K), ("mass", M)):
    scipy.io.mmwrite(folder / f"{name}.mtx", matrix[free][:, free], symmetry="symmetric")

# %%
# From here on, only the files are needed.

K, M = (read_matrix(folder / f"{name}.mtx") for name in ("stiffness", "mass"))
w, U = eigsh(K, k=6, M=M, sigma=0, rng=0)
frequencies = np.sqrt(w) / (2 * np.pi)
print(frequencies.round(2), "Hz")

# %%
# The six lowest modes, enlarged:

figure, axes = plt.subplots(3, 2, figsize=(9, 4.5), layout="constrained")
for ax, frequency, mode in zip(axes.flat, frequencies, U.T, strict=True):
    motion = np.zeros(nodes.size)
    motion[free] = mode * 2.5 / np.abs(mode).max()
    moved = nodes + motion.reshape(-1, 2)
    ax.plot(*nodes[bars].transpose(2, 1, 0), color="lightgray", linewidth=0.8)
    ax.plot(*moved[bars].transpose(2, 1, 0), color="tab:blue", linewidth=1.2)
    ax.set_title(f"{frequency:.2f} Hz", fontsize=10)
    ax.set_aspect("equal")
    ax.set_axis_off()
plt.show()
