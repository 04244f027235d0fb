"""Scaling of a problem by powers of two, so that squares of its norms neither overflow nor underflow.

Inner products and norms need the squares of numbers, and the square of an operator those of its norm. A
problem A x = lambda M x with entries far from one is therefore solved as A' x' = lambda' M' x' with
A = 2^a A' and M = 2^m M', where a and m are even. Powers of two cause no rounding errors: products, values
and residuals are those of A to the last bit, as far as these can be represented.

A caller's matrix is Hermitian to the rounding errors of the caller's own element type, which may be single
precision although the problem is solved in double precision, or to those of what computed it, such as an
inverse. Its Hermitian part then takes its place: eigenvalues move by ||A - A^H||_2 / 2 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

import numpy as np

from blockvec import BlockVector, Operator, as_operator, precompiled
from blockvec.errors import BlockvecError, BreakdownError, OptionError
from blockvec.interchange import diagonal_of
from blockvec.system.frozen import frozen

from ..blocks import ORDINARY, empty_block, is_explicit, is_ordinary, ordinary_exponent, times, to_host
from ..blocks import Operator as BlockOperator
from ..problem import FLOOR, Problem
from ..result import EigenResult
from ..runtime.processes import largest

# Ratio of a penalty to the other elements of its row, and to the norm of most rows. Below it the limit of
# rounding, 100 u p, leaves nine digits of this norm.
FAR = 1e5
CHECK_COLUMNS = 2  # operator columns of the Hermitian check
MARGIN = 2  # exponents between "ordinary by the Hermitian check" and "not ordinary by its own measurement"
# Asymmetry in units of eps up to which it is rounding. Its estimate by two products reached 18 for symmetric
# matrices; this is half of the share of ||A|| to which residuals always count as converged.
ROUNDING = FLOOR / 2
NOT_HERMITIAN = 1e4  # eps: a defect above it is an error, as in `Operator.check_hermitian`


@frozen
class Scaling:
    """The exponents a and m, the exponent of the inner product, and what measuring them has cost."""

    a: int = 0
    m: int = 0
    inner: int = 0  # m, or a in buckling mode, where vectors are orthonormal in the inner product of A
    columns: int = 0  # operator columns, of the check and of the measurement
    applications: int = 0
    is_known: bool = True  # whether the norm of A has been measured or given
    # ||(A - A^H) z|| / ||A z|| for a random z, of A and M where rounding of their own types is exceeded
    asymmetry: Mapping[str, float] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()  # matrices whose Hermitian parts take their places
    spacing: float = 0.0  # eps of the type that A is given in

    def __bool__(self) -> bool:
        return self.a != 0 or self.m != 0

    def __str__(self) -> str:
        return f"A / 2^{self.a}" + (f" and M / 2^{self.m}" if self.m else "")

    def value(self, value: float) -> float:
        """Scale an eigenvalue or a shift."""
        return float(times(value, self.m - self.a))

    def operands(
        self, op: Operator, A: Any, M: Any, OPinv: Any, device: str | None, check: bool
    ) -> tuple[Operator, Any, Any, Any]:
        """Scale an operator, the A that it applies, M and OPinv; check that the operator is Hermitian.

        Hermitian parts take the places of matrices whose asymmetry is noise.
        """
        if "M" in self.removed:
            M = hermitian_part(M)
        if "A" in self.removed:
            A = hermitian_part(A)
            op = as_operator(A, device=device)
        if self.a:
            if OPinv is not None:
                from .standard_form import given_inverse

                OPinv = _scaled_operator(given_inverse(OPinv, op), -self.a)
            if is_explicit(A) or hasattr(A, "tocsr"):
                A = A * 2.0**-self.a
                op = as_operator(A, device=device)
            else:
                op = _scaled_operator(op, self.a)
            if check:
                _judge_scaled("A", op, self.spacing)
        if self.m:
            M = M * 2.0**-self.m
            _judge_scaled("M", as_operator(M, device=device), 0.0)
        return op, A, M, OPinv

    def problem(self, problem: Problem) -> Problem:
        """Scale the numbers and functions of a problem whose operator is A' already."""
        if not self:
            return problem
        tolerance, norm, given = problem.tolerance, problem.norm, problem.preconditioner
        if tolerance.convergence == "absolute":
            largest = np.finfo(np.float64).max
            tolerance = replace(tolerance, tol=min(float(times(tolerance.tol, -self.a)), largest))
        if given is not None:  # by its own norm, which need not be that of an inverse
            from ..linear.preconditioners import following

            size = magnitude(given, problem.operator, "the preconditioner")
            update = getattr(given, "update", None)
            half = 2.0 ** (-even_exponent(size, problem.operator.dtype) // 2)
            unscaled = update and (lambda theta: update(float(times(theta, self.a - self.m))))
            scaled = following(lambda R: given(R.copy().scale(half)).scale(half), unscaled)
            problem = replace(problem, preconditioner=scaled)
        return replace(
            problem,
            tolerance=tolerance,
            norm=None if norm is None else float(times(norm, -self.a)),
            exponent=self.a - self.m,
        )

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Add a note about the scaling to errors."""
        try:
            yield
        except BlockvecError as error:
            if self:
                error.add_note(f"Numbers of this message belong to the scaled problem, {self}.")
            raise

    def result(self, result: EigenResult, tol: float, op: Operator, A: Any) -> EigenResult:
        """Return the result for A and M, with the tolerance as it was given.

        Where pairs have not converged, the asymmetry of A is measured: the check may miss a small one.
        """
        result, asymmetry = result.with_more_columns(self.columns, self.applications), dict(self.asymmetry)
        if not (result.converged.all() or asymmetry or self.removed) and is_explicit(A):
            size = measured_size(op, A)
            noise = ROUNDING * max(self.spacing, float(np.finfo(op.dtype).eps))
            asymmetry = {} if size <= noise else {"A": size}
        if asymmetry:
            parts = "".join(
                f"; the Hermitian part of {name} is solved, from which it differs by {size / 2:.1e}"
                for name, size in asymmetry.items()
                if name in self.removed
            )
            result = result.with_info(why=result.info["why"] + parts, asymmetry=asymmetry)
        info = result.info
        if not (self.is_known or is_ordinary(info["norm"], info["dtype"], share=2 * ORDINARY)):
            raise BreakdownError(
                f"the norm of A is {info['norm']:.1g}, the squares of residuals exceed the range of "
                f"{info['dtype']}; give norm=, or check_hermitian=True, and A is scaled."
            )
        if not self:
            return result
        values, X = result.eigenvalues, result.eigenvectors
        theta, residual = times(values, self.a - self.m), self.a - self.inner // 2
        if not np.isfinite(to_host(theta)).all():
            raise BreakdownError(
                f"an eigenvalue is {float(abs(values).max()):.6g} * 2^{self.a - self.m}, beyond the range of "
                f"{theta.dtype}; divide A by a power of ten" + (", or multiply M." if self.m else ".")
            )
        return replace(
            result.with_info(
                norm=float(times(info["norm"], self.a)),
                tol=tol if info["convergence"] == "absolute" else info["tol"],
                why=f"{info['why']}; numbers of this text and of `verification` belong to {self}",
            ),
            eigenvalues=theta,
            eigenvectors=X if self.inner == 0 else X * 2.0 ** (-self.inner // 2),
            residuals=times(result.residuals, residual),
            limits=times(result.limits, residual),
        )


def measured(
    op: Operator,
    A: Any,
    M: Any,
    sigma: float | None,
    mode: str,
    norm: float | None,
    check: bool,
    spacings: tuple[float, float] = (0.0, 0.0),
    accuracy: tuple[float, bool] = (0.0, False),
) -> Scaling:
    """Check that M is Hermitian, and A if asked to; choose the exponents: 0 where a norm is ordinary.

    `spacings` are eps of the types that A and M are given in. `accuracy` is the tolerance, and whether it is
    absolute instead of relative to ||A||.

    The products of the check give the norm of A. If that is not ordinary, one column with a fixed seed is
    multiplied: a resumed run must choose the same exponents. Without the check the norm is that given or that
    of the largest entry, and unknown for a function.
    """
    columns = applications = 0
    check = bool(check) or mode in ("buckling", "reciprocal")  # where A is factorised
    is_known = check or norm is not None or is_explicit(A)
    asymmetry, removed = dict[str, float](), set[str]()
    found: dict[str, tuple[Operator, Any, float, float]] = {}
    tol, dtype, size = accuracy[0], op.dtype, norm or 0.0
    if check:
        (size, defect), columns, applications = _checked("A", op), CHECK_COLUMNS, 1
        tol /= (size or 1.0) if accuracy[1] else 1.0
        found["A"] = op, A, defect, spacings[0]
    if is_explicit(M) and M.shape == op.shape:
        dtype = np.promote_types(op.dtype, M.dtype)
        mass_op = as_operator(M if M.dtype == dtype else M.astype(dtype), device=op.device)
        found["M"] = mass_op, M, _checked("M", mass_op)[1], spacings[1]
    for name, (operator, matrix, defect, eps) in found.items():
        difference, is_removed = judged(name, operator, matrix, defect, eps, tol, dtype)
        asymmetry |= {name: difference} if difference else {}
        removed |= {name} if is_removed else set()
    if check and not (size > 0 and is_ordinary(size, op.dtype, MARGIN)):
        size, columns, applications = magnitude(op.apply, op, "A"), columns + 1, applications + 1
    if not check and norm is None:
        size = _entries(A, op)[0]
    mass, mass_dtype = _entries(M, op)
    m = 0 if is_ordinary(mass, mass_dtype) else even_exponent(mass, mass_dtype)
    shift = 0.0 if sigma is None else abs(sigma) * mass
    if 0 < size < math.ldexp(shift, -2 * ordinary_exponent(op.dtype)):
        raise OptionError(
            f"sigma: got {sigma:g}, from which no eigenvalue can be told in {op.dtype}: the entries of A are "
            f"about {size:.1g}" + (f", those of M {mass:.1g}." if M is not None else ".")
        )
    largest = max(size, shift)
    a = 0 if is_ordinary(largest, op.dtype) else even_exponent(largest, op.dtype)
    inner = a if mode == "buckling" else m
    return Scaling(a, m, inner, columns, applications, is_known, asymmetry, frozenset(removed), spacings[0])


def _scaled_operator(op: Operator, exponent: int) -> Operator:
    half = 2.0 ** (-exponent // 2)

    def product(X: Any) -> Any:
        return op.apply(BlockVector(X, copy=True, layout=op.layout).scale(half)).scale(half).array

    scaled = as_operator(product, shape=op.shape, dtype=op.dtype, device=op.device, layout=op.layout)
    if hasattr(op, "nnz"):
        scaled.nnz = op.nnz  # type: ignore[attr-defined]
    return scaled


def _checked(name: str, op: Operator) -> tuple[float, float]:
    """Return the norm of a matrix and how far it is from Hermitian, zeros where that cannot be computed."""
    try:
        with precompiled("check", op), np.errstate(over="ignore", invalid="ignore"):
            return op.hermitian_defect(0, name=name)
    except BreakdownError:  # squares may have overflowed
        return 0.0, 0.0


def _judge_scaled(name: str, op: Operator, spacing: float) -> None:
    """Refuse a scaled matrix that is not Hermitian; `spacing` is eps of the type that it is given in."""
    judged(name, op, None, op.hermitian_defect(0, name=name)[1], spacing, 0.0, op.dtype)


def _entries(matrix: Any, op: Operator) -> tuple[float, Any]:
    """Return the largest magnitude of entries, 1 where there are none, and the type that they are used in.

    What is no matrix of finite numbers counts as one without entries; it is refused where it is used.
    """
    if not is_explicit(matrix) or matrix.dtype.kind not in "iubfc":
        return 1.0, op.dtype
    entries = np.asarray(matrix) if isinstance(matrix, np.ndarray) else matrix
    if hasattr(matrix, "format"):
        entries = (matrix if matrix.format in ("csr", "csc", "coo") else matrix.tocsr()).data
    largest = _largest(entries)
    return largest if 0 < largest < math.inf else 1.0, np.promote_types(op.dtype, entries.dtype)


def product_rounding(A: Any, dtype: Any) -> float:
    """Bound rounding errors of products with a sparse matrix of the host, per ||x||; 0 without long rows.

    A row is a sum of as many products as it has entries. Their rounding errors can all have one sign, like
    those of a hub that adds the equal numbers of all other nodes.
    """
    if getattr(A, "format", "") not in ("csr", "csc") or not isinstance(A.indptr, np.ndarray):
        return 0.0
    lengths = np.diff(A.indptr)
    rows = np.flatnonzero(lengths > FLOOR)
    if not len(rows):
        return 0.0
    squares, ends = np.append(np.abs(A.data) ** 2, 0), np.stack([A.indptr[rows], A.indptr[rows + 1]], axis=1)
    sizes = np.sqrt(np.add.reduceat(squares, ends.ravel())[::2])
    return float(np.finfo(dtype).eps) / 2 * float((lengths[rows] * sizes).max())


def magnitude(function: Callable[[Any], Any], op: BlockOperator, name: str) -> float:
    """Compute the largest component of the product with a random vector."""
    for half in (0, -np.finfo(op.dtype).maxexp // 2):  # the product with the first one may overflow
        x = empty_block(op).random_like(1, 0).scale(2.0**half)
        with np.errstate(over="ignore", invalid="ignore"):
            own = _largest(to_host(function(x).array))
        found = largest(op.layout, own)
        if math.isfinite(found):
            return float(min(times(found, -half), np.finfo(np.float64).max))
    where = ""
    if op.layout is not None:
        rank = -largest(op.layout, -math.inf if math.isfinite(own) else -op.layout.rank)
        where = f" in rows of process {rank:.0f}"
    raise BreakdownError(f"{name} returned NaN or Inf for a finite block{where}; check its entries.")


def _largest(array: Any) -> float:
    """Return the largest magnitude of real and imaginary parts; NaN if there is one, 0 if there are none."""
    if array.size == 0:
        return 0.0
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    return float(np.max([(float(part.max()), -float(part.min())) for part in parts]))


def even_exponent(number: float, dtype: Any) -> int:
    """Return an even exponent of a number, whose power of two and its inverse are normal numbers."""
    most = np.finfo(dtype).maxexp - 2
    return int(np.clip(math.frexp(number)[1] // 2 * 2, -most, most))


def judged(
    name: str, op: Operator, matrix: Any, defect: float, eps: float, tol: float, dtype: Any
) -> tuple[float, bool]:
    """Judge the defect that `Operator.hermitian_defect` has found.

    Returns the asymmetry, zero where rounding of the caller's own type explains it, and whether the Hermitian
    part takes the place of the matrix. `matrix` is what the operator applies, `eps` that of the element type
    in which it was given, `tol` the accuracy that is asked for, relative to ||A||, and `dtype` the type that
    the problem is solved in. What is neither rounding nor below what was asked for is refused.
    """
    working = float(np.finfo(dtype).eps)
    eps, is_matrix = max(eps, working), is_explicit(matrix)
    size, own = math.sqrt(op.shape[0]) * defect, ROUNDING * eps
    if is_matrix and size > ROUNDING * working:
        size = measured_size(op, matrix)
    if size <= ROUNDING * working:
        return 0.0, False
    is_removed = is_matrix and size <= max(own, min(tol, math.sqrt(working)))
    if defect > NOT_HERMITIAN * eps and not is_removed:
        raise OptionError(
            f"{name} is not Hermitian: {name} z and {name}^H z differ by {'' if is_matrix else 'about '}"
            f"{size:.1e} of |{name} z| for a random z; pass ({name} + {name}.conj().T) / 2 if the difference "
            "is noise."
        )
    return (size if size > own else 0.0), is_removed


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


def may_have_penalties(A: Any) -> bool:
    """Check whether a matrix has diagonal elements that are far larger than most."""
    if not is_explicit(A) or not hasattr(A, "diagonal") or A.ndim != 2 or A.shape[0] != A.shape[1]:
        return False
    if np.ma.is_masked(A) or A.dtype.kind not in "iufc" or not A.shape[0]:
        return False  # which is refused when it becomes an operator
    diagonal = diagonal_of(A)
    low, high = float(diagonal.min()), float(diagonal.max())
    largest = max(high, -low)
    if not FAR * max(low, -high, 0) < largest < math.inf:
        return False  # without a copy of a GPU's values, for which CuPy would compile kernels
    return bool(np.median(np.abs(to_host(diagonal))) < largest / FAR)
