r"""
Entropy of a Gaussian field by a log-determinant
================================================

How much a measurement tells about a field on a mesh: the entropy of the field before and
after it, from log-determinants of sparse matrices.

A Gaussian field with the precision matrix (inverse covariance) :math:`Q` of :math:`n` rows
has the entropy :math:`(n \log 2 \pi e - \log\det Q) / 2`. A measurement of some points with
the noise :math:`\sigma` adds :math:`1/\sigma^2` to their diagonal elements [1]_. What it
tells is the difference of both entropies, half of the difference of two log-determinants.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from blockvec import logdet, models

# %%
# The field is smooth over about ten points: :math:`Q = (L + \kappa^2 I)^2` with the
# Laplacian :math:`L`.

n, kappa, sigma = 60, 0.3, 0.5
L = models.laplace2d(n=n) + kappa**2 * sp.eye_array(n * n)
Q = (L @ L).tocsr()
rng = np.random.default_rng(0)

# %%
# For more and more measured points, compute what they tell. Sparse factors give these
# numbers to rounding errors here; ``logdet`` takes them where they are predicted to be
# cheaper than random vectors, and tells which it took.

counts = [0, 10, 30, 100, 300, 1000, 3600]
points = rng.permutation(n * n)
before, information = logdet(Q), []
for count in counts:
    is_measured = np.zeros(n * n)
    is_measured[points[:count]] = 1
    after = logdet(Q + sp.diags_array(is_measured / sigma**2).tocsr())
    information.append((after.value - before.value) / 2)
print(before.method, np.round(information, 2))

# %%
# The trace of :math:`\log Q` by random vectors agrees, within the error that it reports.

estimate = logdet(Q, 1e-2, method="quadrature", rng=0)
print(f"{estimate.value:.0f} +- {estimate.error:.0f}, exactly {before.value:.0f}")

# %%
# The first points tell most: later ones have measured neighbours.

figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
axes.plot(counts, information, "o-")
alone = np.array(counts[:4]) * information[1] / counts[1]
axes.plot(counts[:4], alone, "--", label="without correlations")
axes.set(xlabel="measured points", ylabel="information (nats)")
axes.legend()
plt.show()

# %%
# .. [1] H. Rue, L. Held, Gaussian Markov Random Fields (2005), section 2.3.
