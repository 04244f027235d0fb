"""Generalised problems and shift-invert as standard Hermitian ones, which the iterations solve.

With a factor C C^H of the matrix of the inner product (M, or A in buckling mode) and y = C^H x,

    A x = lambda M x,                   C^-1 A C^-H y = lambda y,                       no shift
    theta = 1/(lambda - sigma),         C^H (A - sigma M)^-1 C y = theta y,             normal
    theta = (lambda + sigma)/(lambda - sigma),  the same operator, times 2 sigma, plus one,  cayley
    theta = lambda/(lambda - sigma),    C^H (A - sigma M)^-1 C y = theta y, A = C C^H,  buckling

C may have fewer columns than rows: a singular M (massless degrees of freedom) makes the space of y smaller,
and infinite eigenvalues never appear. Vectors come back by one more solve, x = (A - sigma M)^-1 C y, which
is a step of inverse iteration and cleans them.

References
----------
Ericsson, Ruhe, Math. Comp. 35 (1980) 1251; Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228.
Deviation: a factor of M in the operator instead of the M-inner product in the iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import SuperLU, splu

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import DeviceError, DTypeError, OptionError, ShapeError

from ..blocks import Array, Block, RealArray, to_host
from ..iterations.rayleigh_ritz import FLOOR, Tolerance
from ..iterations.spectrum import sketch_spectrum
from ..result import EigenResult

__all__ = [
    "Factor",
    "SingularError",
    "StandardForm",
    "factorise",
    "form_at_zero",
    "gram_factor",
    "restored",
    "standard_form",
]

Solve = Callable[[Array], Array]

NORM_STEPS = 10  # of Lanczos, for the norms in the convergence rule: they need one digit
NEGLIGIBLE = 1e-13  # pivots of a semidefinite matrix below this fraction of the largest are zero
UNSURE = 1e-10  # pivots below this fraction, taken without exchanges, may be rounding
DENSE_ROWS = 4000  # a semidefinite matrix may be factorised densely up to here
SINGULAR = 30.0  # a matrix with an eigenvalue below so many u |x|^H |A| |x| is singular
SMALL_SHIFT = 0.01  # times the square root of the roundoff and ||A||: the shift where A itself is singular


@dataclass(frozen=True)
class Factor:
    """A factor C with C C^H equal to a Hermitian positive semidefinite matrix.

    Attributes
    ----------
    C : sparse matrix, shape (n, r)
    solve, solve_adjoint : callable, or None
        C^-1 and C^-H on blocks, where C is square.
    """

    C: Any
    solve: Solve | None
    solve_adjoint: Solve | None


@dataclass(frozen=True)
class StandardForm:
    """A problem A x = lambda M x as S y = theta y.

    Attributes
    ----------
    operator : Operator, shape (r, r)
        S.
    A, M : Operator
        Of the user's problem; M is None for the identity.
    inner : Operator or None
        C C^H, in whose inner product vectors are orthonormal; None for the identity.
    into : callable
        y = C^H x of a block of vectors.
    vectors, values : callable
        x of each y, not normalised, and lambda of each theta.
    why : str
        What was done, for people.
    out_of : callable or None
        C y of a block of vectors, where there is no shift: x^H (C y) is an inner product of transformed ones.
    """

    operator: Operator
    A: Operator
    M: Operator | None
    inner: Operator | None
    into: Solve
    vectors: Solve
    values: Callable[[RealArray], RealArray]
    why: str
    out_of: Solve | None = None

    def preconditioner(self, apply: Callable[[Block], Block]) -> Callable[[Array], Array]:
        """Return C^H K^-1 C, which is to S what K^-1 is to A and M."""
        out_of = self.out_of
        assert out_of is not None
        return lambda Y: self.into(apply(BlockVector(np.ascontiguousarray(out_of(Y)))).array)


class SingularError(OptionError):
    """A - sigma M is singular."""


def form_at_zero(A: Any, M: Any, OPinv: Any, mode: str, device: str | None) -> StandardForm:
    """Transform a problem with a shift of zero, or as near to it as A allows where it is singular."""
    try:
        return standard_form(A, M, 0.0, OPinv, mode, device)
    except SingularError:
        matrix = _host_matrix("A", A)
        dtype = matrix.dtype if matrix.dtype.kind in "fc" else np.dtype(np.float64)  # of the solver
        unit = float(np.finfo(np.promote_types(dtype, np.float32)).eps)
        scale = float(abs(matrix).sum(axis=0).max()) or 1.0
        scale /= 1.0 if M is None else float(abs(_host_matrix("M", M)).sum(axis=0).max())
        # Below a semidefinite matrix the order of values is the same.
        return standard_form(A, M, -SMALL_SHIFT * unit**0.5 * scale, None, mode, device)


def standard_form(
    A: Any, M: Any, sigma: float | None, OPinv: Any, mode: str, device: str | None
) -> StandardForm:
    """Transform a problem.

    Parameters
    ----------
    A : sparse matrix or dense array of the host
        With `OPinv` anything that `as_operator` takes.
    M : sparse matrix or dense array of the host, or None
        Positive definite; with a shift also semidefinite; in buckling mode indefinite.
    sigma : float or None
        The shift.
    OPinv : LinearOperator, Operator or callable, or None
        (A - sigma M)^-1 where the user has one.
    mode : {"normal", "buckling", "cayley"}
    device : str or None

    Raises
    ------
    OptionError
        For an M that is not what it has to be, a shift that is an eigenvalue, or a matrix that is needed
        explicitly and is not.
    """
    operator = as_operator(A, device=device) if _is_matrix(A) or OPinv is None else _function(A, M, device)
    if operator.device != "cpu" and (M is not None or OPinv is None):
        raise DeviceError(
            f"A: is on {operator.device}, but factorisations run on the host; give A as a matrix of the host"
            + (", or OPinv." if M is None else ".")
        )
    mass = None if M is None else as_operator(_host_matrix("M", M))
    if mass is not None and mass.shape != operator.shape:
        raise ShapeError(
            f"M is {mass.shape[0]} x {mass.shape[1]} but A is {operator.shape[0]} x {operator.shape[1]}."
        )
    dtype = operator.dtype if mass is None else np.promote_types(operator.dtype, mass.dtype)
    mass_matrix = None if M is None else _host_matrix("M", M, dtype)
    if sigma is None:
        if mass_matrix is None:
            raise OptionError(
                "standard_form: got neither M nor sigma; a standard problem needs no other form."
            )
        return _without_shift(operator, mass, gram_factor("M", mass_matrix))
    if mode == "buckling":
        if sigma == 0:
            raise OptionError("sigma: got 0, which buckling mode maps everything to one; give another shift.")
        factor: Factor | None = gram_factor("A", _host_matrix("A", A, dtype), "in buckling mode")
    else:
        factor = None if mass_matrix is None else gram_factor("M", mass_matrix)
    if OPinv is None:
        shifted = _host_matrix("A", A, dtype) - sigma * (
            sp.eye_array(operator.shape[0], dtype=dtype) if mass_matrix is None else mass_matrix
        )
        solve, why = _shifted_solve(shifted.tocsc(), sigma)
    else:
        if not (hasattr(OPinv, "shape") or callable(OPinv)):
            raise OptionError(f"OPinv: got {OPinv!r}; give a linear operator, a function or a matrix.")
        inverse = _function(OPinv, operator, operator.device)
        if inverse.shape != operator.shape:
            raise ShapeError(f"OPinv has shape {inverse.shape} but A has {operator.shape}.")
        solve, why = (lambda X: inverse.apply(BlockVector(X)).array), f"with OPinv for sigma = {sigma:g}"
    return _with_shift(operator, mass, factor, solve, float(sigma), mode, why, np.dtype(dtype))


def _without_shift(A: Operator, M: Operator | None, factor: Factor) -> StandardForm:
    if factor.solve is None or factor.solve_adjoint is None:
        raise OptionError("M is singular; give sigma, with which infinite eigenvalues do no harm.")
    back, forth = factor.solve_adjoint, factor.solve
    adjoint = factor.C.conj().T.tocsr()

    def apply(Y: Array) -> Array:
        return forth(A.apply(BlockVector(np.ascontiguousarray(back(Y)))).array)

    return StandardForm(
        operator=as_operator(apply, shape=A.shape, dtype=np.promote_types(A.dtype, factor.C.dtype)),
        A=A,
        M=M,
        inner=M,
        into=lambda X: adjoint @ X,
        vectors=back,
        values=lambda theta: theta,
        why="M is factorised",
        out_of=lambda Y: factor.C @ Y,
    )


def _with_shift(
    A: Operator,
    M: Operator | None,
    factor: Factor | None,
    solve: Solve,
    sigma: float,
    mode: str,
    why: str,
    dtype: np.dtype[Any],
) -> StandardForm:
    size = A.shape[0] if factor is None else factor.C.shape[1]
    C = None if factor is None else factor.C
    adjoint = None if C is None else C.conj().T.tocsr()

    def vectors(Y: Array) -> Array:
        return solve(Y if C is None else C @ Y)

    def into(X: Array) -> Array:
        return X if adjoint is None else adjoint @ X

    def apply(Y: Array) -> Array:
        product = into(vectors(Y))
        return Y + 2 * sigma * product if mode == "cayley" else product

    def values(theta: RealArray) -> RealArray:
        with np.errstate(divide="ignore"):
            if mode == "normal":
                return sigma + 1 / theta
            return sigma * (theta + 1) / (theta - 1) if mode == "cayley" else sigma * theta / (theta - 1)

    return StandardForm(
        operator=as_operator(apply, shape=(size, size), dtype=dtype, device=A.device),
        A=A,
        M=M,
        inner=A if mode == "buckling" else M,
        into=into,
        vectors=vectors,
        values=values,
        why=why,
    )


def gram_factor(name: str, matrix: Any, purpose: str = "") -> Factor:
    """Return C with C C^H = matrix, for a Hermitian positive semidefinite one.

    Rows without entries are left out of C. A matrix that is singular in another way becomes dense.

    Raises
    ------
    OptionError
        Where the matrix is not Hermitian, indefinite, or too large to be made dense.
    """
    as_operator(matrix).check_hermitian(0)
    where = f" {purpose}" if purpose else ""
    indefinite = f"{name} is indefinite; it must be positive definite{where}."
    diagonal = matrix.diagonal().real
    if len(diagonal) and diagonal.min() < 0:
        raise OptionError(indefinite)
    n = matrix.shape[0]
    rows = matrix.tocsr()
    live = np.flatnonzero(np.diff(rows.indptr))
    inner = rows[live][:, live].tocsc()
    if (inner - sp.diags_array(inner.diagonal())).count_nonzero() == 0:
        place, pivots = np.arange(len(live)), inner.diagonal()
        lower: Any = sp.eye_array(len(live), dtype=matrix.dtype, format="csc")
    else:
        lu = factorise(inner, 0.0)
        # Rows are exchanged for a pivot that is zero; a small one may be what rounding has left of it.
        if lu is None or not np.array_equal(lu.perm_r, lu.perm_c) or _smallest_ratio(lu) < UNSURE:
            if len(live) > DENSE_ROWS:
                raise OptionError(
                    f"{name} is singular or indefinite; it must be positive definite{where}, but for rows of "
                    "zeros."
                )
            return Factor(_scatter(_dense_factor(inner.toarray(), indefinite), live, n), None, None)
        place, pivots, lower = lu.perm_r, lu.U.diagonal(), lu.L
    largest = np.abs(pivots).max(initial=0.0)
    if len(live) and pivots.real.min() < -NEGLIGIBLE * largest:
        raise OptionError(indefinite)
    kept = np.flatnonzero(pivots.real > NEGLIGIBLE * largest)
    triangle = (lower @ sp.diags_array(np.sqrt(np.maximum(pivots.real, 0)))).tocsc()[:, kept]
    C = _scatter(triangle.tocsr()[place], live, n)
    if len(kept) < n:
        return Factor(C, None, None)
    solver: Any = splu(triangle, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"Equil": False})
    order = np.argsort(place)
    return Factor(
        C,
        lambda X: solver.solve(np.ascontiguousarray(X[order])),
        lambda Y: solver.solve(np.ascontiguousarray(Y), "H")[place],
    )


def _smallest_ratio(lu: SuperLU) -> float:
    pivots = lu.U.diagonal().real
    return float(pivots.min() / np.abs(pivots).max())


def _dense_factor(A: Array, indefinite: str) -> Any:
    """Return C with C C^H = A of a semidefinite matrix, by Cholesky with diagonal pivoting."""
    pstrf: Any = sl.get_lapack_funcs("pstrf", (A,))
    largest = float(np.abs(A.diagonal()).max())
    factor, order, rank, _ = pstrf(A, lower=1, tol=NEGLIGIBLE * largest)
    C = np.zeros((len(A), rank), A.dtype)
    C[order - 1] = np.tril(factor)[:, :rank]
    if np.abs(A - C @ C.conj().T).max() > NEGLIGIBLE * len(A) * largest:
        raise OptionError(indefinite)
    return sp.csr_array(C)


def _scatter(rows: Any, live: NDArray[Any], n: int) -> Any:
    """Put the rows of a sparse matrix at the places `live` of n."""
    coo = rows.tocoo()
    return sp.csr_array((coo.data, (live[coo.row], coo.col)), shape=(n, rows.shape[1]))


def factorise(matrix: Any, threshold: float) -> SuperLU | None:
    """Return a sparse LU factorisation that keeps to the diagonal, or None where the matrix is singular."""
    try:
        return splu(
            matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=threshold, options={"SymmetricMode": True}
        )
    except RuntimeError:
        return None


def _shifted_solve(shifted: Any, sigma: float) -> tuple[Solve, str]:
    lu = factorise(shifted, 0.01)
    if lu is None or not np.isfinite(lu.U.diagonal()).all() or _is_singular(shifted, lu):
        raise SingularError(
            f"sigma: A - sigma M is singular for sigma = {sigma:g}, an eigenvalue to working precision; "
            "move sigma a little."
        )
    fill = (lu.L.nnz + lu.U.nnz) / max(shifted.nnz, 1)
    dtype = shifted.dtype

    def solve(X: Any) -> Array:
        # Real factors take a complex block in two halves.
        if np.iscomplexobj(X) and dtype.kind != "c":
            return lu.solve(np.ascontiguousarray(X.real)) + 1j * lu.solve(np.ascontiguousarray(X.imag))
        return lu.solve(np.ascontiguousarray(X, dtype=dtype))

    return solve, f"A - sigma M is factorised for sigma = {sigma:g}, with {fill:.1f} times its entries"


def _is_singular(matrix: Any, lu: SuperLU) -> bool:
    """Whether the least eigenvalue is none but rounding, after two steps of inverse iteration."""
    x = np.random.default_rng(0).standard_normal(matrix.shape[0]).astype(matrix.dtype)
    for _ in range(2):
        x = lu.solve(x / np.linalg.norm(x))
        length = float(np.linalg.norm(x))
        if not np.isfinite(length):
            return True
    size = np.abs(x) / length
    unit = float(np.finfo(matrix.dtype).eps) / 2
    return 1 / length <= SINGULAR * unit * float(size @ (abs(matrix) @ size))


def _is_matrix(A: Any) -> bool:
    return sp.issparse(A) or isinstance(A, np.ndarray) or hasattr(A, "tocsr")


def _function(A: Any, like: Any, device: str | None) -> Operator:
    shape = getattr(A, "shape", None) or getattr(like, "shape", None)
    return as_operator(A, shape=shape, dtype=getattr(like, "dtype", None), device=device)


def _host_matrix(name: str, A: Any, dtype: Any = None) -> Any:
    """Return an explicit matrix in compressed column form, which may share canonical arrays with A."""
    if not (sp.issparse(A) or isinstance(A, np.ndarray)):
        raise OptionError(
            f"{name} is a {type(A).__name__}; a factorisation needs a sparse matrix or dense array of the "
            "host. Give one, or OPinv."
        )
    explicit: Any = A
    matrix = sp.csc_array(explicit)
    if matrix.dtype.kind not in "iubfc":
        raise DTypeError(f"{name} holds {matrix.dtype}; give real or complex numbers.")
    if not np.isfinite(matrix.data).all():
        raise OptionError(f"{name} holds NaN or Inf; check its entries.")
    if dtype is not None:
        return matrix.astype(dtype)
    # SciPy's abs() and splu() add up duplicates and sort in place: in a copy, not in the user's arrays.
    return matrix if matrix.has_canonical_format else matrix.copy()


# --- back to the user's problem ---------------------------------------------------------------------


def restored(
    form: StandardForm, result: EigenResult, tolerance: Tolerance, norm: float | None
) -> EigenResult:
    """Return the result for the user's problem: M-orthonormal vectors, and residuals with A and M.

    Parameters
    ----------
    form : StandardForm
    result : EigenResult
        Of S.
    tolerance : Tolerance
        For residuals ||A x - lambda M x||, relative to ||M x|| where it is relative to abs(lambda).
    norm : float or None
        ||A|| where it is known.
    """
    values = form.values(to_host(result.eigenvalues).astype(np.float64))
    xp = array_namespace(result.eigenvectors)
    # Errors of a solve lie along vectors near the shift: these come first, the others lose them to these.
    order = np.argsort(-np.abs(to_host(result.eigenvalues)), kind="stable")
    Y = xp.ascontiguousarray(result.eigenvectors[:, xp.asarray(order)])
    X = BlockVector(xp.ascontiguousarray(form.vectors(Y)))
    X.normalize()
    for _ in range(2):  # the first leaves what rounding did to a basis far from orthonormal in M
        G = to_host(X.dot(_times(form.inner, X)))
        inverse = np.linalg.inv(np.linalg.cholesky((G + G.conj().T) / 2)).conj().T
        X = X.combine(xp.asarray(inverse.astype(X.dtype)))
    ascending = np.argsort(values[order], kind="stable")
    values = values[order][ascending]
    X = X[:, ascending]
    MX = _times(form.M, X)
    R = form.A.apply(X).axpy(xp.asarray(-values.astype(X.array.real.dtype)), MX)
    residuals, lengths, masses = (to_host(B.norms()).astype(np.float64) for B in (R, X, MX))
    norms = _norm(form.A, X) if norm is None else norm, 1.0 if form.M is None else _norm(form.M, X)
    scale = norms[0] + np.abs(values) * norms[1]
    factor = {"value": np.abs(values) * masses, "norm": scale * lengths, "absolute": lengths}
    limits = np.maximum(
        tolerance.tol * factor[tolerance.convergence], FLOOR * tolerance.unit * scale * lengths
    )
    counts = {"norm": norms[0], "why": f"{result.info['why']}; {form.why}"}
    return EigenResult(
        eigenvalues=xp.asarray(values.astype(X.array.real.dtype)),
        eigenvectors=X.array,
        residuals=residuals,
        limits=limits,
        converged=residuals <= limits,
        info=result.info | counts,
        history=result.history,
    )


def _times(M: Operator | None, X: BlockVector) -> BlockVector:
    return X if M is None else M.apply(X)


def _norm(operator: Operator, like: BlockVector) -> float:
    return sketch_spectrum(operator, like, 1, NORM_STEPS, np.random.default_rng(0), None).norm
