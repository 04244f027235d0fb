"""Physics matrices, from a string, from a function, or row by row.

``model("laplace3d:n=64")`` and ``laplace3d(n=64)`` return the same ``scipy.sparse.csr_array``;
``generator("laplace3d:n=64").rows(start, stop)`` returns a range of its rows.
``operator("xxz:sites=30,up=15")`` makes a chain of spins or electrons an operator without a matrix.
:func:`available` lists the models, :mod:`blockvec.models.spectra` contains spectra in closed form.
"""

from typing import TYPE_CHECKING

from ..system.exports import on_first_use

if TYPE_CHECKING:
    from ..operators.row_generator import RowGenerator
    from . import spectra
    from .catalogue import available, generator, model, operator
    from .lattice import anderson, graphene, hofstadter, laplace1d, laplace2d, laplace3d, stencil27
    from .many_body import hubbard, xxz
    from .random_structure import banded, rmat
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "catalogue": "available generator model operator",
            "lattice": "anderson graphene hofstadter laplace1d laplace2d laplace3d stencil27",
            "many_body": "hubbard xxz",
            "random_structure": "banded rmat",
            ".operators.row_generator": "RowGenerator",
        },
    )

__all__ = [
    "RowGenerator",
    "anderson",
    "available",
    "banded",
    "generator",
    "graphene",
    "hofstadter",
    "hubbard",
    "laplace1d",
    "laplace2d",
    "laplace3d",
    "model",
    "operator",
    "rmat",
    "spectra",
    "stencil27",
    "xxz",
]
