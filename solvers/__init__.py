"""Block eigensolvers on blockvec's block vectors.

Examples
--------
>>> import blockvec
>>> from solvers import eigsh
>>> A = blockvec.models.model("laplace2d:n=30")
>>> w, V = eigsh(A, k=3, which="SA", rng=0)
>>> w.round(6).tolist()
[0.020523, 0.051254, 0.051254]
"""

from .block_lanczos import IterationState, LanczosOptions, LanczosResult, block_lanczos
from .eigsh import eigsh
from .orthogonalize import BCGS2, SVQB, CholQR2, orthogonalize
from .result import ConvergenceWarning, EigenResult, Interrupted, NoConvergence

__all__ = [
    "BCGS2",
    "SVQB",
    "CholQR2",
    "ConvergenceWarning",
    "EigenResult",
    "Interrupted",
    "IterationState",
    "LanczosOptions",
    "LanczosResult",
    "NoConvergence",
    "block_lanczos",
    "eigsh",
    "orthogonalize",
]
