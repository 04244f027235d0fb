"""Rows and columns in memory: what a block is made of, apart from arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from . import elementwise, io
from .arrays import Memory, as_range, as_rows, check_dtype, is_range, leading_dimension, memory_of
from .backends import Array, Backend, array_namespace, backend_for, backend_of
from .errors import OptionError, ShapeError

__all__ = ["Block"]

FROM_FUNCTION_ROWS = 1 << 16  # rows evaluated at a time, so that index arrays stay small


class Block:
    """The part of `BlockVector` that wraps an array: construction, extents, views, other libraries."""

    __slots__ = ("_memory", "array", "backend", "comm")
    __array_ufunc__ = None  # NumPy and CuPy hand mixed operators to us
    __iter__ = None  # a block is not a sequence of rows
    ndim = 2

    def __init__(self, a: Any, *, copy: bool = False, dtype: Any = None, comm: Any = None) -> None:
        if isinstance(a, Block):
            comm = a.comm if comm is None else comm
            a = a.array
        self.array: Array = as_rows(a, copy=copy, dtype=dtype)
        self.comm: Any = comm
        self.backend: Backend = backend_of(self.array)
        self._memory: Memory | None = None

    @classmethod
    def _of(cls, array: Array, comm: Any, backend: Backend) -> Self:
        """Wrap an array whose layout is known to be right."""
        block = object.__new__(cls)
        block.array, block.comm, block.backend, block._memory = array, comm, backend, None
        return block

    def _wrap(self, array: Array) -> Self:
        """Wrap an array of this device with this block's communicator."""
        return self._of(array, self.comm, self.backend)

    def _place(self) -> Memory:
        """Return where the block lies: asked for once, since that takes longer than a launch."""
        if self._memory is None:
            self._memory = memory_of(self.array)
        return self._memory

    # --- construction ---------------------------------------------------------------------------

    @classmethod
    def empty(
        cls, n_rows: int, n_cols: int, dtype: Any = np.float64, *, device: str = "cpu", comm: Any = None
    ) -> Self:
        """Return an uninitialised block on ``"cpu"``, ``"gpu"`` (the current one) or ``"cuda:1"``."""
        for name, value in (("n_rows", n_rows), ("n_cols", n_cols)):
            if not isinstance(value, int | np.integer) or value < 0:
                raise ShapeError(f"{name}: got {value!r}; give a non-negative integer.")
        backend = backend_for(device)
        return cls._of(backend.empty((int(n_rows), int(n_cols)), check_dtype(dtype).name), comm, backend)

    @classmethod
    def full(
        cls, n_rows: int, n_cols: int, fill_value: complex, dtype: Any = np.float64, **where: Any
    ) -> Self:
        """Return a block of one value; keywords as for `empty`."""
        block = cls.empty(n_rows, n_cols, dtype, **where)
        block.array[...] = fill_value
        return block

    @classmethod
    def zeros(cls, n_rows: int, n_cols: int, dtype: Any = np.float64, **where: Any) -> Self:
        """Return a block of zeros; keywords as for `empty`."""
        return cls.full(n_rows, n_cols, 0, dtype, **where)

    @classmethod
    def random(
        cls,
        n_rows: int,
        n_cols: int,
        dtype: Any = np.float64,
        *,
        rng: Any = None,
        distribution: Literal["uniform", "normal"] = "uniform",
        first_row: int = 0,
        **where: Any,
    ) -> Self:
        """Return a block of random numbers that depend on `rng` and the row index alone.

        One draw from ``numpy.random.default_rng(rng)`` keys a counter-based generator (Philox; Salmon et
        al. 2011), so every backend and every partition of the rows gives the same numbers.

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
            Index of the first row in the whole block, where this is one part of it.
        **where
            `device` and `comm` as for `empty`.
        """
        if distribution not in ("uniform", "normal"):
            raise OptionError(f"distribution: got {distribution!r}; give 'uniform' or 'normal'.")
        key = int(np.random.default_rng(rng).integers(0, 2**63))
        block = cls.empty(n_rows, n_cols, dtype, **where)
        parts = 2 if block.dtype.kind == "c" else 1
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
        """Return the block with elements ``function(i, j)``, evaluated a slab of rows at a time.

        Examples
        --------
        >>> from blockvec import BlockVector
        >>> BlockVector.from_function(lambda i, j: i + 10 * j, 3, 2).array.tolist()
        [[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]]
        """
        block = cls.empty(n_rows, n_cols, dtype, **where)
        xp = block.backend.xp
        columns = xp.arange(n_cols)[None, :]
        for begin in range(0, n_rows, FROM_FUNCTION_ROWS):
            end = min(begin + FROM_FUNCTION_ROWS, n_rows)
            rows = xp.arange(first_row + begin, first_row + end)[:, None]
            block.array[begin:end] = function(rows, columns)
        return block

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", comm: Any = None) -> Self:
        """Read a block that `save` wrote, or any 2-D .npy array of the four types."""
        host = as_rows(io.load_block(path), copy=False)
        backend = backend_for(device)
        return cls._of(host if device == "cpu" else backend.from_host(host), comm, backend)

    def save(self, path: str | Path) -> None:
        """Write the block as .npy; the file appears whole or not at all."""
        io.save_block(path, self.array if self.device == "cpu" else self.backend.to_host(self.array))

    def like(self, n_cols: int | None = None, dtype: Any = None) -> Self:
        """Return an uninitialised contiguous block with these rows, on this device and communicator."""
        shape = (self.n_rows, self.n_cols if n_cols is None else n_cols)
        name = check_dtype(self.dtype if dtype is None else dtype).name
        return self._of(self.backend.empty(shape, name), self.comm, self.backend)

    def copy(self) -> Self:
        """Return a contiguous copy."""
        result = self.like()
        elementwise.axpby("copy", self.array, None, result.array, 1, 0)
        return result

    def to_host(self) -> Self:
        """Return a copy in main memory; waits for the device."""
        backend = backend_for("cpu")
        return self._of(self.backend.to_host(self.array), self.comm, backend)

    def to_device(self, device: str = "gpu") -> Self:
        """Return a copy on a GPU, ``"gpu"`` being the current one."""
        backend = backend_for(device)
        source = self.array if self.device == "cpu" else self.backend.to_host(self.array)
        return self._of(backend.from_host(source), self.comm, backend)

    # --- description ----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Rows held here, and columns."""
        n_rows, n_cols = self.array.shape
        return n_rows, n_cols

    @property
    def n_rows(self) -> int:
        """Rows held here (K)."""
        return int(self.array.shape[0])

    @property
    def n_cols(self) -> int:
        """Columns (M)."""
        return int(self.array.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def ld(self) -> int:
        """Leading dimension: distance between rows in elements."""
        return leading_dimension(self.array)

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

    def __bool__(self) -> bool:
        raise ValueError(
            "the truth value of a block is ambiguous; test V.n_rows, or V.array with any() or all()."
        )

    # --- views ----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Self:
        """Return a view for ranges of rows and columns, one row or one column; fancy indices copy."""
        rows, columns = index if isinstance(index, tuple) and len(index) == 2 else (index, slice(None))
        if is_range(rows) and is_range(columns):
            return self._wrap(self.array[as_range(rows, self.n_rows), as_range(columns, self.n_cols)])
        picked = self.array[index]
        if picked.ndim != 2:
            raise ShapeError(
                f"index {index!r} leaves {picked.ndim} dimensions; use V.array[...] for elements."
            )
        return self._wrap(array_namespace(picked).array(picked, order="C"))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = value.array if isinstance(value, Block) else value

    # --- other libraries ------------------------------------------------------------------------

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
        return dict(self.array.__cuda_array_interface__)
