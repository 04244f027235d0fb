"""The Chebyshev recurrence of an operator: powers of filters, sums of polynomials, and moments.

On [centre - half_width, centre + half_width] the polynomials T_j((A - centre)/half_width) are bounded by 1. A
step of their recurrence

    Y_{j+1} = S Y_j - Y_{j-1},    Y_1 = S Y_0 / 2

is one application of S = 2/half_width (A - centre), which is prepared once, and needs no inner product. A
function of A is a sum of c_j Y_j, which a step adds to in the pass of its product; dots of the last two
blocks are the moments of degrees 2j and 2j + 1, from the same pass.

References
----------
Weisse, Wellein, Alvermann, Fehske, Rev. Mod. Phys. 78 (2006) 275, sections II.B and II.D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Recurrence:
    """Steps of the recurrence above on two blocks, on a GPU several by one launch where a kernel takes them.

    Parameters
    ----------
    doubled : AffineOperator
        S of the recurrence.
    X, out : Block
        Y_0, and a block like it; both are overwritten.
    project : callable, optional
        ``project(j, Y_j, Y_{j-1})`` may project both blocks. It is called after every `project_every` steps
        of a call of `take`, and at its end.

    Attributes
    ----------
    current, previous : Block
        Y_j and Y_{j-1} for j steps taken.
    taken : int
        The number j.

    Examples
    --------
    T_1, T_2 and T_3 of a number, and a sum of them:

    >>> import numpy as np
    >>> from blockvec import BlockVector, as_operator
    >>> X = BlockVector(np.ones((1, 1)))
    >>> steps = Recurrence(as_operator(np.diag([0.5])).affine(2, 0), X, X.like())
    >>> total = X.copy()
    >>> unused = steps.add([[10.0, 100.0, 1000.0]], [total])
    >>> steps.current.array.item(), total.array.item()
    (-1.0, -1044.0)
    """

    def __init__(
        self,
        doubled: Any,
        X: Block,
        out: Block,
        project: Callable[[int, Block, Block], object] | None = None,
        project_every: int = 1,
    ) -> None:
        self._doubled: Any = doubled
        self._project, self._project_every = project, project_every
        self.current, self.previous, self.taken = X, out, 0

    def take(self, count: int) -> None:
        """Take steps."""
        end, size = self.taken + count, count if self._project is None else self._project_every
        while self.taken < end:
            until = min(self.taken + size, end)
            if self.taken == 0:
                self.dots(1, ())
            turns = until - self.taken
            if turns > 1 and hasattr(self._doubled, "prepare"):
                self._doubled.prepare(self.current, self.previous, repeat=turns, beta=-1)()
                self.skip(turns)
            else:
                self.dots(turns, ())
            if self._project is not None:
                self._project(self.taken, self.current, self.previous)

    def add(
        self, coefficients: Sequence[Any], sums: Sequence[Any], dots: tuple[str, ...] = ()
    ) -> list[dict[str, Array]]:
        """Take a step per column of coefficients, and add multiples of the new blocks to sums.

        ``coefficients[i][s]`` multiplies the block of the s-th of these steps in the i-th sum; zeros cost
        nothing. They are real for real blocks. Returns for each step the column dots of Y_{j-1} (x) and Y_j
        (y), of those named "xx", "xy" and "yy", on the device of the blocks.
        """
        found = []
        for factors in zip(*coefficients, strict=True):
            terms = [(c, total) for c, total in zip(factors, sums, strict=True) if c != 0]
            found.append(self._step(terms, dots))
        return found

    def dots(self, count: int, dots: tuple[str, ...] = ("xy", "yy")) -> list[dict[str, Array]]:
        """Take steps; return dots of the last two blocks of each, as `add` does."""
        return [self._step([], dots) for _ in range(count)]

    def skip(self, count: int) -> None:
        """Count steps that have been taken by other means, such as a recording."""
        self.taken += count
        if count % 2:
            self.current, self.previous = self.previous, self.current

    def _step(self, terms: list[tuple[Any, Any]], dots: tuple[str, ...]) -> dict[str, Array]:
        """Take a step whose product adds to the first of some sums in the same pass."""
        options: dict[str, Any] = {"beta": -1} if self.taken else {"alpha": 0.5}
        is_fused = self.current.device != "cpu"
        if dots:
            options["dots"] = dots
        if terms and is_fused:
            options |= {"z": terms[0][1], "eta": terms[0][0]}
        if type(self.current) is ColumnBlock and not dots:  # without checks
            self._doubled.apply_columns(self.current.array, self.previous.array, **options)
        else:
            result = self._doubled.apply(self.current, out=self.previous, **options)
        self.skip(1)
        for coefficient, total in terms[1 if is_fused else 0 :]:
            add_multiple(total, coefficient, self.current)
        return result.dots if dots else {}
