"""Blocks and operators whose rows are split over processes.

Only reductions, random numbers, input and output, and the halo exchange of operators depend on the split; all
of them go through a `RowLayout` and its `Communicator`.
"""

from typing import TYPE_CHECKING

from ..system.exports import on_first_use
from .agreement import agreed, choose_gpu, require_same
from .communicator import Communicator, PeerError, communicator, share
from .launch import launched, world
from .layout import RowLayout, is_petsc, partial_sums, petsc_rows
from .traffic import Traffic, current_traffic, recorded_traffic

if TYPE_CHECKING:
    from .files import read_rows
else:
    __getattr__, __dir__ = on_first_use(__name__, {"files": "read_rows"})

__all__ = [
    "Communicator",
    "PeerError",
    "RowLayout",
    "Traffic",
    "agreed",
    "choose_gpu",
    "communicator",
    "current_traffic",
    "is_petsc",
    "launched",
    "partial_sums",
    "petsc_rows",
    "read_rows",
    "recorded_traffic",
    "require_same",
    "share",
    "world",
]
