"""blockvec: block-vector linear algebra at hardware limits, on NumPy and CuPy arrays.

Examples
--------
>>> import blockvec as bv
>>> A = bv.as_operator(bv.models.model("laplace2d:n=30"))
>>> V = bv.BlockVector.random(A.shape[1], 4, rng=0)
>>> H = V.T @ (A @ V)
>>> H.shape
(4, 4)
"""

from . import errors, models
from .adapters import as_operator
from .backends import array_namespace
from .blockvector import BlockVector
from .config import Options, option_context, options, set_default_options
from .explanation import explain
from .fused import Applied
from .graphs import Recorder
from .io import open_matrix, read_matrix
from .operators import Operator
from .precompile import precompiled
from .profile import Profile, profile
from .small_matrices import FactorReport, InverseFactor, inverse_factor, start_copy

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "BlockVector",
    "FactorReport",
    "InverseFactor",
    "Operator",
    "Options",
    "Profile",
    "Recorder",
    "__version__",
    "array_namespace",
    "as_operator",
    "errors",
    "explain",
    "inverse_factor",
    "models",
    "open_matrix",
    "option_context",
    "options",
    "precompiled",
    "profile",
    "read_matrix",
    "set_default_options",
    "start_copy",
]
