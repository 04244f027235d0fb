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

from typing import TYPE_CHECKING

from .profile import Profile, profile  # at once: their module has the name of one
from .system.exports import on_first_use

if TYPE_CHECKING:
    from . import errors, models, solvers
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
    from .rows import RowFunction
    from .small_matrices import FactorReport, InverseFactor, inverse_factor, start_copies, start_copy
    from .solvers import count_eigenvalues, eigsh, orthogonalize, plan
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "adapters": "as_operator",
            "backends": "array_namespace run_in_threads single_threaded_blas",
            "blockvector": "BlockVector",
            "config": "Options option_context options set_default_options",
            "explanation": "explain",
            "factorization": "Factorization factorize",
            "fused": "Applied",
            "graphs": "Recorder",
            "io": "read_matrix",
            "matrices": "open_matrix",
            "operators": "Operator",
            "parallel": "RowLayout",
            "parallel.operator": "DistributedOperator",
            "parallel.partition": "Partition",
            "precompile": "precompiled",
            "rows": "RowFunction",
            "small_matrices": "FactorReport InverseFactor inverse_factor start_copies start_copy",
            "solvers": "count_eigenvalues eigsh orthogonalize plan",
        },
    )

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
    "orthogonalize",
    "plan",
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
