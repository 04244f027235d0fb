r"""
Modes of a drum
===============

The modes of a drum with a clamped rim, by finite elements of scikit-fem: a generalised
problem with a stiffness matrix and a mass matrix.

A mode :math:`u` satisfies :math:`-\Delta u = \lambda u` and vibrates at a frequency
proportional to :math:`\sqrt\lambda`. Finite elements turn this into :math:`K u = \lambda M
u` with sparse matrices. If a rotation of a mode gives another mode, their eigenvalue is
double, and both modes must be found.
"""

import matplotlib.pyplot as plt
import numpy as np
from blockvec import eigsh
from skfem import Basis, ElementTriP2, MeshTri2
from skfem.models.poisson import laplace, mass

# %%
# scikit-fem assembles both matrices, here for quadratic elements on triangles with curved
# edges. The rim does not move: its unknowns are left out.

mesh = MeshTri2.init_circle(4)
basis = Basis(mesh, ElementTriP2())
free = basis.complement_dofs(basis.get_dofs())
K, M = (form.assemble(basis)[free][:, free] for form in (laplace, mass))

# %%
# ``sigma=0`` computes the eigenvalues nearest to zero by shift-invert. The vectors are
# orthonormal in the inner product of :math:`M`.

result = eigsh(K, k=12, M=M, sigma=0, rng=0, return_info=True)
print(result)

# %%
# The tones of a drum are no multiples of the lowest one, which is why a drum has no clear
# pitch.

figure, axes = plt.subplots(3, 4, figsize=(8, 6), layout="constrained")
for ax, value, mode in zip(
    axes.flat, result.eigenvalues, result.eigenvectors.T, strict=True
):
    u = basis.zeros()
    u[free] = mode
    corners = u[basis.nodal_dofs[0]]
    most = np.abs(corners).max()
    ax.tripcolor(
        *mesh.p[:, : corners.size],
        mesh.t[:3].T,
        corners,
        shading="gouraud",
        cmap="RdBu",
        vmin=-most,
        vmax=most,
    )
    ax.set_title(f"{np.sqrt(value / result.eigenvalues[0]):.3f}", fontsize=10)
    ax.set_aspect("equal")
    ax.set_axis_off()
plt.show()
