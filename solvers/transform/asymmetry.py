"""How far a matrix is from its conjugate transpose, and its Hermitian part in its place where that is noise.

A caller's matrix is Hermitian to the rounding errors of the caller's own element type, which may be single
precision although the problem is solved in double precision, or to those of what computed it, such as an
inverse. The Hermitian part then stands for it: eigenvalues move by ||A - A^H||_2 / 2 at most.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockvec import Operator, as_operator
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..arguments import is_explicit
from ..blocks import empty_block, to_host

# Asymmetry in units of eps up to which it is rounding. Its estimate by two products reached 18 for symmetric
# matrices; 50 are half of the share of ||A|| to which residuals always count as converged.
ROUNDING = 50.0
MOST = 1e4  # eps: a defect above it is an error, as in `Operator.check_hermitian`
LOOSEST = 0.5  # power of the working precision's eps: no looser tolerance makes a larger asymmetry noise


@frozen
class Asymmetry:
    """The asymmetry ||(A - A^H) z|| / ||A z|| of one matrix for a random z, an estimate for a function."""

    size: float = 0.0  # zero where the working precision explains it
    is_removed: bool = False  # whether the Hermitian part takes the place of the matrix
    is_own_rounding: bool = True  # whether rounding errors of the caller's element type explain it


def judged(
    name: str, op: Operator, matrix: Any, defect: float, eps: float, tol: float, dtype: Any
) -> Asymmetry:
    """Judge the defect that `Operator.hermitian_defect` has found.

    `matrix` is what the operator applies, `eps` that of the element type in which it was given, `tol` the
    accuracy that is asked for, relative to ||A||, and `dtype` the type that the problem is solved in. What is
    neither rounding nor below what was asked for is refused.
    """
    working = float(np.finfo(dtype).eps)
    eps, is_matrix = max(eps, working), is_explicit(matrix)
    size, own = math.sqrt(op.shape[0]) * defect, ROUNDING * eps
    if is_matrix and size > ROUNDING * working:
        size = measured_size(op, matrix)
    if size <= ROUNDING * working:
        return Asymmetry()
    is_removed = is_matrix and size <= max(own, min(tol, working**LOOSEST))
    if defect > MOST * eps and not is_removed:
        raise OptionError(
            f"{name} is not Hermitian: {name} z and {name}^H z differ by {'' if is_matrix else 'about '}"
            f"{size:.1e} of |{name} z| for a random z; pass ({name} + {name}.conj().T) / 2 if the difference "
            "is noise."
        )
    return Asymmetry(size, is_removed, is_own_rounding=size <= own)


def measured_size(op: Operator, matrix: Any) -> float:
    """Compute ||(A - A^H) z|| / ||A z|| for a random z."""
    z = empty_block(op).random_like(1, 0)
    image = op.apply(z)
    length = float(to_host(image.norms())[0])
    as_operator(matrix.conj().T, device=op.device, check_indices=False).apply(z, out=image, alpha=-1, beta=1)
    return float(to_host(image.norms())[0]) / (length or 1.0)


def hermitian_part(matrix: Any) -> Any:
    """Compute (A + A^H) / 2, which is Hermitian to the last bit."""
    half = (matrix.tocsr() if hasattr(matrix, "tocsr") else matrix) * 0.5
    return half + half.conj().T
