"""Several steps of block Lanczos in one launch, and what the host learns of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..backends import Array
from ..blocks.blockvector import BlockVector
from ..kernels.limits import ceil_div
from ..operations.arrays import memory_of
from ..operations.small_matrices import FactorReport, start_copy
from ..system.frozen import frozen
from .base import BaseOperator


@frozen
class StepReport:
    """The small matrices of a step: W = A X, then W - V (first + second), then W T.

    `first` and `second`, of shape (end, b), are what two projections took out of W, for `end` columns of V.
    """

    first: Array
    second: Array
    factor: FactorReport


@frozen
class KrylovSteps:
    """Steps of b columns on one basis, with one matrix; see `SparseOperator.krylov_steps`."""

    launches: Any  # of the backend
    b: int
    # Sets Y = A X for two arrays; None for products of the kernel that takes the steps.
    product: Callable[[Array, Array], object] | None = None
    takes_several: bool = False  # by one call: not with a user's function, whose calls may be expensive
    multiplies: bool = True  # otherwise W is computed before each step

    def without_products(self) -> KrylovSteps:
        """Return steps whose block W is computed before, as by a polynomial of the matrix; one at a time."""
        return KrylovSteps(self.launches, self.b, multiplies=False)

    def queue(
        self,
        X: BlockVector,
        W: BlockVector,
        m: int,
        end: int,
        full_until: int,
        locked: int,
        steps: int,
        enough: float,
        limit: float,
    ) -> Callable[[], list[StepReport]]:
        """Queue steps and return a function that waits for their small matrices.

        A step appends W T to the basis, where W is what two projections leave of A X, and T = R^-1 for W^H W
        = R^H R. Where the growth of the factorisation is above `enough`, the new block is factorised again,
        which leaves rounding errors only. Where it is not below `limit`, T is the identity, and this step and
        all later ones are invalid; reports contain the growth of the first factorisation.

        X are the columns of the basis from number m on, and W is scratch; both are contiguous. The last new
        block is in W if `steps` is odd, else in X. A was applied to m of the `end` columns; ``end - m`` is b
        for several steps. A X can couple to all columns while m is less than `full_until`, else to the first
        `locked` ones and those from number m - back on, where back is end - m rounded up to whole blocks.
        """
        b, columns = self.b, self.launches.columns
        back = ceil_div(end - m, b) * b
        sizes = m, end, back, full_until, locked, steps, self.multiplies and self.product is None
        report = self.launches(X.array, W.array, *sizes, enough, limit, self.product)
        wait = start_copy(report.reshape(-1, b))

        @functools.cache
        def reports() -> list[StepReport]:
            found = []
            for step, rows in enumerate(wait().reshape(steps, -1, b)):
                known, begin = end + step * b, m + step * b
                first = 0 if begin < full_until else max(begin - back, 0)
                rows[locked:first] = 0  # which the kernel left out
                factor = FactorReport.of(rows[2 * columns :])
                found.append(StepReport(rows[:known], rows[columns : columns + known], factor))
            return found

        return reports


def steps_of(operator: BaseOperator, V: BlockVector, b: int) -> KrylovSteps | None:
    """Prepare steps with the products of an operator, of a sparse matrix or a function."""
    matrix = getattr(operator, "prepared", None)
    is_own = operator.layout is None and operator.shape[0] == operator.shape[1]
    if not is_own or V.backend is not operator.backend:
        return None
    launches = operator.backend.krylov_steps(matrix, V.array, b)
    if launches is None:
        return None

    def product(X: Array, Y: Array) -> None:
        operator._run(memory_of(X), memory_of(Y), 1, 0, 0)

    is_multiplied = matrix is not None and launches.multiplies
    return KrylovSteps(launches, b, None if is_multiplied else product, takes_several=matrix is not None)
