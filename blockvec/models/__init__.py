"""Physics matrices, from a string, from a function, or row by row.

``model("laplace3d:n=64")`` and ``laplace3d(n=64)`` return the same ``scipy.sparse.csr_array``;
``generator("laplace3d:n=64").rows(start, stop)`` returns a range of its rows.
``operator("xxz:sites=30,up=15")`` makes a chain of spins or electrons an operator without a matrix.
:func:`available` lists the models, :mod:`blockvec.models.spectra` contains spectra in closed form.
"""

from typing import TYPE_CHECKING

from ..system.exports import on_first_use

if TYPE_CHECKING:
    from ..operators.row_generator import RowGenerator as RowGenerator
    from . import spectra as spectra
    from .catalogue import available as available
    from .catalogue import generator as generator
    from .catalogue import model as model
    from .catalogue import operator as operator
    from .lattice import anderson as anderson
    from .lattice import graphene as graphene
    from .lattice import hofstadter as hofstadter
    from .lattice import laplace1d as laplace1d
    from .lattice import laplace2d as laplace2d
    from .lattice import laplace3d as laplace3d
    from .lattice import stencil27 as stencil27
    from .many_body import hubbard as hubbard
    from .many_body import xxz as xxz
    from .random_structure import banded as banded
    from .random_structure import rmat as rmat
else:
    _NAMES = {
        "catalogue": "available generator model operator",
        "lattice": "anderson graphene hofstadter laplace1d laplace2d laplace3d stencil27",
        "many_body": "hubbard xxz",
        "random_structure": "banded rmat",
        ".operators.row_generator": "RowGenerator",
    }
    __getattr__, __dir__ = on_first_use(__name__, _NAMES)
    __all__ = ["spectra", *" ".join(_NAMES.values()).split()]
