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
    from . import errors as errors
    from . import models as models
    from . import solvers as solvers
    from .backends import array_namespace as array_namespace
    from .backends import run_in_threads as run_in_threads
    from .backends import single_threaded_blas as single_threaded_blas
    from .blocks.blockvector import BlockVector as BlockVector
    from .explanation import explain as explain
    from .io import read_matrix as read_matrix
    from .models.catalogue import open_matrix as open_matrix
    from .operations.elementwise import RowFunction as RowFunction
    from .operations.graphs import Recorder as Recorder
    from .operations.profile import Profile as Profile
    from .operations.profile import profile as profile
    from .operations.small_matrices import FactorReport as FactorReport
    from .operations.small_matrices import InverseFactor as InverseFactor
    from .operations.small_matrices import inverse_factor as inverse_factor
    from .operations.small_matrices import start_copies as start_copies
    from .operations.small_matrices import start_copy as start_copy
    from .operators.adapters import as_operator as as_operator
    from .operators.distributed import DistributedOperator as DistributedOperator
    from .operators.factorization import Factorization as Factorization
    from .operators.factorization import factorize as factorize
    from .operators.fused import Applied as Applied
    from .operators.operator import Operator as Operator
    from .operators.partition import Partition as Partition
    from .parallel import RowLayout as RowLayout
    from .precompile import precompiled as precompiled
    from .solvers import *  # noqa: F403
    from .system.config import Options as Options
    from .system.config import option_context as option_context
    from .system.config import options as options
    from .system.config import set_default_options as set_default_options
else:
    _NAMES = {
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
    }
    __getattr__, __dir__ = on_first_use(__name__, _NAMES)
    __all__ = ["__version__", "errors", "models", "solvers", *" ".join(_NAMES.values()).split()]

__version__ = "0.3.0"
