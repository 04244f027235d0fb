r"""
Build your own: LOBPCG in thirty lines
======================================

A block eigensolver from the literature, written with the operations of BlockVector.

LOBPCG [1]_ keeps three blocks: the current vectors :math:`X`, the preconditioned residuals
:math:`Z`, and the last changes :math:`P`. Each step computes the best approximations in the
space of all three.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.fft
import scipy.linalg
import scipy.sparse as sp
from blockvec import BlockVector, as_operator, models

# %%
# ``S[:, i:j]`` is a view: ``X``, ``Z`` and ``P`` are columns of one block ``S``, and one
# product with ``S.H`` reads all of them once. Results of ``S.H @ W`` and ``S.gram()`` are
# small matrices.


def lobpcg(A, X, precondition, steps):
    A, m = as_operator(A), X.n_cols
    S = X.like(3 * m)
    S[:, :m] = X
    X, Z, P = (S[:, i * m : (i + 1) * m] for i in range(3))
    history = []
    for step in range(steps):
        AX = A @ X
        values, C = scipy.linalg.eigh(X.H @ AX, X.gram())
        X @= C
        R = AX @ C - X * values
        history.append(R.norms())
        Z[:, :] = precondition(R)
        V = S if step else S[:, : 2 * m]
        V.normalize()
        # Orthonormal combinations of V; directions that are almost dependent are left out.
        d, U = scipy.linalg.eigh(V.gram())
        U = U[:, d > 1e-13 * d[-1]] / np.sqrt(d[d > 1e-13 * d[-1]])
        _, C = scipy.linalg.eigh(U.T @ (V.H @ (A @ V)) @ U)
        C = U @ C[:, :m]
        change = V[:, m:] @ C[m:]
        X[:, :] = X @ C[:m] + change
        P[:, :] = change
    return values, X, np.array(history)


# %%
# A test: a particle in a potential of eight wells, in two dimensions. The preconditioner
# solves the problem without the wells by sine transforms.

n = 64
rng = np.random.default_rng(0)
x, y = np.meshgrid(*[np.linspace(0, 1, n)] * 2)
wells = sum(
    np.exp(-((x - a) ** 2 + (y - b) ** 2) / 0.005)
    for a, b in rng.uniform(0.15, 0.85, (8, 2))
)
A = models.laplace2d(n=n) + sp.diags_array(0.2 * (wells.max() - wells).ravel())
sines = 4 * np.sin(np.arange(1, n + 1) * np.pi / (2 * n + 2)) ** 2


def poisson(R):
    modes = scipy.fft.dstn(R.array.reshape(n, n, -1), type=1, axes=(0, 1))
    modes /= (sines[:, None] + sines)[:, :, None]
    return scipy.fft.idstn(modes, type=1, axes=(0, 1)).reshape(n * n, -1)


start = BlockVector.random(n * n, 8, rng=0)
_, _, plain = lobpcg(A, start, lambda R: R, steps=60)
values, X, history = lobpcg(A, start, poisson, steps=60)
print(values.round(6))

# %%
# The preconditioner makes the difference. Right: the sum of the densities of all eight
# states over the potential.

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
left.semilogy(plain, color="tab:gray", linewidth=0.8)
left.semilogy(history, color="tab:blue", linewidth=0.8)
left.set(
    xlabel="step", ylabel="residual norm", title="without (gray) and with preconditioner"
)
right.imshow(np.sum(X.array**2, axis=1).reshape(n, n), cmap="magma")
right.contour(wells, levels=5, colors="white", linewidths=0.4)
right.set_axis_off()
plt.show()

# %%
# .. [1] A. V. Knyazev, SIAM J. Sci. Comput. 23, 517 (2001).
