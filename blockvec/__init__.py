"""blockvec: block-vector linear algebra at hardware limits, on NumPy and CuPy arrays.

Examples
--------
>>> import blockvec as bv
>>> A = bv.as_operator(bv.models.model("laplace2d:n=30"))
>>> V = bv.BlockVector.random(A.shape[1], 4, rng=0)
>>> H = V.T @ (A @ V)
>>> H.shape
(4, 4)
>>> w, X = bv.eigsh(bv.models.model("laplace2d:n=30"), k=3, which="SA")
>>> w.round(6).tolist()
[0.020523, 0.051201, 0.051201]
"""

from .system import startup  # noqa: F401  before libraries, whose import takes a while

# isort: split

import importlib
from typing import TYPE_CHECKING, Any

from . import errors, models
from .adapters import as_operator
from .backends import array_namespace, run_in_threads, single_threaded_blas
from .blockvector import BlockVector
from .config import Options, option_context, options, set_default_options
from .explanation import explain
from .factorization import Factorization, factorize
from .fused import Applied
from .graphs import Recorder
from .io import read_matrix
from .matrices import open_matrix
from .operators import Operator
from .parallel import RowLayout
from .parallel.operator import DistributedOperator
from .parallel.partition import Partition
from .precompile import precompiled
from .profile import Profile, profile
from .rows import RowFunction
from .small_matrices import FactorReport, InverseFactor, inverse_factor, start_copies, start_copy

if TYPE_CHECKING:
    from . import solvers
    from .solvers import count_eigenvalues, eigsh

__version__ = "0.2.0"

__all__ = [
    "Applied",
    "BlockVector",
    "DistributedOperator",
    "FactorReport",
    "Factorization",
    "InverseFactor",
    "Operator",
    "Options",
    "Partition",
    "Profile",
    "Recorder",
    "RowFunction",
    "RowLayout",
    "__version__",
    "array_namespace",
    "as_operator",
    "count_eigenvalues",
    "eigsh",
    "errors",
    "explain",
    "factorize",
    "inverse_factor",
    "models",
    "open_matrix",
    "option_context",
    "options",
    "precompiled",
    "profile",
    "read_matrix",
    "run_in_threads",
    "set_default_options",
    "single_threaded_blas",
    "solvers",
    "start_copies",
    "start_copy",
]


def __getattr__(name: str) -> Any:
    """Import the solvers on first use: they are a package of their own, which imports this one."""
    if name in ("count_eigenvalues", "eigsh", "solvers"):
        solvers = importlib.import_module(".solvers", __name__)
        return solvers if name == "solvers" else getattr(solvers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
