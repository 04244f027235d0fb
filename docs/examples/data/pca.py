r"""
Principal components of sparse data
===================================

Principal components of a sparse matrix, without forming the dense matrix of differences
from the mean. The data imitate the genes of three populations.

Each row of :math:`G` holds, for one person, how many copies of each of 5000 rare variants
of a gene the person has. The first components show which population a person descends from
[1]_. They are singular vectors of :math:`G - 1 \mu^T`, where :math:`\mu` are the means of
the columns.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from blockvec import svds

# %%
# Three populations with their own frequencies of the variants, and a family of mixed
# descent.

rng = np.random.default_rng(0)
ancestral = rng.beta(0.5, 8, 5000)
populations = np.array([rng.beta(20 * ancestral, 20 * (1 - ancestral)) for _ in range(3)])
descent = np.repeat(np.eye(3), 150, axis=0)
mixed = rng.uniform(size=(60, 1)) * [[1, -1, 0]] + [[0, 1, 0]]
frequencies = np.vstack([descent, mixed]) @ populations
G = sp.csr_array(rng.binomial(2, frequencies).astype(float))
print(f"{G.nnz / np.prod(G.shape):.0%} of the elements are not zero")

# %%
# With ``center=True`` the means are subtracted from products with the sparse matrix.

u, s, _ = svds(G, k=4, center=True, tol=1e-8, rng=0)
variance = s[::-1] ** 2 / (G.shape[0] - 1)
scores = (u * s)[:, ::-1]

# %%
# Two components separate three populations. People of mixed descent lie between them.

figure, ax = plt.subplots(figsize=(6, 4.2), layout="constrained")
for label, rows in zip("ABC", np.split(scores[:450], 3), strict=True):
    ax.plot(*rows[:, :2].T, ".", label=f"population {label}")
ax.plot(*scores[450:, :2].T, "x", color="gray", label="A and B")
ax.set_xlabel(f"first component, variance {variance[0]:.1f}")
ax.set_ylabel(f"second component, variance {variance[1]:.1f}")
ax.legend()
plt.show()

# %%
# .. [1] J. Novembre et al., Nature 456, 98 (2008).
