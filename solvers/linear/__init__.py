"""Blocks of linear systems, one shift per column: `cg`, `minres`, `gmres`, `solve`, and preconditioners."""

from .gmres import block_gmres
from .minres import block_minres
from .preconditioners import FactorPreconditioner, JacobiPreconditioner, MultigridPreconditioner
from .systems import Linear

__all__ = [
    "FactorPreconditioner",
    "JacobiPreconditioner",
    "Linear",
    "MultigridPreconditioner",
    "block_gmres",
    "block_minres",
]
