"""M^(1/2) and its inverse for operators that cannot be factorised, by Chebyshev polynomials of M.

The inverse root on [a, b], which contains the spectrum of M, is interpolated by p of degree d. Its relative
error falls like rho^-d with rho = (sqrt(b/a) + 1) / (sqrt(b/a) - 1), for a condition number of 100 to
rounding errors with d = 190. p(M) is Hermitian and linear, unlike an iterative solve.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev as polynomials

from blockvec import BlockVector, Operator, array_namespace
from blockvec.errors import OptionError

from ..blocks import Array
from ..functions.recurrence import Recurrence
from ..iterations.spectrum import Sketch, sketch_spectrum
from .gram import Factor
from .shifted import INVERSE

STEPS, MOST_STEPS = 40, 320  # of Lanczos, for the bounds of the spectrum
MARGIN = 0.05  # relative distance of the interval from the bounds
MOST_DEGREE = 2000


def root_factor(M: Operator, Minv: Operator | None = None) -> Factor:
    """Form M^(1/2) as the factor of a Hermitian positive definite operator.

    The spectrum's lower bound is that of M by Lanczos, or 1 / ||Minv||. Refuses an M that is indefinite or
    ill-conditioned, and a Minv that is not its inverse.
    """
    low, high = _bounds(M, Minv)
    unit = float(np.finfo(M.dtype).eps) / 2
    root = math.sqrt(high / low)
    degree = math.ceil(math.log(root / unit) / math.log((root + 1) / max(root - 1, unit)))
    if degree > MOST_DEGREE:
        raise OptionError(
            f"M: its eigenvalues extend from about {low:.2g} to {high:.2g}, and M^(-1/2) needs a polynomial "
            f"of degree {degree}, more than {MOST_DEGREE}; give M as a matrix, without Minv."
        )
    centre, half_width = (high + low) / 2, (high - low) / 2
    interpolate: Any = polynomials.chebinterpolate
    coefficients = interpolate(lambda x: (centre + half_width * x) ** -0.5, degree)
    doubled = M.affine(2 / half_width, centre)

    def inverse_root(X: Array) -> Array:
        block = BlockVector(
            array_namespace(X).ascontiguousarray(X), copy=True, dtype=np.promote_types(M.dtype, X.dtype)
        )
        total = block.copy().scale(coefficients[0])
        Recurrence(doubled, block, block.like()).add([coefficients[1:].tolist()], [total])
        return total.array

    def root_of(X: Array) -> Array:
        return M.apply(BlockVector(inverse_root(X))).array

    why = f"M^(-1/2) is a polynomial of degree {degree}, for eigenvalues of M from {low:.3g} to {high:.3g}"
    return Factor(M.shape[0], root_of, root_of, inverse_root, inverse_root, why)


def _bounds(M: Operator, Minv: Operator | None) -> tuple[float, float]:
    """Estimate bounds of the spectrum of M."""
    where: Any = {"dtype": M.dtype, "device": M.device}
    rng = np.random.default_rng(0)

    def sketch(operator: Operator, resolved: Any = lambda sketch: True) -> Sketch:
        V = BlockVector.random(M.shape[0], 2, rng=rng, **where)
        return sketch_spectrum(operator, V, STEPS, most=MOST_STEPS, resolved=resolved)

    if Minv is None:
        # The lower bound is the least Ritz value less its residual, which is small once that has converged.
        found = sketch(M, lambda sketch: sketch.low > sketch.theta.min() * (1 - MARGIN))
        low = found.low
    else:
        x = BlockVector.random(M.shape[0], 1, rng=rng, **where)
        error = Minv.apply(M.apply(x)).axpy(-1, x).norms()[0]
        if not error <= INVERSE * x.norms()[0]:
            raise OptionError(
                f"Minv: is not the inverse of M; Minv M x differs from x by {float(error):.1e} for a random "
                f"x of norm {float(x.norms()[0]):.1e}."
            )
        found, low = sketch(M), 1 / sketch(Minv).high
    if not low > 0:
        raise OptionError(
            f"M is an operator with eigenvalues from about {found.theta.min():.2g} to {found.high:.2g}; "
            "without a factorisation it must be positive definite and well-conditioned. Give it as a matrix."
        )
    return low * (1 - MARGIN), found.high * (1 + MARGIN)
