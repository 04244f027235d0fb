"""The comparison of eigensolvers: its rule, its count of missed copies, and a small run of it."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.drawn_problems import KINDS, draw
from tests.benchmarks.eigen_problems import TARGET, Problem, Run, Source, Task, missed, problems, union
from tests.benchmarks.eigen_solvers import HOST_PEERS, arpack_runs, first_accepted
from tests.benchmarks.eigsh_beside_peers import advantage, compare, lines, summary

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


def small_problem() -> Problem:
    return next(problems([SMALL], None, "cpu"))


def test_residuals_and_orthogonality_are_judged_truly() -> None:
    problem = small_problem()
    w, V = np.linalg.eigh(problem.host.toarray())
    good = problem.judge(Run(1.0, 1, w[:7], V[:, :7]))
    assert max(good.residual, good.orthogonality) < 1e-13
    off = problem.judge(Run(1.0, 1, w[:7] + 1e-6 * problem.norm, V[:, :7]))
    assert 0.99e-6 < off.residual < 1.01e-6
    twice = problem.judge(Run(1.0, 1, w[[0, 0]], V[:, [0, 0]]))
    assert twice.orthogonality > 0.99


def test_all_solvers_meet_the_rule_on_a_small_matrix_and_blockvec_misses_nothing() -> None:
    record = compare(small_problem(), HOST_PEERS, limit_s=60.0)
    assert (record["operation"], record["matrix"], record["n"]) == ("eigsh", SMALL.matrix, 512)
    assert record["missed"] == 0
    right = [record, *(peer for peer in record["peers"].values() if peer["time_s"] is not None)]
    assert len(right) >= 2  # a right peer's time limits the others
    for entry in right:
        assert entry["residual"] <= TARGET
        assert entry["operator_columns"] > 0
    assert list(record["peers"]) == list(HOST_PEERS)
    assert len(list(lines(record))) == 1 + len(HOST_PEERS)


def test_the_closed_form_of_graphene_is_its_spectrum() -> None:
    source = Source.of("graphene:nx=6,ny=8", None)
    w = np.linalg.eigvalsh(source.matrix.toarray())
    assert source.spectrum is not None
    np.testing.assert_allclose(source.spectrum[0], w, atol=1e-13)


def test_a_solver_that_is_out_of_time_gave_up() -> None:
    judged = first_accepted(arpack_runs, small_problem(), limit_s=0.0)
    assert judged.run is None
    assert judged.limit_s == 0.0
    assert "not done" in judged.note


def test_only_right_peers_count_and_stopped_ones_give_a_bound() -> None:
    peers = {"wrong": {"time_s": 1.0, "missed": 1}, "right": {"time_s": 6.0, "missed": 0}}
    stopped = {"slow": {"time_s": None, "limit_s": 4.0}, "failed": {"time_s": None, "limit_s": None}}
    exact = {"time_s": 2.0, "missed": 0, "peers": peers}
    bound = {"time_s": 2.0, "missed": 0, "peers": {"wrong": peers["wrong"]} | stopped}
    assert advantage(exact) == (3.0, True)
    assert advantage(bound) == (2.0, False)
    assert advantage({"time_s": 2.0, "missed": 1, "peers": peers}) is None
    assert "2.45 times as fast (geometric mean of 2, 1 of them lower bounds)" in summary([exact, bound])


def test_a_drawn_problem_is_made_again_from_its_text_alone() -> None:
    drawn = draw(5, len(KINDS), 2e3)
    assert drawn == draw(5, len(KINDS), 2e3) != draw(6, len(KINDS), 2e3)
    assert {text.partition(":")[0] for text, *_ in drawn} == set(KINDS)
    for text, k, which in drawn:
        A, again = Source.of(text, None).matrix, Source.of(text, None).matrix
        assert abs(A - A.conj().T).max() == 0
        assert abs(A - again).max() == 0
        assert k < A.shape[0] < 4e3
        assert which in ("SA", "LA", "LM")
