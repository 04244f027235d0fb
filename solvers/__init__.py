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

from .eigsh import eigsh  # at once: its module has the same name

if TYPE_CHECKING:
    from .counting import EigenvalueCount, count_eigenvalues
    from .functions.bounds import SpectralBounds, spectral_bounds
    from .functions.density import DensityOfStates, DoubleMoments, density_of_states, double_moments
    from .functions.expm import evolve, expm_multiply
    from .functions.funm import funm_multiply, funm_multiply_krylov
    from .functions.traces import LogDeterminant, TraceEstimate, logdet, trace
    from .iterations.correction import CorrectionProblem, JacobiDavidsonOptions
    from .linear import (
        FactorPreconditioner,
        JacobiPreconditioner,
        Linear,
        MultigridPreconditioner,
        block_gmres,
        block_minres,
    )
    from .linear.front import cg, gmres, minres, solve
    from .locally_optimal import lobpcg
    from .orthogonalization import orthogonalize
    from .planning import Plan, plan
    from .problem import IterationState
    from .replacement import replace, replace_eigsh
    from .result import ConvergenceWarning, EigenResult, Interrupted, NoConvergence
    from .singular.triplets import SvdResult, svds
    from .sizes import memory_needed
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
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
        },
    )
    renamed(f"{__name__}.orthogonalize", f"{__name__}.orthogonalization")  # name of 0.2, until 0.4

__all__ = [
    "ConvergenceWarning",
    "CorrectionProblem",
    "DensityOfStates",
    "DoubleMoments",
    "EigenResult",
    "EigenvalueCount",
    "FactorPreconditioner",
    "Interrupted",
    "IterationState",
    "JacobiDavidsonOptions",
    "JacobiPreconditioner",
    "Linear",
    "LogDeterminant",
    "MultigridPreconditioner",
    "NoConvergence",
    "Plan",
    "SpectralBounds",
    "SvdResult",
    "TraceEstimate",
    "block_gmres",
    "block_minres",
    "cg",
    "count_eigenvalues",
    "density_of_states",
    "double_moments",
    "eigsh",
    "evolve",
    "expm_multiply",
    "funm_multiply",
    "funm_multiply_krylov",
    "gmres",
    "lobpcg",
    "logdet",
    "memory_needed",
    "minres",
    "orthogonalize",
    "plan",
    "replace",
    "replace_eigsh",
    "solve",
    "spectral_bounds",
    "svds",
    "trace",
]
