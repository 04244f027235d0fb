"""The split of rows over processes, also of matrices of petsc4py, recognised by their methods."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..backends import Array, array_namespace, backend_of
from ..errors import DTypeError, OptionError, ShapeError
from .communicator import Communicator, communicator, exchange_rows, exchange_slices
from .traffic import current_traffic

_are_partial = contextvars.ContextVar("are_partial", default=False)


@contextlib.contextmanager
def partial_sums() -> Iterator[None]:
    """Leave sums over rows to the caller, who adds many of them in one message.

    Inside, Gram matrices, dots and all other sums of blocks and operators with split rows are those of the
    rows of this process; `RowLayout.sum` adds them over all. This is for sums that nothing waits for, such as
    the moments of a recurrence: on two GPUs, each sum takes some 15 us. What needs whole sums, such as an
    orthonormalisation, has no place inside.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector
    >>> from blockvec.parallel import RowLayout, partial_sums
    >>> layout = RowLayout.equal(100, None)
    >>> V = BlockVector.random(100, 2, rng=0, layout=layout)
    >>> with partial_sums():
    ...     parts = [V.gram() for _ in range(3)]
    >>> layout.sum(np.stack(parts)).shape
    (3, 2, 2)
    """
    token = _are_partial.set(True)
    try:
        yield
    finally:
        _are_partial.reset(token)


def are_partial() -> bool:
    """Tell whether sums are left to the caller, by `partial_sums`."""
    return _are_partial.get()


class RowLayout:
    """A split of rows into one range per process, in rank order.

    Parameters
    ----------
    cuts : sequence of int, length size + 1
        Process r has the rows ``cuts[r]`` up to ``cuts[r + 1]``, possibly none; the first is 0, the last the
        number of all rows.
    comm : mpi4py.MPI.Comm, Communicator or None
        The processes. None, or a communicator of one process, is one range.

    Raises
    ------
    ShapeError
        For cuts that descend, or are not one more than the processes.

    Examples
    --------
    >>> from blockvec import RowLayout
    >>> RowLayout.equal(10, None)
    RowLayout(rows 0 to 10 of 10, process 0 of 1)
    """

    __slots__ = ("comm", "cuts", "first_row", "n_global", "n_local", "rank", "size")

    def __init__(self, cuts: Sequence[int], comm: Any) -> None:
        self.comm: Communicator | None = communicator(comm)
        self.rank, self.size = (0, 1) if self.comm is None else (self.comm.rank, self.comm.size)
        self.cuts = tuple(int(cut) for cut in cuts)
        if len(self.cuts) != self.size + 1:
            raise ShapeError(
                f"RowLayout: got {len(self.cuts)} cuts for {self.size} processes; give {self.size + 1}."
            )
        if self.cuts[0] != 0 or (np.diff(self.cuts) < 0).any():
            raise ShapeError(f"RowLayout: got cuts {self.cuts}; they begin with 0 and do not descend.")
        self.first_row, end = self.cuts[self.rank : self.rank + 2]
        self.n_local, self.n_global = end - self.first_row, self.cuts[-1]

    @classmethod
    def equal(cls, n_global: int, comm: Any) -> RowLayout:
        """Split into ranges of equal length, up to one row."""
        comm = communicator(comm)
        size = 1 if comm is None else comm.size
        return cls([n_global * rank // size for rank in range(size + 1)], comm)

    @classmethod
    def from_local(cls, n_local: int, comm: Any) -> RowLayout:
        """Form the layout in which this process has `n_local` rows; all processes call it."""
        comm = communicator(comm)
        counts = np.array([[n_local]]) if comm is None else comm.allgather(np.array([n_local]))
        return cls([0, *np.cumsum(counts).tolist()], comm)

    @classmethod
    def by_entries(cls, entries: Any, comm: Any) -> RowLayout:
        """Split so that the processes have equal numbers of matrix entries, up to those of one row.

        Parameters
        ----------
        entries : array of int, shape (n,)
            Entries of each of the rows that `equal` gives this process.
        comm : mpi4py.MPI.Comm, Communicator or None
            All processes call this method.
        """
        comm = communicator(comm)
        entries = np.asarray(entries, np.int64)
        even = cls.from_local(len(entries), comm)
        if comm is None:
            return even
        totals = np.cumsum(comm.allgather(np.array([entries.sum()])))
        before, total = int(totals[even.rank]) - int(entries.sum()), int(totals[-1])
        # A cut is where the running sum first reaches its share; exactly one process finds it.
        shares = np.arange(1, even.size) * total / even.size
        ends = before + np.cumsum(entries)
        mine = (shares > before) & (shares <= before + int(entries.sum()))
        found = np.where(mine, even.first_row + np.searchsorted(ends, shares) + 1, 0)
        cuts = comm.allgather(found).max(axis=0)
        return cls([0, *np.maximum.accumulate(cuts).tolist(), even.n_global], comm)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowLayout):
            return NotImplemented
        return self is other or (self.cuts == other.cuts and self.comm is other.comm)

    def __hash__(self) -> int:
        return hash(self.cuts)

    def __repr__(self) -> str:
        rows = f"rows {self.first_row} to {self.first_row + self.n_local} of {self.n_global}"
        return f"RowLayout({rows}, process {self.rank} of {self.size})"

    @property
    def rows(self) -> slice:
        """The rows of this process."""
        return slice(self.first_row, self.first_row + self.n_local)

    def check(self, n_local: int) -> None:
        """Raise `ShapeError` unless this process has so many rows."""
        if n_local != self.n_local:
            raise ShapeError(f"got {n_local} rows, but this process has {self.n_local} of {self!r}.")

    def check_whole(self, n_global: int) -> None:
        """Raise `ShapeError` unless all processes together have so many rows."""
        if n_global != self.n_global:
            raise ShapeError(f"got {n_global} rows over all processes, but the layout has {self.n_global}.")

    # --- collective operations ------------------------------------------------------------------------

    def sum(self, part: Array) -> Array:
        """Add a small array over the processes, in rank order: the same bits on each, in every run."""
        if self.comm is None:
            return part
        return self._counted(self.comm.sum, part)

    def largest(self, values: Any) -> Any:
        """Return the largest of each of some real numbers over the processes, NaN where one has NaN."""
        if self.comm is None:
            return values
        return self._counted(self.comm.allgather, np.asarray(values)).max(axis=0)

    def _counted(self, reduction: Callable[[Array], Array], part: Array) -> Array:
        traffic, begin_s = current_traffic(), time.perf_counter()
        stop = traffic.watch("reduction", part)
        result = reduction(part)
        stop()
        traffic.reductions += 1
        traffic.reduction_bytes += part.nbytes * (self.size - 1)
        traffic.reduction_s += time.perf_counter() - begin_s
        return result

    def gather(self, rows: Array) -> Array:
        """Copy the rows of all processes to each of them."""
        if self.comm is None:
            return rows.copy()
        whole: Array = array_namespace(rows).empty((self.n_global, *rows.shape[1:]), rows.dtype)
        whole[self.rows] = rows
        mine = np.ascontiguousarray(rows) if isinstance(rows, np.ndarray) else whole[self.rows]
        others = [rank for rank in range(self.size) if rank != self.rank]
        receives = [(rank, whole[self.cuts[rank] : self.cuts[rank + 1]]) for rank in others]
        self.comm.exchange([(rank, mine) for rank in others], receives)()
        return whole

    def panels(self, rows: Array, height: int) -> Iterator[NDArray[Any]]:
        """Yield the rows of all processes on process 0, up to `height` at a time; others yield nothing."""
        to_host = backend_of(rows).to_host
        for owner, count, own in self._ranges(rows, height):
            if own is not None:
                panel = np.ascontiguousarray(to_host(own))
            elif self.rank == 0:
                panel = np.empty((count, *rows.shape[1:]), rows.dtype)
            if self.comm is not None and owner != 0:
                sends = [] if own is None else [(0, panel)]
                self.comm.exchange(sends, [(owner, panel)] if self.rank == 0 else [])()
            if self.rank == 0:
                yield panel

    def fill(self, rows: Array, read: Callable[[int], NDArray[Any]], height: int) -> None:
        """Set the rows of all processes to those that process 0 reads, up to `height` at a time.

        There, ``read(count)`` is called for all rows in order; elsewhere it is not called.
        """
        for owner, count, own in self._ranges(rows, height):
            panel = read(count) if self.rank == 0 else None
            if self.comm is not None and owner != 0:
                sends = [] if panel is None else [(owner, panel)]
                self.comm.exchange(sends, [] if own is None else [(0, own)])()
            elif own is not None:
                own[...] = panel

    def _ranges(self, rows: Array, height: int) -> Iterator[tuple[int, int, Array | None]]:
        """Yield the process that has a range of all rows, their number, and the rows if they are here."""
        for owner, (first, end) in enumerate(pairwise(self.cuts)):
            for begin in range(first, end, height):
                count = min(height, end - begin)
                is_here = owner == self.rank
                yield owner, count, rows[begin - first :][:count] if is_here else None

    def redistribute(self, rows: Any, layout: RowLayout) -> Any:
        """Move rows to the processes that have them in another layout of the same processes.

        Parameters
        ----------
        rows : array or CSR matrix, shape (n_local, M)
            The rows of this process; contiguous, if an array.
        layout : RowLayout
            All processes call this method.

        Returns
        -------
        array or csr_array, shape (layout.n_local, M)

        Examples
        --------
        >>> import numpy as np
        >>> from blockvec import RowLayout
        >>> layout = RowLayout.equal(3, None)
        >>> layout.redistribute(np.eye(3), RowLayout.by_entries([1, 1, 1], None)).shape
        (3, 3)
        """
        self.check(rows.shape[0])
        layout.check_whole(self.n_global)
        sends = np.clip(np.array(layout.cuts) - self.first_row, 0, self.n_local)
        receives = np.clip(np.array(self.cuts) - layout.first_row, 0, layout.n_local)
        exchange = exchange_rows if hasattr(rows, "indptr") else exchange_slices
        return exchange(self.comm, rows, sends, receives)


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
