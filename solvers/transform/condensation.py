"""A problem with a singular M, reduced to its finite eigenvalues without a shift (static condensation).

With M = C C^H, R with C^H R = I, and a basis N of the null space of M, vectors are x = R y + N z. Rows of
N^H (A x - lambda M x) = 0 give z = -A_nn^-1 N^H A R y with A_nn = N^H A N, and the others

    (A_rr - A_rn A_nn^-1 A_nr) y = lambda y.

For degrees of freedom without masses N consists of columns of the identity. Values far from a shift are as
accurate as all others here, in contrast to those of (A - sigma M)^-1.

References
----------
Guyan, AIAA J. 3 (1965) 380. Deviation: no approximation, since the null space has no masses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import Operator, as_operator, factorize

from ..blocks import Array
from ..factorization.gram import ROUNDING, pivoted_factor
from ..result import SingularError
from .spectral_map import SpectralMap
from .standard_form import StandardForm, standard_form


def form_without_shift(
    operator: Operator, A: Any, M: Any, method: str = "auto", *, may_condense: bool = True
) -> StandardForm:
    """Form a problem without a shift, of a singular M on the host with its finite eigenvalues only."""
    try:
        return standard_form(operator, A, M, None, method=method)
    except SingularError:
        form = condensed_form(operator, A, M) if may_condense and operator.device == "cpu" else None
        if form is None:
            raise
        return form


def condensed_form(operator: Operator, A: Any, M: Any) -> StandardForm | None:
    """Form a problem of a few thousand rows of the host, as dense matrices, without the null space of M.

    None if A is singular there, as with Lagrange multipliers, or if nothing is to be eliminated.
    """
    dtype = np.promote_types(operator.dtype, M.dtype)
    dense, mass = (sp.csr_array(matrix).astype(dtype).toarray() for matrix in (A, M))
    C, order = pivoted_factor(mass, ROUNDING * float(np.finfo(M.dtype).eps))
    rank = C.shape[1]
    if rank == len(mass):
        return None
    first, rest = order[:rank], order[rank:]
    lower = C[first]  # a triangle
    R, N = (np.zeros((len(mass), columns), dtype) for columns in (rank, len(rest)))
    R[first] = sl.solve_triangular(lower, np.eye(rank, dtype=dtype), lower=True, trans="C")
    N[first] = -sl.solve_triangular(lower, C[rest].conj().T, lower=True, trans="C")
    N[rest] = np.eye(len(rest))
    coupling = N.conj().T @ dense
    factors = factorize(coupling @ N)
    if factors.is_singular:
        return None
    Z = factors.solve_columns(np.asfortranarray(-coupling @ R))
    X: Array = R + N @ Z
    S = R.conj().T @ (dense @ X)
    return StandardForm(
        operator=as_operator((S + S.conj().T) / 2),
        A=operator,
        M=as_operator(M),
        inner=as_operator(M),
        into=lambda B: C.conj().T @ B,
        vectors=lambda Y: X @ Y,
        map=SpectralMap(),
        why="rows without masses are eliminated",
        out_of=lambda Y: C @ Y,
    )
