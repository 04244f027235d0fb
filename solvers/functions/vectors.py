"""Random and unit vectors that sample a Hermitian matrix, and the check of the matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from blockvec import BlockVector, Operator, array_namespace
from blockvec.errors import BreakdownError
from blockvec.interchange import ArrayKind

from ..arguments import generator
from ..blocks import empty_block
from ..runtime.processes import same_generator
from .bounds import SpectralBounds
from .operands import Matrix, matrix_of, with_real_factor
from .polynomial import WIDER


def hermitian_matrix(A: Any, *, name: str = "A", like: Any, **options: Any) -> Matrix:
    """Convert a matrix to a Hermitian operator with a real factor.

    Raises
    ------
    OptionError
        For a matrix that is not Hermitian.
    """
    caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
    matrix = with_real_factor(matrix_of(A, caller=caller, **options), name)
    if matrix.operator.shape[0]:
        matrix.operator.check_hermitian(name=name)
    return matrix


def widening(bounds: SpectralBounds) -> Iterator[SpectralBounds]:
    """Yield bounds, and wider ones as long as polynomials grow within them.

    Raises
    ------
    BreakdownError
        If they do for all.
    """
    yield bounds
    for share in WIDER:
        bounds = bounds.widened(share)
        yield bounds
    raise BreakdownError(
        f"H: moments grow for all bounds up to {bounds!r}, or are NaN; check that H is Hermitian, and that "
        "its products are accurate and finite."
    )


def generator_for(op: Operator, rng: Any) -> np.random.Generator:
    """Form the random generator of a call, the same one in all processes."""
    return same_generator(generator(rng), None if op.layout is None else op.layout.comm)


def random_signs(op: Operator, count: int, rng: Any) -> BlockVector:
    """Make vectors of random signs, with E[x x^H] = I: the same numbers for any number of processes.

    Those of complex matrices are (±1 ± i) / sqrt(2), with which a trace has half the variance.
    """
    block = empty_block(op).random_like(count, rng)
    numbers = block.array.view(block.array.real.dtype)
    size = 1.0 if block.dtype.kind == "f" else math.sqrt(0.5)
    array_namespace(numbers).copysign(numbers.dtype.type(size), numbers, out=numbers)
    return block


def unit_vectors(op: Operator, sites: Sequence[int]) -> BlockVector:
    """Make the columns of the identity with some numbers."""
    block = empty_block(op).like(len(sites))
    block[:, :] = 0
    first = 0 if op.layout is None else op.layout.first_row
    for column, site in enumerate(sites):
        if first <= site < first + block.shape[0]:
            block.array[site - first, column] = 1
    return block
