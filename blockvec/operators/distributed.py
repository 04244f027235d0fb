"""Operators whose rows are split over processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from ..backends import Array, Backend, array_namespace
from ..backends.base import Fused
from ..blocks.blockvector import BlockVector
from ..errors import ShapeError
from ..interchange import sparse_matrix
from ..kernels.problem import SpmmvProblem
from ..kernels.sparse.arrays import to_host
from ..operations.arrays import Memory, memory_of
from ..operations.products import FactorKind
from ..parallel.communicator import share
from ..parallel.halo import Halo
from ..parallel.layout import RowLayout
from ..parallel.traffic import current_traffic
from . import fused
from .operator import Operator
from .sparse import SHORT_ROWS, SparseOperator

EMPTY_ROWS = 1 << 14  # a product passes over so many rows without entries in the time of another call


class DistributedOperator(Operator):
    """A square operator whose rows are split over processes; made by `as_operator` with a layout.

    The rows of a process are two parts: the entries in its own columns, a square operator, and the coupling
    to rows of other processes. A product applies the former while the operand of the latter, the halo, is
    exchanged; between GPUs the exchange comes first, since NCCL's kernels and a product that fills the GPU
    delay each other. Then the coupling is added to the rows that have one; all others are written once.

    Parameters
    ----------
    own : Operator, shape (n_local, n_local)
        Entries in the columns of this process.
    layout : RowLayout
    coupling : sequence of (int, Operator)
        First row and rows of the coupling, whose columns are those of the halo.
    halo : Halo, optional
        None if the operator exchanges no rows, as the function of a user that does so itself.
    """

    layout: RowLayout

    def __init__(
        self,
        own: Operator,
        layout: RowLayout,
        coupling: Sequence[tuple[int, Operator]] = (),
        halo: Halo | None = None,
        nnz: int | None = None,
    ) -> None:
        super().__init__((layout.n_global, layout.n_global), own.dtype, own.backend)
        self.local_shape, self.layout = own.shape, layout
        self.own, self._coupling, self._halo = own, coupling, halo
        ends = [0, *(row for begin, part in coupling for row in (begin, begin + part.shape[0])), own.shape[0]]
        # The longest range of rows without a coupling.
        self._inner = max(list(pairwise(ends))[::2], key=lambda rows: rows[1] - rows[0])
        if nnz is not None:
            self.nnz: int = nnz
        if len(self._sparse_parts()) == 1 + len(coupling):
            self.converted = self._converted

    @classmethod
    def of_rows(cls, rows: Any, layout: RowLayout, backend: Backend) -> DistributedOperator:
        """Divide the rows of this process into own columns and coupling, and plan the exchange.

        All processes call it. `rows` is a CSR matrix of shape (n_local, n_global) of SciPy or CuPy.
        """
        assert layout.comm is not None
        dtype = np.result_type(*share(layout.comm, rows.dtype.str))
        data, indices, n_local = rows.data.astype(dtype, copy=False), rows.indices, layout.n_local
        xp = array_namespace(data)
        is_own = (indices >= layout.first_row) & (indices < layout.first_row + n_local)
        remote = np.flatnonzero(~is_own)
        own_starts = rows.indptr - np.searchsorted(remote, rows.indptr)  # without the remote entries before
        own = _csr(own_starts, indices[is_own] - layout.first_row, data[is_own], n_local)
        wanted, columns = np.unique(indices[remote], return_inverse=True)
        halo = Halo(layout, to_host(wanted.astype(np.int64)), backend)
        touched = np.searchsorted(rows.indptr, remote, side="right") - 1  # row of each remote entry
        coupling: list[tuple[int, Operator]] = []
        for begin, end in _ranges(touched):
            here = slice(*np.searchsorted(touched, xp.asarray((begin, end))).tolist())
            starts = np.searchsorted(touched[here], xp.arange(begin, end + 1))
            part = _csr(starts, columns[here], data[remote[here]], len(wanted))
            coupling.append((begin, SparseOperator(part, backend)))
        nnz = int(layout.sum(np.array([rows.nnz]))[0])
        return cls(SparseOperator(own, backend), layout, coupling, halo, nnz)

    @property
    def halo_rows(self) -> int:
        """Rows of other processes that this one needs per product."""
        return 0 if self._halo is None else self._halo.wanted_rows

    @property
    def entries(self) -> int | None:
        """Stored entries in the rows of this process; None for a function."""
        parts = self._sparse_parts()
        return sum(part.nnz for part in parts) if len(parts) == 1 + len(self._coupling) else None

    @property
    def is_recordable(self) -> bool:
        """Whether all parts are, on GPUs that communicate without a host."""
        parts = self.own, *(part for _, part in self._coupling)
        between_gpus = getattr(self.layout.comm, "is_recordable", False)
        return bool(between_gpus) and all(part.is_recordable for part in parts)

    def _check_operand(self, X: BlockVector, shift: Any) -> tuple[Any, FactorKind]:
        if X.n_rows != self.local_shape[1]:
            raise ShapeError(
                f"apply: A has {self.local_shape[1]} of {self.shape[0]} rows in process {self.layout.rank}, "
                f"but X has {X.n_rows} there; give blocks of A.layout."
            )
        if X.layout != self.layout:
            raise ShapeError(
                f"apply: X has the layout {X.layout!r}, A {self.layout!r}; give blocks of A.layout, as "
                "BlockVector(rows, layout=A.layout) makes of local rows."
            )
        return super()._check_operand(X, shift)

    def _run(
        self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any, request: Fused | None = None
    ) -> None:
        run = self.own._run if request is None else partial(self.own._run_fused, request=request)
        self._couple(
            *(X.array, Y.array, lambda: run(X, Y, alpha, beta, shift)),
            lambda part, halo, rows: part._run(memory_of(halo), memory_of(rows), alpha, 1, 0),
        )

    def _run_fused(
        self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any, request: Fused
    ) -> None:
        begin, end = self._inner
        if 2 * (end - begin) <= Y.n_rows:
            super()._run_fused(X, Y, alpha, beta, shift, request)
            return
        self._run(X, Y, alpha, beta, shift, replace(request, rows=self._inner))
        # What the own part alone makes of the other rows is in no sum: it may be far above the results.
        fused.add_ends(request, self._inner, X, Y)

    def _add_columns(self, X: Array, Y: Array) -> None:
        self._couple(
            *(X, Y, lambda: self.own.apply_columns(X, Y, beta=1)),
            lambda part, halo, rows: part.apply_columns(np.asfortranarray(halo), rows, beta=1),
        )

    def _couple(
        self, X: Array, Y: Array, own: Callable[[], None], add: Callable[[Operator, Array, Array], object]
    ) -> None:
        """Exchange the halo of X beside the product of the own part; then add the coupling to rows of Y."""
        with current_traffic().product(X):
            if self._halo is None:
                own()
                return
            wait, free = self._halo.start(X)
            try:
                own()
                halo = wait()
                for begin, part in self._coupling:
                    add(part, halo, Y[begin : begin + part.shape[0]])
            finally:
                free()

    def _transposed(self, conjugates: bool) -> Operator:
        parts, layout = self._sparse_parts(), self.layout
        if len(parts) != 1 + len(self._coupling) or layout.comm is None:
            return super()._transposed(conjugates)
        first, n_local = layout.first_row, layout.n_local
        wanted = np.zeros(0, np.int64) if self._halo is None else self._halo.wanted
        own, *coupling = (sp.coo_array(part.to_host()) for part in parts)
        # Rows and columns of the whole matrix.
        entries: list[tuple[NDArray[Any], ...]] = [(own.row + first, own.col + first, own.data)]
        for (begin, _), part in zip(self._coupling, coupling, strict=True):
            entries.append((part.row + first + begin, wanted[part.col], part.data))
        shared = [entries[0]] + [entry for found in share(layout.comm, entries[1:]) for entry in found]
        rows, columns, data = (np.concatenate(arrays) for arrays in zip(*shared, strict=True))
        mine = (columns >= first) & (columns < first + n_local)
        kept = data[mine].conj() if conjugates else data[mine], (columns[mine] - first, rows[mine])
        return self.of_rows(sp.csr_array(kept, (n_local, layout.n_global)), layout, self.backend)

    def sparse_product(self) -> tuple[SpmmvProblem | None, Any]:
        return self.own.sparse_product()

    def _converted(self, dtype: DTypeLike, factor: float = 1) -> DistributedOperator:
        """Make ``factor A`` with entries of another type an operator of its own; see `SparseOperator`."""
        own, *parts = (part.converted(dtype, factor) for part in self._sparse_parts())
        coupling = [(begin, part) for (begin, _), part in zip(self._coupling, parts, strict=True)]
        return DistributedOperator(own, self.layout, coupling, self._halo, self.nnz)

    def _sparse_parts(self) -> list[SparseOperator]:
        """List own part and coupling, as far as their entries are stored."""
        parts = [self.own, *(part for _, part in self._coupling)]
        return [part for part in parts if isinstance(part, SparseOperator)]

    def _affine(self, alpha: complex, shift: complex) -> Operator:
        if self.device != "cpu" or not hasattr(self, "nnz") or self.nnz > SHORT_ROWS * self.shape[0]:
            return super()._affine(alpha, shift)
        own = self.own.affine(alpha, shift)
        coupling = [(begin, part._affine(alpha, 0)) for begin, part in self._coupling]
        return DistributedOperator(own, self.layout, coupling, self._halo, self.nnz)


def _csr(starts: NDArray[Any], columns: NDArray[Any], data: NDArray[Any], n_columns: int) -> Any:
    """Assemble rows that begin at `starts`, with 32-bit indices where they fit."""
    index = np.int32 if max(n_columns, len(data)) <= np.iinfo(np.int32).max else np.int64
    arrays = data, columns.astype(index, copy=False), starts.astype(index, copy=False)
    return sparse_matrix("csr", (len(starts) - 1, n_columns), *arrays)


def _ranges(rows: Any) -> list[tuple[int, int]]:
    """Cover ascending row numbers by one range, or by two on both sides of a gap that is wide."""
    if not len(rows):
        return []
    gaps = np.diff(rows)
    cut = int(np.argmax(gaps)) + 1 if len(gaps) and gaps.max() > EMPTY_ROWS else len(rows)
    parts = [part for part in (rows[:cut], rows[cut:]) if len(part)]
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]
