"""The folded operator (A - tau I)^2, which maps eigenvalues around tau to the lower end of a spectrum."""

from __future__ import annotations

import math

from blockvec.errors import OptionError

from ..blocks import AffineOperator, Block, Operator, project_out


class FoldedOperator:
    """(A - tau I)^2: eigenvalues around a target become those at the lower end.

    With a shift s >= 0 it is (A - (tau - s^(1/2)) I) (A - (tau + s^(1/2)) I): two applications of A and no
    other pass. A is restricted to the complement of the `locked` columns.
    """

    def __init__(self, operator: Operator, tau: float, locked: Block | None = None) -> None:
        self.operator, self.tau, self.locked = operator, tau, locked
        self.shape, self.dtype, self.device = operator.shape, operator.dtype, operator.device
        self.layout = operator.layout
        self.nnz = getattr(operator, "nnz", None)  # None for the function of a user

    @property
    def is_recordable(self) -> bool:
        """Whether a `Recorder` can record `apply`."""
        return bool(getattr(self.operator, "is_recordable", False))

    def apply(
        self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0, shift: float = 0
    ) -> Block:
        """Compute ``alpha ((A - tau I)^2 - shift I) X + beta out`` for a shift that is not negative."""
        left, right = self._factors(shift)
        inner = project_out(self.locked, self.operator.apply(X, shift=right))
        return self.operator.apply(inner, out=out, alpha=alpha, beta=beta, shift=left)

    def affine(self, alpha: float, shift: float) -> _Product:
        """Prepare ``alpha ((A - tau I)^2 - shift I)`` for repeated application."""
        left, right = self._factors(shift)
        return _Product(self.operator.affine(alpha, left), self.operator.affine(1, right), self.locked)

    def _factors(self, shift: float) -> tuple[float, float]:
        if shift < 0:
            raise OptionError(f"shift: got {shift}; (A - tau I)^2 - shift I has real factors from 0 on.")
        return self.tau + math.sqrt(shift), self.tau - math.sqrt(shift)


class _Product:
    """The product of two operators, each restricted to the complement of the locked columns."""

    def __init__(self, left: AffineOperator, right: AffineOperator, locked: Block | None) -> None:
        self.left, self.right, self.locked = left, right, locked

    def apply(self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0) -> Block:
        inner = project_out(self.locked, self.right.apply(X))
        return self.left.apply(inner, out=out, alpha=alpha, beta=beta)
