"""Matrices in files, of which each process reads a part."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..io import existing, petsc, read_matrix
from .agreement import agreed
from .communicator import Communicator, communicator, share
from .layout import RowLayout


def read_rows(path: str | os.PathLike[str], comm: Any, layout: RowLayout | None = None) -> Any:
    r"""Read this process's rows of a matrix file; all processes call it.

    Of PETSc's binary files each process reads its rows. Other files are read by process 0, which needs memory
    for the whole matrix and sends the rows.

    Parameters
    ----------
    path : str or path
        A file as for `blockvec.read_matrix`, which all processes can read.
    comm : mpi4py.MPI.Comm, Communicator or None
        With None, or one process, all rows are read.
    layout : RowLayout, optional
        The split of the rows; default: equal ranges, as `eigsh` and `RowLayout.equal` split them.

    Returns
    -------
    csr_array, shape (n_local, n_cols), or array for a dense matrix
        As `blockvec.read_matrix` returns them. `eigsh` takes it with `comm`, and `as_operator` with a layout.

    Raises
    ------
    FileNotFoundError, FormatError
        As `blockvec.read_matrix`, on all processes.
    ShapeError
        If the file has another number of rows than the layout.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from blockvec.parallel import read_rows
    >>> text = "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 2.0\n2 1 -1.0\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "matrix.mtx")
    ...     _ = file.write_text(text)
    ...     read_rows(file, None).toarray().tolist()  # or comm=MPI.COMM_WORLD
    [[2.0, -1.0], [-1.0, 0.0]]
    """
    comm = communicator(comm)
    if comm is None:
        matrix = read_matrix(path)
        if layout is not None:
            layout.check_whole(matrix.shape[0])
        return matrix
    with agreed(comm):
        file = existing(path)
        with file.open("rb") as stream:
            head = stream.read(8)
        if head.startswith(petsc.SIGNATURES):
            with petsc.opened(file) as stored:
                layout = layout or RowLayout.equal(stored.n_rows, comm)
                layout.check_whole(stored.n_rows)
                lengths = stored.lengths(layout.first_row, layout.n_local)
                sums = RowLayout.from_local(int(lengths.sum()), layout.comm)  # refuses negative ones
                stored.check_sum(sums.n_global)
                rows = stored.rows(lengths, sums.first_row)
                rows.sum_duplicates()
                return rows
        return _rows_of_first(file, comm, layout)


def _rows_of_first(file: Any, comm: Communicator, layout: RowLayout | None) -> Any:
    """Read a file on process 0, and send each process its rows."""
    matrix = read_matrix(file) if comm.rank == 0 else None
    described = None if matrix is None else (matrix.shape, matrix.dtype, sp.issparse(matrix))
    (n_rows, n_cols), dtype, is_sparse = share(comm, described)[0]
    layout = layout or RowLayout.equal(n_rows, comm)
    layout.check_whole(n_rows)
    if matrix is None:
        matrix = sp.csr_array((0, n_cols), dtype=dtype) if is_sparse else np.empty((0, n_cols), dtype)
    return RowLayout([0] + [n_rows] * comm.size, comm).redistribute(matrix, layout)
