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

from typing import TYPE_CHECKING

from .system.exports import on_first_use

if TYPE_CHECKING:
    from . import errors, models, solvers
    from .backends import array_namespace, run_in_threads, single_threaded_blas
    from .blocks.blockvector import BlockVector
    from .explanation import explain
    from .io import read_matrix
    from .models.catalogue import open_matrix
    from .operations.elementwise import RowFunction
    from .operations.graphs import Recorder
    from .operations.profile import Profile, profile
    from .operations.small_matrices import (
        FactorReport,
        InverseFactor,
        inverse_factor,
        start_copies,
        start_copy,
    )
    from .operators.adapters import as_operator
    from .operators.distributed import DistributedOperator
    from .operators.factorization import Factorization, factorize
    from .operators.fused import Applied
    from .operators.operator import Operator
    from .operators.partition import Partition
    from .parallel import RowLayout
    from .precompile import precompiled
    from .solvers import *  # noqa: F403
    from .system.config import Options, option_context, options, set_default_options
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "backends": "array_namespace run_in_threads single_threaded_blas",
            "blocks.blockvector": "BlockVector",
            "explanation": "explain",
            "io": "read_matrix",
            "models.catalogue": "open_matrix",
            "operations.elementwise": "RowFunction",
            "operations.graphs": "Recorder",
            "operations.profile": "Profile profile",
            "operations.small_matrices": "FactorReport InverseFactor inverse_factor start_copies start_copy",
            "operators.adapters": "as_operator",
            "operators.distributed": "DistributedOperator",
            "operators.factorization": "Factorization factorize",
            "operators.fused": "Applied",
            "operators.operator": "Operator",
            "operators.partition": "Partition",
            "parallel": "RowLayout",
            "precompile": "precompiled",
            "solvers": "cg count_eigenvalues density_of_states double_moments eigsh evolve expm_multiply "
            "funm_multiply funm_multiply_krylov gmres lobpcg logdet minres orthogonalize plan "
            "replace solve spectral_bounds svds trace",
            "system.config": "Options option_context options set_default_options",
        },
    )

__version__ = "0.3.0"

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
    "cg",
    "count_eigenvalues",
    "density_of_states",
    "double_moments",
    "eigsh",
    "errors",
    "evolve",
    "explain",
    "expm_multiply",
    "factorize",
    "funm_multiply",
    "funm_multiply_krylov",
    "gmres",
    "inverse_factor",
    "lobpcg",
    "logdet",
    "minres",
    "models",
    "open_matrix",
    "option_context",
    "options",
    "orthogonalize",
    "plan",
    "precompiled",
    "profile",
    "read_matrix",
    "replace",
    "run_in_threads",
    "set_default_options",
    "single_threaded_blas",
    "solve",
    "solvers",
    "spectral_bounds",
    "start_copies",
    "start_copy",
    "svds",
    "trace",
]
