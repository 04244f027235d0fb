"""The table of small and easy problems: its draws, and the record of a small case."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from tests.benchmarks.eigsh_easy import Case, cases, line, record, smallest, summary


def test_both_solvers_find_the_same_values_to_the_same_accuracy() -> None:
    values = np.r_[np.linspace(0, 1, 597), 2.0, 2.5, 3.0]
    one = record(Case("diagonal", sp.diags_array(values, format="csr"), 2), turns=1)
    peer = one["peers"]["scipy"]
    assert one["converged"] == 2
    assert (one["missed"], peer["missed"]) == (0, 0)
    assert max(one["residual"], peer["residual"]) <= 1e-8
    assert line(one).startswith("diagonal")
    assert "of 1 above" in summary([one])


def test_a_seed_draws_thirty_symmetric_problems_and_another_seed_others() -> None:
    first, second = list(cases(1)), list(cases(2))
    assert len(first) == len(second) == 30
    assert sum(one.name == other.name for one, other in zip(first, second, strict=True)) < 10
    for case in first:
        difference = case.A - case.A.conj().T
        assert abs(difference).max() <= 1e-12 * abs(case.A).max()


def test_the_smallest_values_are_asked_of_semidefinite_matrices() -> None:
    drawn = list(smallest(1))
    assert len(drawn) == 14
    for case in drawn:
        if case.A.shape[0] <= 1000:
            assert np.linalg.eigvalsh(case.A.toarray()).min() > -1e-12
    one = record(min(drawn, key=lambda case: case.A.shape[0]), turns=1)
    assert (one["missed"], one["which"]) == (0, "SM")
    assert one["residual"] <= 1e-8
