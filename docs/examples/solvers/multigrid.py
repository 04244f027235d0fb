r"""
Multigrid as a preconditioner
=============================

The lowest modes of a box by Jacobi-Davidson, with algebraic multigrid of PyAMG as the
preconditioner.

The lowest modes are smooth, and a V-cycle of multigrid solves :math:`A x = b` almost
exactly at the cost of a few products with :math:`A`. This leaves little work to the
iteration.
"""

import matplotlib.pyplot as plt
from blockvec import eigsh, models
from blockvec.solvers import MultigridPreconditioner

# %%
# PyAMG builds a hierarchy of coarser matrices by smoothed aggregation. The same solve
# without and with its V-cycle:

A = models.laplace3d(n=20)
options = {
    "which": "SA",
    "method": "jd",
    "tol": 1e-8,
    "convergence": "norm",
    "rng": 0,
    "return_info": True,
}
plain = eigsh(A, 10, **options)
preconditioned = eigsh(A, 10, preconditioner=MultigridPreconditioner(A), **options)
for name, result in (("plain", plain), ("multigrid", preconditioned)):
    columns, cycles = (
        result.info[f"{part}_columns"] for part in ("operator", "preconditioner")
    )
    print(f"{name:10}{columns} columns of A, {cycles} V-cycles")

# %%
# Each line is the residual of one pair. Those below the dashed line have converged.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, result, title in zip(
    axes, (plain, preconditioned), ("plain", "multigrid"), strict=True
):
    result.plot(ax)
    ax.set_title(title)
plt.show()
