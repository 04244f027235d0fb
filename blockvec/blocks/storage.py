"""BlockStorage: the rows of a block in memory: how they are made, described, viewed, converted, saved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike

from .. import io
from ..backends import Array, Backend, DeviceArray, backend_for, backend_of, is_cupy
from ..backends.base import leading_dimension
from ..errors import DTypeError, OptionError, ShapeError
from ..operations import arrays, elementwise
from ..operations.arrays import Memory, as_range, as_rows, dtype_name, memory_of
from ..parallel import Communicator, RowLayout, agreed

FROM_FUNCTION_ROWS = 1 << 16  # rows per evaluation of a function, which bounds the size of its index arrays

_MOST_ELEMENTS = sys.maxsize // 16  # of the widest type
_PANEL_BYTES = 1 << 24  # of rows that are sent to the process that writes a file


class BlockStorage:
    """The part of `BlockVector` that computes nothing: its array, its device and the split of its rows."""

    __slots__ = ("_memory", "array", "backend", "layout")
    __array_ufunc__ = None  # NumPy and CuPy defer mixed operators to this class
    __iter__ = None  # a block is not a sequence of rows
    __hash__ = object.__hash__  # by identity, as `in` and dictionaries compare first
    ndim = 2

    def __init__(
        self, a: Any, *, copy: bool = False, dtype: DTypeLike | None = None, layout: RowLayout | None = None
    ) -> None:
        if isinstance(a, BlockStorage):
            layout = a.layout if layout is None else layout
            a = a.array
        self.array: Array = as_rows(a, copy=copy, dtype=dtype)
        self.layout: RowLayout | None = None
        if layout is not None:
            layout.check(len(self.array))
            self.layout = None if layout.comm is None else layout
        self.backend: Backend = backend_of(self.array)
        self._memory: Memory | None = None

    @classmethod
    def _of(
        cls, array: Array, layout: RowLayout | None, backend: Backend, memory: Memory | None = None
    ) -> Self:
        """Wrap an array whose layout has been checked."""
        block = object.__new__(cls)
        block.array, block.layout, block.backend, block._memory = array, layout, backend, memory
        return block

    def _wrap(self, array: Array) -> Self:
        return self._of(array, self.layout, self.backend)

    @property
    def memory(self) -> Memory:
        """Layout and address, cached because reading them takes longer than a launch."""
        if self._memory is None:
            self._memory = memory_of(self.array)
        return self._memory

    @classmethod
    def empty(
        cls,
        n_rows: int,
        n_cols: int,
        dtype: DTypeLike = np.float64,
        *,
        device: str = "cpu",
        layout: RowLayout | None = None,
    ) -> Self:
        """Create an uninitialised block on ``"cpu"``, ``"gpu"`` (the current one) or ``"cuda:1"``.

        With a layout, `n_rows` counts the rows of all processes; each creates its own.

        >>> from blockvec import BlockVector
        >>> BlockVector.empty(100, 4, np.complex64).shape
        (100, 4)
        """
        for name, value in (("n_rows", n_rows), ("n_cols", n_cols)):
            if not isinstance(value, (int, np.integer)) or value < 0:
                raise ShapeError(f"{name}: got {value!r}; give a non-negative integer.")
        if layout is not None:
            layout.check_whole(n_rows)
            n_rows = layout.n_local
            layout = None if layout.comm is None else layout
        if max(1, n_rows) * max(1, n_cols) > _MOST_ELEMENTS:
            raise ShapeError(
                f"a block of {n_rows}x{n_cols} exceeds the address space; give fewer rows or columns."
            )
        backend = backend_for(device)
        return cls._of(backend.empty((int(n_rows), int(n_cols)), dtype_name(dtype)), layout, backend)

    @classmethod
    def full(
        cls, n_rows: int, n_cols: int, fill_value: complex, dtype: DTypeLike = np.float64, **where: Any
    ) -> Self:
        """Create a block of one value; keywords as for `empty`.

        >>> from blockvec import BlockVector
        >>> BlockVector.full(2, 2, 7).array.tolist()
        [[7.0, 7.0], [7.0, 7.0]]
        """
        block = cls.empty(n_rows, n_cols, dtype, **where)
        block.backend.fill(block.array, fill_value)
        return block

    @classmethod
    def zeros(cls, n_rows: int, n_cols: int, dtype: DTypeLike = np.float64, **where: Any) -> Self:
        """Create a block of zeros; keywords as for `empty`.

        >>> from blockvec import BlockVector
        >>> BlockVector.zeros(2, 1).array.tolist()
        [[0.0], [0.0]]
        """
        return cls.full(n_rows, n_cols, 0, dtype, **where)

    @classmethod
    def random(
        cls,
        n_rows: int,
        n_cols: int,
        dtype: DTypeLike = np.float64,
        *,
        rng: Any = None,
        distribution: Literal["uniform", "normal"] = "uniform",
        first_row: int = 0,
        **where: Any,
    ) -> Self:
        """Create a block of random numbers that depend on `rng` and the row index only.

        One draw from ``numpy.random.default_rng(rng)`` keys a counter-based generator (Philox; Salmon et
        al. 2011), so all backends and all partitions of the rows give the same numbers.

        Parameters
        ----------
        n_rows, n_cols, dtype
            Extents and element type; complex elements have two independent parts.
        rng : Generator, int or None
            As in ``numpy.random.default_rng``.
        distribution : {"uniform", "normal"}
            Uniform on [-1, 1), bit-identical everywhere; or standard normal (Box-Muller), which may differ
            between devices in the last digit.
        first_row : int
            Index of the first row in the whole block, if this is one part of it. A layout adds its own.
        **where
            `device` and `layout` as for `empty`.

        Examples
        --------
        >>> from blockvec import BlockVector
        >>> V, part = BlockVector.random(9, 2, rng=1), BlockVector.random(4, 2, rng=1, first_row=5)
        >>> bool((V[5:] == part).all())
        True
        """
        if distribution not in ("uniform", "normal"):
            raise OptionError(f"distribution: got {distribution!r}; give 'uniform' or 'normal'.")
        if first_row < 0:
            raise OptionError(f"first_row: got {first_row!r}; give a non-negative integer.")
        key = int(np.random.default_rng(rng).integers(0, 2**63))
        block = cls.empty(n_rows, n_cols, dtype, **where)
        parts = 2 if block.dtype.kind == "c" else 1
        first_row += 0 if block.layout is None else block.layout.first_row
        block.backend.fill_random(block.array, key, first_row * n_cols * parts)
        if distribution == "normal":
            angle = cls.empty(n_rows, n_cols, dtype, **where)
            block.backend.fill_random(angle.array, key ^ (1 << 63), first_row * n_cols * parts)
            elementwise.box_muller(block.array, angle.array)
        return block

    @classmethod
    def from_function(
        cls,
        function: Callable[[Array, Array], Array],
        n_rows: int,
        n_cols: int,
        dtype: Any = np.float64,
        *,
        first_row: int = 0,
        **where: Any,
    ) -> Self:
        """Create the block with elements ``function(i, j)``, evaluated on ranges of rows.

        Examples
        --------
        >>> from blockvec import BlockVector
        >>> BlockVector.from_function(lambda i, j: i + 10 * j, 3, 2).array.tolist()
        [[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]]
        """
        block = cls.empty(n_rows, n_cols, dtype, **where)
        xp = block.backend.xp
        columns = xp.arange(n_cols)[None, :]
        first_row += 0 if block.layout is None else block.layout.first_row
        for begin in range(0, block.n_rows, FROM_FUNCTION_ROWS):
            end = min(begin + FROM_FUNCTION_ROWS, block.n_rows)
            rows = xp.arange(first_row + begin, first_row + end)[:, None]
            block.array[begin:end] = function(rows, columns)
        return block

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", layout: RowLayout | None = None) -> Self:
        """Read a block that `save` wrote, or any 2-D .npy array of the four types.

        With a layout each process reads its rows of the file.

        >>> V = BlockVector.load("vectors.npy", device="gpu")  # doctest: +SKIP
        """
        backend = backend_for(device)
        layout = None if layout is None or layout.comm is None else layout
        with agreed(None if layout is None else layout.comm):
            whole = io.mapped_block(path)
            if layout is not None:
                layout.check_whole(len(whole))
                whole = whole[layout.rows]
            host = np.array(whole, order="C")
        return cls._of(host if device == "cpu" else backend.from_host(host), layout, backend)

    def save(self, path: str | Path) -> None:
        """Write the block as .npy; the file is replaced atomically.

        If the rows are split over processes, process 0 receives them and writes all of them.

        >>> from blockvec import BlockVector
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     BlockVector.full(2, 1, 3).save(f"{folder}/vectors.npy")
        ...     BlockVector.load(f"{folder}/vectors.npy").array.tolist()
        [[3.0], [3.0]]
        """
        layout = RowLayout.equal(self.n_rows, None) if self.layout is None else self.layout
        height = max(1, _PANEL_BYTES // max(1, self.n_cols * self.dtype.itemsize))
        with agreed(layout.comm):
            panels = layout.panels(self.array, height)
            if layout.rank == 0:
                io.save_block(path, (self.n_global, self.n_cols), self.dtype, panels)
            else:
                for _ in panels:
                    pass

    def gather(self) -> Self:
        """Copy all rows to every process that shares them; the result has no layout.

        >>> from blockvec import BlockVector
        >>> BlockVector.full(2, 1, 3).gather().array.tolist()  # of one process: a copy
        [[3.0], [3.0]]
        """
        if self.layout is None:
            return self.copy()
        return self._of(self.layout.gather(self.array), None, self.backend)

    def redistribute(self, layout: RowLayout) -> Self:
        """Copy the block to another split of its rows over the same processes, all of which call this.

        >>> W = V.redistribute(RowLayout.by_entries(entries, comm))  # doctest: +SKIP
        """
        if self.layout is None or layout.comm is not self.layout.comm:
            raise OptionError(
                f"redistribute: got {layout!r} for a block with {self.layout!r}; give one of the same "
                "processes."
            )
        rows = self.array if self.array.flags.c_contiguous else self.array.copy()
        return self._of(self.layout.redistribute(rows, layout), layout, self.backend)

    def like(self, n_cols: int | None = None, dtype: DTypeLike | None = None) -> Self:
        """Create an uninitialised contiguous block with as many rows, on this device and of this layout.

        >>> from blockvec import BlockVector
        >>> BlockVector.zeros(9, 2).like(5)
        BlockVector(9x5, float64, ld=5, cpu)
        """
        shape = (self.n_rows, self.n_cols if n_cols is None else n_cols)
        name = self.memory.dtype if dtype is None else dtype_name(dtype)
        return self._of(self.backend.empty(shape, name), self.layout, self.backend)

    def random_like(self, n_cols: int, rng: Any = None) -> Self:
        """Create a random block with as many rows, of this type, device and layout; see `random`.

        >>> from blockvec import BlockVector
        >>> BlockVector.zeros(9, 2).random_like(5, rng=0)
        BlockVector(9x5, float64, ld=5, cpu)
        """
        return self.random(self.n_global, n_cols, self.dtype, rng=rng, device=self.device, layout=self.layout)

    def copy(self) -> Self:
        """Copy to a contiguous block.

        >>> from blockvec import BlockVector
        >>> BlockVector.zeros(9, 5)[:, :2].copy()
        BlockVector(9x2, float64, ld=2, cpu)
        """
        result = self.like()
        elementwise.axpby("copy", self.memory, None, result.memory, 1, 0)
        return result

    def astype(self, dtype: DTypeLike) -> Self:
        """Copy to a contiguous block of another element type.

        Raises
        ------
        DTypeError
            If a complex block would lose its imaginary part.

        Examples
        --------
        >>> from blockvec import BlockVector
        >>> BlockVector.zeros(9, 2).astype(np.complex64)
        BlockVector(9x2, complex64, ld=2, cpu)
        """
        name = dtype_name(dtype)
        if self.dtype.kind == "c" and not name.startswith("complex"):
            raise DTypeError(
                f"astype: {self.dtype.name} to {name} drops the imaginary part; "
                "BlockVector(V.array.real, copy=True) does so explicitly."
            )
        converted = self.like(dtype=name)
        self.backend.copy(self.array, converted.array)
        return converted

    def conj(self) -> Self:
        """Copy to a contiguous block of the complex conjugates.

        >>> from blockvec import BlockVector
        >>> BlockVector.full(1, 1, 2 + 3j, complex).conj().array.tolist()
        [[(2-3j)]]
        """
        return self._wrap(self.backend.xp.conj(self.copy().array))

    def to_host(self) -> Self:
        """Copy to main memory; waits for the device.

        >>> from blockvec import BlockVector
        >>> BlockVector.zeros(9, 2).to_host().device
        'cpu'
        """
        return self._of(self.backend.to_host(self.array), self.layout, backend_for("cpu"))

    def to_device(self, device: str = "gpu") -> Self:
        """Copy to a GPU; ``"gpu"`` is the current one.

        >>> V = V.to_device("cuda:1")  # doctest: +SKIP
        """
        backend = backend_for(device)
        source = self.array if self.device == "cpu" else self.backend.to_host(self.array)
        return self._of(backend.from_host(source), self.layout, backend)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows in this process, and columns."""
        n_rows, n_cols = self.array.shape
        return n_rows, n_cols

    @property
    def n_rows(self) -> int:
        """Rows in this process (K)."""
        return int(self.array.shape[0])

    @property
    def n_cols(self) -> int:
        """Columns (M)."""
        return int(self.array.shape[1])

    @property
    def n_global(self) -> int:
        """Rows in all processes that share them."""
        return self.n_rows if self.layout is None else self.layout.n_global

    @property
    def comm(self) -> Communicator | None:
        """The processes that share the rows, or None."""
        return None if self.layout is None else self.layout.comm

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.array.dtype

    @property
    def ld(self) -> int:
        """Leading dimension: distance between rows in elements."""
        return leading_dimension(self.array)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.array.size)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without the gaps of a view."""
        return int(self.array.nbytes)

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:0"``."""
        return self.backend.name

    def __repr__(self) -> str:
        extents = f"{self.n_rows}x{self.n_cols}, {self.dtype.name}, ld={self.ld}, {self.device}"
        return f"{type(self).__name__}({extents})"

    def __getattr__(self, name: str) -> Any:
        """Name the remedy for methods that only arrays have."""
        remedy = f"; V.array.{name} is that of the array, without a copy" if hasattr(np.ndarray, name) else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{remedy}.")

    def __eq__(self, other: Any) -> Any:
        """Compare elementwise, as NumPy does: an array of booleans on the block's device."""
        return self.array == (other.array if isinstance(other, BlockStorage) else other)

    def __ne__(self, other: Any) -> Any:
        return self.array != (other.array if isinstance(other, BlockStorage) else other)

    def __bool__(self) -> bool:
        raise ValueError(
            "the truth value of a block is ambiguous; test V.n_rows, or V.array with any() or all()."
        )

    def __getitem__(self, index: Any) -> Self:
        """View ranges of rows and columns, one row or one column; fancy indices copy."""
        rows, columns = index if isinstance(index, tuple) and len(index) == 2 else (index, slice(None))
        if self.layout is not None and not (isinstance(rows, slice) and rows == slice(None)):
            raise ShapeError(
                "V[rows]: the rows are split over processes, and a part of them has no layout; use "
                "V.array[rows] for those of this process, V.gather() for all, V[:, columns] for columns."
            )
        if all(isinstance(part, slice | int | np.integer) for part in (rows, columns)):
            return self._wrap(self.array[as_range(rows, self.n_rows), as_range(columns, self.n_cols)])
        picked = self.array[index]
        if picked.ndim != 2:
            raise ShapeError(
                f"an index that leaves {picked.ndim} dimensions is none of a block; use V.array[...] for it."
            )
        return self._wrap(as_rows(picked, copy=True))

    def __setitem__(self, index: Any, value: Any) -> None:
        arrays.check_writable("V[...] =", "the block", self.array)
        values = value.array if isinstance(value, BlockStorage) else value
        if self.backend.xp is np or not self._assign_range(index, values):
            self.array[index] = values

    def _assign_range(self, index: Any, values: Any) -> bool:
        """Assign a block or a number to ranges by kernels of blockvec; False where these cannot."""
        rows, columns = index if isinstance(index, tuple) and len(index) == 2 else (index, slice(None))
        if not all(isinstance(part, slice) and part.step in (None, 1) for part in (rows, columns)):
            return False
        target = self.array[rows, columns]
        if elementwise.is_scalar(values) and not is_cupy(values):
            self.backend.fill(target, values)
            return True
        is_here = is_cupy(values) and backend_of(values) is self.backend
        if not is_here or values.shape != target.shape or not arrays.is_convertible(values, target.dtype):
            return False
        if target.size and arrays.overlaps(values, target):  # threads read and write in any order
            values = values.copy()
        self.backend.copy(values, target)
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self.device != "cpu":
            raise TypeError(f"the block is on {self.device}; use V.to_host().array for a NumPy array.")
        return np.array(self.array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        array: DeviceArray = self.array
        return dict(array.__cuda_array_interface__)
