"""Blocks of shifted linear systems, one shift per column, by MINRES and GMRES."""

from .gmres import block_gmres
from .minres import block_minres
from .preconditioners import JacobiPreconditioner
from .systems import Linear

__all__ = ["JacobiPreconditioner", "Linear", "block_gmres", "block_minres"]
