r"""
Partition of a graph by its Fiedler vector
==========================================

A few wires hold two parts of a network together. The second eigenvector of the graph's
Laplacian finds them.

The Laplacian :math:`L = D - W` of a connected graph has the eigenvalue zero with a constant
vector. The next eigenvector is Fiedler's. It varies slowly along the edges, so that a cut
at its median goes through few of them. The smaller its eigenvalue, the fewer edges hold
both halves together.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh
from matplotlib.collections import LineCollection
from scipy.sparse import coo_array
from scipy.sparse.csgraph import laplacian
from scipy.spatial import cKDTree

# %%
# A random geometric graph: points on a ring with a gap, with edges between neighbours.

rng = np.random.default_rng(0)
radius = np.sqrt(rng.uniform(0.3, 1, 2000))
angle = rng.uniform(0.2, 2 * np.pi - 0.2, 2000)
points = np.c_[radius * np.cos(angle), radius * np.sin(angle)]
edges = cKDTree(points).query_pairs(0.08, output_type="ndarray")
n = len(points)
W = coo_array((np.ones(len(edges)), edges.T), shape=(n, n)).tocsr()
L = laplacian(W + W.T)

# %%
# The constant vector is known: ``orthogonal_to`` leaves it out.

constant = np.full((n, 1), n**-0.5)
options = {"tol": 1e-8, "convergence": "norm", "rng": 0}
w, X = eigsh(L, k=3, which="SA", orthogonal_to=constant, **options)
fiedler = X[:, 0]
half = fiedler > np.median(fiedler)
is_cut = half[edges[:, 0]] != half[edges[:, 1]]
print(f"{is_cut.sum()} of {len(edges)} edges are cut")

# %%
# The signs of two eigenvectors give four parts.

figure, axes = plt.subplots(1, 2, figsize=(9, 4.5), layout="constrained")
axes[0].scatter(*points.T, c=fiedler, s=6, cmap="coolwarm")
axes[0].set_title("Fiedler vector and the edges that are cut")
axes[1].scatter(*points.T, c=2 * half + (X[:, 1] > 0), s=6, cmap="tab10")
axes[1].set_title("four parts")
for ax, drawn, colour in zip(
    axes, (edges[is_cut], edges), ("black", "lightgray"), strict=True
):
    ax.add_collection(
        LineCollection(points[drawn], colors=colour, linewidths=0.6, zorder=0)
    )
    ax.set_aspect("equal")
    ax.set_axis_off()
plt.show()
