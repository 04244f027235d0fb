"""The comparison of eigensolvers: its rule, its count of missed copies, and a small run of it."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.eigsh_beside_peers import (
    HOST_SOLVERS,
    TARGET,
    Problem,
    Run,
    Task,
    compare,
    lines,
    missed,
    union,
)

SMALL = Task("laplace3d:n=8", 7, "SA")  # 1 + 3 + 3 copies


def test_a_copy_that_is_not_there_is_missed_once() -> None:
    wanted = np.array([1.0, 2.0, 2.0, 2.0])
    assert missed(wanted + 1e-9, wanted, 1e-8) == 0
    assert missed(np.array([1.0, 2.0, 2.0, 3.0]), wanted, 1e-8) == 1
    assert missed(np.array([2.0, 2.0, 3.0, 4.0]), wanted, 1e-8) == 2
    assert missed(np.array([]), wanted, 1e-8) == 4


def test_what_solvers_found_together_holds_the_most_copies_of_each() -> None:
    one, other = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 3.0])
    assert union([one, other], Task("m", 4, "SA"), 1e-8).tolist() == [1.0, 2.0, 2.0, 3.0]
    assert union([one, other], Task("m", 2, "LA"), 1e-8).tolist() == [2.0, 3.0]


def test_residuals_and_orthogonality_are_judged_truly() -> None:
    problem = Problem(SMALL, None, "cpu")
    w, V = np.linalg.eigh(problem.host.toarray())
    good = problem.judge(Run(1.0, 1, w[:7], V[:, :7]))
    assert max(good.residual, good.orthogonality) < 1e-13
    off = problem.judge(Run(1.0, 1, w[:7] + 1e-6 * problem.norm, V[:, :7]))
    assert 0.99e-6 < off.residual < 1.01e-6
    twice = problem.judge(Run(1.0, 1, w[[0, 0]], V[:, [0, 0]]))
    assert twice.orthogonality > 0.99


def test_all_solvers_meet_the_rule_on_a_small_matrix_and_blockvec_misses_nothing() -> None:
    problem = Problem(SMALL, None, "cpu")
    record = compare(problem, HOST_SOLVERS, time_limit_s=60.0)
    assert (record["operation"], record["matrix"], record["n"]) == ("eigsh", SMALL.matrix, 512)
    assert record["missed"] == 0
    for entry in (record, *record["peers"].values()):
        assert entry["residual"] <= TARGET
        assert entry["operator_columns"] > 0
    assert list(record["peers"]) == ["scipy eigsh", "scipy lobpcg"]
    assert len(list(lines(record))) == 3


def test_a_solver_that_is_out_of_time_gave_up() -> None:
    problem = Problem(SMALL, None, "cpu")
    record = compare(
        problem, {"blockvec": HOST_SOLVERS["blockvec"], "slow": HOST_SOLVERS["scipy eigsh"]}, 60.0
    )
    assert record["peers"]["slow"]["time_s"] is not None
    out = compare(problem, {"blockvec": HOST_SOLVERS["scipy eigsh"]}, time_limit_s=-1.0)
    assert out["time_s"] is None
    assert "not done" in out["note"]
