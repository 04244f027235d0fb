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
    from .iterations.jd_options import CorrectionProblem, JacobiDavidsonOptions
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
    from .replacement import replace_eigsh
    from .result import ConvergenceWarning, EigenResult, Interrupted, NoConvergence
    from .sizes import memory_needed
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "counting": "EigenvalueCount count_eigenvalues",
            "iterations.jd_options": "CorrectionProblem JacobiDavidsonOptions",
            "linear": "FactorPreconditioner JacobiPreconditioner Linear MultigridPreconditioner "
            "block_gmres block_minres",
            "linear.front": "cg gmres minres solve",
            "locally_optimal": "lobpcg",
            "orthogonalization": "orthogonalize",
            "problem": "IterationState",
            "replacement": "replace_eigsh",
            "result": "ConvergenceWarning EigenResult Interrupted NoConvergence",
            "planning": "Plan plan",
            "sizes": "memory_needed",
        },
    )
    renamed(f"{__name__}.orthogonalize", f"{__name__}.orthogonalization")  # name of 0.2, until 0.4

__all__ = [
    "ConvergenceWarning",
    "CorrectionProblem",
    "EigenResult",
    "EigenvalueCount",
    "FactorPreconditioner",
    "Interrupted",
    "IterationState",
    "JacobiDavidsonOptions",
    "JacobiPreconditioner",
    "Linear",
    "MultigridPreconditioner",
    "NoConvergence",
    "Plan",
    "block_gmres",
    "block_minres",
    "cg",
    "count_eigenvalues",
    "eigsh",
    "gmres",
    "lobpcg",
    "memory_needed",
    "minres",
    "orthogonalize",
    "plan",
    "replace_eigsh",
    "solve",
]
