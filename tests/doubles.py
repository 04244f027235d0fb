"""A plain NumPy block and operator with nothing but the interface that solvers may use.

`PlainBlock` has the operations of a BlockVector that a solver may call, in their simplest form, and
nothing of blockvec but the names of results: a solver that runs on it cannot depend on anything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockvec import Applied


class PlainBlock:
    """A 2-D NumPy array with the block operations that solvers use; ranges of columns are views."""

    layout = None

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        assert self.array.ndim == 2

    @classmethod
    def random(
        cls, n_rows: int, n_cols: int, dtype: Any = np.float64, *, rng: Any = None, device: str = "cpu"
    ) -> PlainBlock:
        assert device == "cpu"
        generator = np.random.default_rng(rng)
        numbers = generator.uniform(-1, 1, (n_rows, n_cols))
        if np.dtype(dtype).kind == "c":
            numbers = numbers + 1j * generator.uniform(-1, 1, (n_rows, n_cols))
        return cls(numbers.astype(dtype))

    def random_like(self, n_cols: int, rng: Any = None) -> PlainBlock:
        return self.random(self.shape[0], n_cols, self.dtype, rng=rng)

    @property
    def n_global(self) -> int:
        return self.shape[0]

    def like(self, n_cols: int | None = None, dtype: Any = None) -> PlainBlock:
        shape = (self.shape[0], self.shape[1] if n_cols is None else n_cols)
        block = np.empty(shape, self.dtype if dtype is None else dtype)
        block[...] = np.nan  # whoever reads what nobody wrote shall see it
        return PlainBlock(block)

    def copy(self) -> PlainBlock:
        return PlainBlock(self.array.copy())

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def device(self) -> str:
        return "cpu"

    def __getitem__(self, index: Any) -> PlainBlock:
        rows, columns = index
        assert rows == slice(None)
        assert isinstance(columns, slice)
        return PlainBlock(self.array[:, columns])

    def __setitem__(self, index: Any, value: PlainBlock | complex) -> None:
        self[index].array[...] = value.array if isinstance(value, PlainBlock) else value

    def dot(self, W: PlainBlock) -> Any:
        return self.array.conj().T @ W.array

    def gram(self) -> Any:
        return self.dot(self)

    def combine(self, C: Any, *, alpha: complex = 1, beta: complex = 0, out: Any = None) -> PlainBlock:
        product = alpha * (self.array @ C)
        if out is None:
            return PlainBlock(product)
        assert out.dtype == np.result_type(self.dtype, C), "out must hold the promoted type"
        out.array[...] = product if beta == 0 else product + beta * out.array
        return out

    def combine_dot(self, C: Any, W: PlainBlock) -> Any:
        self.array[...] = self.array @ C
        return W.dot(self)

    def update_gram(self, W: PlainBlock, C: Any) -> Any:
        self.array -= W.array @ C
        return self.gram()

    def axpby(self, alpha: Any, X: PlainBlock, beta: Any) -> PlainBlock:
        self.array[...] = alpha * X.array + beta * self.array
        return self

    def axpy(self, alpha: Any, X: PlainBlock) -> PlainBlock:
        return self.axpby(alpha, X, 1)

    def scale(self, alpha: Any) -> PlainBlock:
        self.array[...] = alpha * self.array
        return self

    def norms(self) -> Any:
        return np.linalg.norm(self.array, axis=0)

    def column_dot(self, W: PlainBlock) -> Any:
        return np.sum(self.array.conj() * W.array, axis=0)


class PlainOperator:
    """A dense or sparse matrix behind ``apply``, counting the columns it is applied to."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.device, self.layout = "cpu", None
        self.columns = 0

    def apply(
        self,
        X: PlainBlock,
        out: Any = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        *,
        dots: str = "",
    ) -> Any:
        self.columns += X.shape[1]
        product = alpha * (self.matrix @ X.array - shift * X.array)
        if out is None:
            out = PlainBlock(product)
        else:
            out.array[...] = product if beta == 0 else product + beta * out.array
        return Applied(out, {"xy": X.column_dot(out)}, {}) if dots else out

    def affine(self, alpha: complex, shift: complex) -> AffineOperator:
        return AffineOperator(self, alpha, shift)


class AffineOperator:
    """alpha (A - shift I), whose columns count as those of A."""

    def __init__(self, operator: PlainOperator, alpha: complex, shift: complex) -> None:
        self.operator, self.alpha, self.shift = operator, alpha, shift

    def apply(self, X: PlainBlock, out: Any = None, alpha: complex = 1, beta: complex = 0) -> Any:
        return self.operator.apply(X, out, alpha * self.alpha, beta, self.shift)
