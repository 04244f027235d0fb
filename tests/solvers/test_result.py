"""The summary of a result, its tables, and the messages and the bar that show a solve's progress."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from blockvec import models
from solvers import EigenResult, eigsh

A = models.model("laplace2d:n=24")


def solve(**options: Any) -> EigenResult:
    result: EigenResult = eigsh(A, 5, which="LA", method="lanczos", rng=0, return_info=True, **options)
    return result


def test_the_summary_tells_convergence_copies_and_costs() -> None:
    result = solve(tol=1e-8)
    summary = result.summary()
    assert summary.startswith("5 eigenvalues, all converged; no copy of a multiple eigenvalue is missing")
    assert "(checked). Method lanczos: " in summary
    assert f"{result.info['operator_columns']} products of A" in summary
    assert str(result).endswith(summary)


def test_the_summary_counts_pairs_that_did_not_converge() -> None:
    result = solve(maxiter=1, tol=1e-14, on_unconverged="return")
    assert result.summary().startswith(f"5 eigenvalues, {int(result.converged.sum())} converged")
    assert "1 restart," in result.summary()


def test_a_result_unpacks_and_is_one_line_in_a_list_and_a_table_in_a_notebook() -> None:
    result = solve(tol=1e-8, verify="never").with_info(verification="1 < 2")
    w, X = result
    assert w is result.eigenvalues
    assert X is result.eigenvectors
    assert repr(result).startswith("EigenResult(k=5, converged 5/5, copies skipped, residual <= ")
    assert len(repr(result)) < 120
    page = result._repr_html_()
    assert page.count("<tr>") == 6
    assert "1 &lt; 2" in page


def test_the_logger_tells_decisions_restarts_and_the_outcome(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "blockvec"):
        result = solve(tol=1e-8)
    levels = {level: [r.getMessage() for r in caplog.records if r.levelno == level] for level in (10, 20)}
    assert any("block size" in message for message in levels[logging.DEBUG])
    assert len([m for m in levels[logging.INFO] if m.startswith("restart")]) == len(result.history)
    assert levels[logging.INFO][-1] == result.summary()
