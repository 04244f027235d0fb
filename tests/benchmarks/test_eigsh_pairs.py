"""The table of pairs without a shift: its draw, and the record of a small case."""

from __future__ import annotations

import scipy.sparse as sp

from blockvec.models import model
from tests.benchmarks.eigsh_pairs import ENDS, Case, cases, line, record, reference, summary


def test_a_seed_draws_twelve_symmetric_pairs_for_five_ends() -> None:
    drawn = list(cases(1))
    assert [case.which for case in drawn] == list(ENDS) * 12
    for case in drawn[:: len(ENDS)]:
        for A in (case.A, case.M):
            assert abs(A - A.T).max() <= 1e-12 * abs(A).max()
        assert case.M.diagonal().min() > 0


def test_both_solvers_are_compared_with_dense_lapack() -> None:
    M = sp.diags_array([1 / 6, 2 / 3, 1 / 6], offsets=[-1, 0, 1], shape=(200, 200), format="csr")
    case = Case("chain", model("laplace1d:n=200"), 4, "LA", M=M)
    one = record(case, reference(case), turns=1)
    assert (one["wrong"], one["peers"]["scipy"]["wrong"]) == (0, 0)
    assert one["orthogonality"] < 1e-10
    assert line(one).startswith("chain")
    assert "0 not right" in summary([one])
