"""The Chebyshev recurrence of an operator: powers of filters, sums of polynomials, and moments.

On [centre - half_width, centre + half_width] the polynomials T_j((A - centre)/half_width) are bounded by 1. A
step of their recurrence

    Y_{j+1} = S Y_j - Y_{j-1},    Y_1 = S Y_0 / 2

is one application of S = 2/half_width (A - centre), which is prepared once. A function of A is a sum of
c_j Y_j, which a step adds to in the pass of its product; dots of the last two blocks are moments
of degrees 2j and 2j + 1.

References
----------
Weisse, Wellein, Alvermann, Fehske, Rev. Mod. Phys. 78 (2006) 275, sections II.B and II.D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scipy.linalg import blas

from ..blocks import Array, Block, ColumnBlock

AXPY = {"f": blas.saxpy, "d": blas.daxpy, "F": blas.caxpy, "D": blas.zaxpy}
SHORT_BLOCK = 1 << 17  # elements of a block that one call of BLAS takes less time for than threads do


def add_multiple(total: Any, coefficient: complex, block: Any) -> None:
    """Add a multiple of a contiguous block to another of its type."""
    size = block.array.size
    if block.device == "cpu" and 0 < size <= SHORT_BLOCK:
        order = "F" if type(block) is ColumnBlock else "C"
        x, y = (columns.array.reshape(-1, order=order) for columns in (block, total))
        AXPY[block.dtype.char](x, y, a=coefficient)
    else:
        total.axpy(coefficient, block)


def apply_to_sums(A: Any, X: Any, out: Any, terms: Sequence[tuple[Any, Any]], **options: Any) -> Any:
    """Apply an operator as ``A.apply`` does, and add multiples of the result to (coefficient, sum) pairs."""
    if out.device != "cpu" and terms:  # the first sum in the pass of the product
        (coefficient, total), *terms = terms
        options |= {"z": total, "eta": coefficient}
    if type(X) is ColumnBlock and "dots" not in options:  # without checks
        result = A.apply_columns(X.array, out.array, **options)
    else:
        result = A.apply(X, out=out, **options)
    for coefficient, total in terms:
        add_multiple(total, coefficient, out)
    return result


class Recurrence:
    """Steps of the recurrence of S, `doubled`, from Y_0 = X; X and a block `out` like it are overwritten."""

    def __init__(self, doubled: Any, X: Block, out: Block) -> None:
        self._doubled = doubled
        self.current, self.previous, self.taken = X, out, 0  # Y_j and Y_{j-1} for j steps

    def take(self, count: int) -> None:
        """Take steps, on a GPU all but the first one of all by one launch where a kernel takes them."""
        if count and not self.taken:
            self.step()
            count -= 1
        if count > 1 and hasattr(self._doubled, "prepare"):
            self._doubled.prepare(self.current, self.previous, repeat=count, beta=-1)()
            self.skip(count)
        else:
            self.add([[0] * count], [None])

    def add(self, coefficients: Sequence[Sequence[Any]], sums: Sequence[Any]) -> None:
        """Take a step per column of coefficients, and add multiples of the new blocks to the sum per row."""
        for factors in zip(*coefficients, strict=True):
            self.step([(c, total) for c, total in zip(factors, sums, strict=True) if c != 0])

    def skip(self, count: int) -> None:
        """Count steps that have been taken by other means, such as a recording."""
        self.taken += count
        if count % 2:
            self.current, self.previous = self.previous, self.current

    def step(self, terms: Sequence[tuple[Any, Any]] = (), dots: tuple[str, ...] = ()) -> dict[str, Array]:
        """Take a step, add to (coefficient, sum) pairs; return dots as "xy" of Y_{j-1} (x) and Y_j (y)."""
        options: dict[str, Any] = {"beta": -1} if self.taken else {"alpha": 0.5}
        options |= {"dots": dots} if dots else {}
        result = apply_to_sums(self._doubled, self.current, self.previous, terms, **options)
        self.skip(1)
        return result.dots if dots else {}
