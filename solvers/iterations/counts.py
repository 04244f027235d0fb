"""Operation counts of a solve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Operation counts of a solve; those of the operator include verification."""

    operator_columns: int = 0  # columns that the operator was applied to
    block_applications: int = 0  # calls of the operator
    verification_columns: int = 0  # columns of `operator_columns` for missed eigenvalues
    reductions: int = 0  # inner products over the tall dimension
    restarts: int = 0
    preconditioner_columns: int = 0  # columns that the preconditioner was applied to
    single_columns: int = 0  # columns of `operator_columns` in single precision within a solve in double

    def apply(self, columns: int, times: int = 1) -> None:
        """Count `times` applications of the operator to a block."""
        self.operator_columns += columns * times
        self.block_applications += times

    def add(self, part: Counts, times: int = 1) -> None:
        """Add the costs of a part of the solve, whose operator applies A `times` times."""
        self.operator_columns += times * part.operator_columns
        self.block_applications += times * part.block_applications
        self.reductions += part.reductions
        self.single_columns += times * part.single_columns
