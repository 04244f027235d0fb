"""Blocks of shifted linear systems, one shift per column, by MINRES and GMRES."""

from typing import TYPE_CHECKING

from blockvec.system.exports import on_first_use

if TYPE_CHECKING:
    from .gmres import block_gmres
    from .minres import block_minres
    from .preconditioners import FactorPreconditioner, JacobiPreconditioner, MultigridPreconditioner
    from .systems import Linear
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "gmres": "block_gmres",
            "minres": "block_minres",
            "preconditioners": "FactorPreconditioner JacobiPreconditioner MultigridPreconditioner",
            "systems": "Linear",
        },
    )

__all__ = [
    "FactorPreconditioner",
    "JacobiPreconditioner",
    "Linear",
    "MultigridPreconditioner",
    "block_gmres",
    "block_minres",
]
