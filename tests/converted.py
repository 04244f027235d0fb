"""Checks of sparse kernels that take the matrix in another form."""

from __future__ import annotations

import numpy as np

from blockvec.kernels.device import H200
from blockvec.kernels.families import CSR
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.sparse.csr_plan import CODE_BIT, MAX_VALUES, Codes, Plan


def coded(plan: Plan) -> Codes:
    """Encode the entries of a matrix of few different values."""
    table, places = np.unique(plan.data, return_inverse=True)
    padded = np.concatenate([table, np.zeros(MAX_VALUES - len(table), table.dtype)])
    return Codes(plan.indices + (places << CODE_BIT).astype(plan.indices.dtype), padded)


def assert_summed_up_in_order(p: SpmmvProblem) -> None:
    """Rows are summed entry after entry by `spmmv_csr`, which runs until the matrix has its form."""
    in_order = CSR.choose_in_order(p, H200)
    assert (in_order.split, in_order.flat) == (1, False)
    assert p.longest <= in_order.long_row
