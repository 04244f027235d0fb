r"""
Chladni figures of a free plate
===============================

Sand on a vibrating plate collects along the lines that stay at rest. These are the modes of
a thin square plate with free edges.

The modes are eigenvectors of :math:`\Delta^2 u = \omega^2 u` with the natural boundary
conditions of an elastic plate. A free plate can also move without bending: three modes have
the frequency zero.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh
from skfem import Basis, BilinearForm, ElementTriArgyris, MeshTri
from skfem.helpers import dd, ddot, trace
from skfem.models.poisson import mass

# %%
# The energy of bending contains second derivatives. Argyris' element has continuous first
# derivatives, as the energy requires. Poisson's ratio of 0.3 is that of steel.


@BilinearForm
def bending(u, v, _):
    return 0.7 * ddot(dd(u), dd(v)) + 0.3 * trace(dd(u)) * trace(dd(v))


mesh = MeshTri.init_symmetric().refined(2)
basis = Basis(mesh, ElementTriArgyris())
K, M = bending.assemble(basis), mass.assemble(basis)

# %%
# The stiffness matrix is singular because of the three rigid motions. A shift below zero
# makes :math:`K - \sigma M` positive definite.

w, X = eigsh(K, k=18, M=M, sigma=-10.0, rng=0)
frequencies = np.sqrt(np.maximum(w, 0))
print(frequencies.round(2))

# %%
# Dark lines are the nodal lines, where sand collects.

figure, axes = plt.subplots(3, 5, figsize=(8, 5), layout="constrained")
for ax, frequency, mode in zip(axes.flat, frequencies[3:], X.T[3:], strict=True):
    fine, u = basis.refinterp(mode, nrefs=4)
    ax.tripcolor(*fine.p, fine.t.T, np.abs(u) ** 0.5, shading="gouraud", cmap="copper")
    ax.set_title(f"{frequency:.2f}", fontsize=9)
    ax.set_aspect("equal")
    ax.set_axis_off()
plt.show()
