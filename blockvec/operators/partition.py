"""Rows in the parts of a graph partitioner, or of another choice of processes row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..backends import backend_for
from ..blocks.blockvector import BlockVector
from ..errors import OptionError
from ..parallel.agreement import agreed
from ..parallel.communicator import exchange_rows, exchange_slices
from ..parallel.halo import Halo
from ..parallel.layout import RowLayout


class Partition:
    """A numbering of rows in which those that are given to a process are adjacent.

    The halo of a matrix whose rows follow no grid may be a large part of its rows. A graph partitioner such
    as METIS, or reverse Cuthill-McKee, finds parts with few connections. Rows keep their order within a part.

    Parameters
    ----------
    parts : array of int, shape (n_local,)
        For each row of this process, the number of the process that shall have it.
    given : RowLayout
        The layout of `parts`; all of its processes create the object together.

    Attributes
    ----------
    given, layout : RowLayout
        Layouts of rows as they are given, and in the new numbering.
    numbers : array of int64, shape (n_local,)
        New numbers of the rows given.

    Raises
    ------
    OptionError, ShapeError
        For parts that are no numbers of processes, or not as many as the rows of this process.

    Examples
    --------
    >>> from blockvec import BlockVector, Partition, RowLayout
    >>> layout = RowLayout.equal(4, None)  # or comm=MPI.COMM_WORLD
    >>> split = Partition([0, 0, 0, 0], layout)
    >>> V = BlockVector.random(4, 2, rng=0, layout=layout)
    >>> bool((split.to_given(split.to_parts(V)).array == V.array).all())
    True
    """

    def __init__(self, parts: Any, given: RowLayout) -> None:
        with agreed(given.comm):
            self.given, self._comm = given, given.comm
            owners = np.asarray(parts)
            given.check(len(owners))
            if owners.dtype.kind not in "iu" or not np.isin(owners, np.arange(given.size)).all():
                raise OptionError(
                    f"parts: got {parts!r}; give a process from 0 to {given.size - 1} for each row."
                )
            counts = np.bincount(owners, minlength=given.size)
            # Rows from a process (first index) to another.
            sent = counts[None] if self._comm is None else self._comm.allgather(counts)
            self.layout = RowLayout([0, *np.cumsum(sent.sum(axis=0)).tolist()], self._comm)
            self._order = np.argsort(owners, kind="stable")  # of the rows given, as they are sent
            self._sends = np.concatenate([[0], np.cumsum(counts)])
            self._receives = np.concatenate([[0], np.cumsum(sent[:, given.rank])])
            firsts = np.array(self.layout.cuts[:-1]) + sent[: given.rank].sum(axis=0)
            self.numbers = np.empty(given.n_local, np.int64)
            moved = np.repeat(firsts - self._sends[:-1], counts)
            self.numbers[self._order] = np.arange(given.n_local) + moved

    def to_parts(self, X: BlockVector) -> BlockVector:
        """Move the rows of a block of the given layout to the new one."""
        rows = self._rows(X, self.given)[self._order]
        return BlockVector(exchange_slices(self._comm, rows, self._sends, self._receives), layout=self.layout)

    def to_given(self, X: BlockVector) -> BlockVector:
        """Move the rows of a block in the new layout, such as eigenvectors, back to the given one."""
        sent = self._rows(X, self.layout)
        rows = np.empty((self.given.n_local, X.n_cols), X.dtype)
        rows[self._order] = exchange_slices(self._comm, sent, self._receives, self._sends)
        return BlockVector(rows, layout=self.given)

    def _rows(self, X: BlockVector, layout: RowLayout) -> NDArray[Any]:
        layout.check(X.n_rows)
        if X.device != "cpu" or (self._comm is not None and X.layout != layout):
            raise OptionError(
                f"Partition: got a block with {X.layout!r} on {X.device}; give one on the host with "
                f"{layout!r}."
            )
        return np.ascontiguousarray(X.array)

    def matrix(self, rows: Any) -> Any:
        """Move the rows of a square CSR matrix to their processes, and number its columns anew.

        Parameters
        ----------
        rows : CSR matrix of the host, shape (given.n_local, n)

        Returns
        -------
        csr_array, shape (layout.n_local, n)
            For `as_operator` with `layout`.
        """
        with agreed(self._comm):
            self.given.check(rows.shape[0])
            wanted, places = np.unique(rows.indices, return_inverse=True)
            own = (wanted >= self.given.first_row) & (wanted < self.given.first_row + self.given.n_local)
            known = np.empty(len(wanted), np.int64)
            known[own] = self.numbers[wanted[own] - self.given.first_row]
            if self._comm is not None:
                halo = Halo(self.given, wanted[~own].astype(np.int64), backend_for("cpu"))
                wait, _ = halo.start(self.numbers[:, None])
                known[~own] = wait()[:, 0]
            ordered = sp.csr_array((rows.data, known[places], rows.indptr), shape=rows.shape)[self._order]
            moved = exchange_rows(self._comm, ordered, self._sends, self._receives)
            moved.sum_duplicates()
            return moved
