"""Block eigensolvers on blockvec's block vectors.

Examples
--------
>>> import blockvec
>>> from solvers import eigsh
>>> A = blockvec.models.model("laplace2d:n=30")
>>> w, V = eigsh(A, k=3, which="SA", rng=0)
>>> w.round(6).tolist()
[0.020523, 0.051201, 0.051201]
"""

from typing import TYPE_CHECKING

import blockvec  # noqa: F401  before NumPy: it reports a Ctrl-C during imports
from blockvec.system.exports import on_first_use, renamed

from .eigsh import eigsh as eigsh  # at once: its module has the same name

if TYPE_CHECKING:
    from .counting import EigenvalueCount as EigenvalueCount
    from .counting import count_eigenvalues as count_eigenvalues
    from .functions.bounds import SpectralBounds as SpectralBounds
    from .functions.bounds import spectral_bounds as spectral_bounds
    from .functions.density import DensityOfStates as DensityOfStates
    from .functions.density import DoubleMoments as DoubleMoments
    from .functions.density import density_of_states as density_of_states
    from .functions.density import double_moments as double_moments
    from .functions.expm import evolve as evolve
    from .functions.expm import expm_multiply as expm_multiply
    from .functions.funm import funm_multiply as funm_multiply
    from .functions.funm import funm_multiply_krylov as funm_multiply_krylov
    from .functions.traces import LogDeterminant as LogDeterminant
    from .functions.traces import TraceEstimate as TraceEstimate
    from .functions.traces import logdet as logdet
    from .functions.traces import trace as trace
    from .iterations.correction import CorrectionProblem as CorrectionProblem
    from .iterations.correction import JacobiDavidsonOptions as JacobiDavidsonOptions
    from .linear import FactorPreconditioner as FactorPreconditioner
    from .linear import JacobiPreconditioner as JacobiPreconditioner
    from .linear import Linear as Linear
    from .linear import MultigridPreconditioner as MultigridPreconditioner
    from .linear import block_gmres as block_gmres
    from .linear import block_minres as block_minres
    from .linear.front import cg as cg
    from .linear.front import gmres as gmres
    from .linear.front import minres as minres
    from .linear.front import solve as solve
    from .locally_optimal import lobpcg as lobpcg
    from .orthogonalization import orthogonalize as orthogonalize
    from .planning import Plan as Plan
    from .planning import plan as plan
    from .problem import IterationState as IterationState
    from .replacement import replace as replace
    from .replacement import replace_eigsh as replace_eigsh
    from .result import ConvergenceWarning as ConvergenceWarning
    from .result import EigenResult as EigenResult
    from .result import Interrupted as Interrupted
    from .result import NoConvergence as NoConvergence
    from .singular.triplets import SvdResult as SvdResult
    from .singular.triplets import svds as svds
    from .sizes import memory_needed as memory_needed
else:
    _NAMES = {
        "counting": "EigenvalueCount count_eigenvalues",
        "functions.bounds": "SpectralBounds spectral_bounds",
        "functions.density": "DensityOfStates DoubleMoments density_of_states double_moments",
        "functions.expm": "evolve expm_multiply",
        "functions.funm": "funm_multiply funm_multiply_krylov",
        "functions.traces": "LogDeterminant TraceEstimate logdet trace",
        "iterations.correction": "CorrectionProblem JacobiDavidsonOptions",
        "linear": "FactorPreconditioner JacobiPreconditioner Linear MultigridPreconditioner "
        "block_gmres block_minres",
        "linear.front": "cg gmres minres solve",
        "locally_optimal": "lobpcg",
        "orthogonalization": "orthogonalize",
        "problem": "IterationState",
        "replacement": "replace replace_eigsh",
        "result": "ConvergenceWarning EigenResult Interrupted NoConvergence",
        "planning": "Plan plan",
        "singular.triplets": "SvdResult svds",
        "sizes": "memory_needed",
    }
    __getattr__, __dir__ = on_first_use(__name__, _NAMES)
    __all__ = ["eigsh", *" ".join(_NAMES.values()).split()]
    renamed(f"{__name__}.orthogonalize", f"{__name__}.orthogonalization")  # name of 0.2, until 0.4
