"""Matrices of petsc4py, recognised by their methods: each process gives the rows that it holds."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp

from ..errors import DTypeError, OptionError
from .layout import RowLayout


def is_petsc(A: Any) -> bool:
    """Check whether A is a ``petsc4py.PETSc.Mat``."""
    return hasattr(A, "getValuesCSR") and hasattr(A, "getOwnershipRange")


def petsc_rows(A: Any, comm: Any = None) -> tuple[Any, RowLayout | None]:
    """Copy the rows of an assembled matrix of petsc4py that this process holds; all processes call it.

    Parameters
    ----------
    A : petsc4py.PETSc.Mat
        Of a type with stored rows, such as ``"aij"``.
    comm : mpi4py.MPI.Comm or Communicator, optional
        The processes of A, if not by A's own communicator.

    Returns
    -------
    csr_array, shape (n_local, n_cols)
    RowLayout or None
        The split of the rows; None for a matrix of one process.

    Raises
    ------
    DTypeError, OptionError
        For a matrix without stored rows, such as ``"shell"``, and for one that is not assembled.
    """
    kind = A.getType()
    if "aij" not in kind or "sbaij" in kind:
        raise DTypeError(
            f"got a matrix of PETSc's type {kind!r}; convert it by A.convert('aij'), or give a function."
        )
    if not A.isAssembled():
        raise OptionError("got a matrix of PETSc that is not assembled; call A.assemble().")
    first, end = A.getOwnershipRange()
    starts, columns, values = A.getValuesCSR()
    rows = sp.csr_array((values, columns, starts), shape=(end - first, A.getSize()[1]))
    if A.getComm().getSize() == 1:
        return rows, None
    return rows, RowLayout.from_local(end - first, A.getComm().tompi4py() if comm is None else comm)
