"""Affine functions of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import products
from .arrays import Memory
from .backends import Array
from .blockvector import BlockVector
from .fused import Applied
from .kernels.problem import SpmmvProblem
from .operators import BlockLike, Operator


class AffineOperator(Operator):
    """``alpha (A - shift I)``; factor and shift are applied in the same pass as the product."""

    def __init__(self, operator: Operator, alpha: complex, shift: complex) -> None:
        dtype = products.result_type(operator.dtype, alpha, shift)
        super().__init__(operator.shape, dtype, operator.backend)
        self.local_shape, self.layout = operator.local_shape, operator.layout
        self._operator, self._alpha, self._shift = operator, alpha, shift
        if hasattr(operator, "nnz"):  # the cost of a product
            self.nnz: int = operator.nnz

    def apply(  # type: ignore[override]
        self,
        X: BlockLike,
        out: BlockLike | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        **fused: Any,
    ) -> BlockVector | Applied:
        """Compute Y = ``alpha (self - shift I) X + beta out``; see `Operator.apply`."""
        inner_shift = shift / self._alpha + self._shift
        Y: BlockVector | Applied = self._operator.apply(
            X, out, alpha * self._alpha, beta, inner_shift, **fused
        )
        return Y

    def bound_product(
        self,
        X: BlockVector,
        out: BlockVector,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        turns: int = 1,
    ) -> Callable[[], object]:
        """Return a function that repeats a product; see `Operator.bound_product`."""
        inner_shift = shift / self._alpha + self._shift
        return self._operator.bound_product(X, out, alpha * self._alpha, beta, inner_shift, turns)

    def takes_turns_at_once(self, X: BlockVector) -> bool:
        """Check whether all turns of a `bound_product` are one launch."""
        return self._operator.takes_turns_at_once(X)

    def vector_adder(self) -> Callable[[Array, Array], object]:
        """Return a function that adds the product with x to y; see `Operator.vector_adder`."""
        if self.dtype != self._operator.dtype:
            return super().vector_adder()
        add, alpha, shift = self._operator.vector_adder(), self._alpha, self._shift

        def add_multiple(x: Array, y: Array) -> None:
            product = -shift * x
            add(x, product)
            product *= alpha
            y += product

        return add_multiple

    def sparse_product(self) -> tuple[SpmmvProblem | None, Any]:
        """Describe a product with the matrix of the inner operator."""
        return self._operator.sparse_product()

    def _run(self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any) -> None:
        self.apply(X.array, Y.array, alpha, beta, shift)
