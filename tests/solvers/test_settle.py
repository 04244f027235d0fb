"""The end of a call: which results are returned in silence, with a warning, or not at all."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg

from blockvec import models
from blockvec.errors import BlockvecError
from solvers import (
    ConvergenceWarning,
    EigenResult,
    Interrupted,
    NoConvergence,
    eigsh,
    replace_eigsh,
)
from solvers.__main__ import main
from solvers.iterations.base import Iteration
from solvers.problem import Verification
from solvers.settle import doubt, is_complete, settle
from solvers.stages.dense import dense_eigenpairs
from solvers.stages.run import PAIR_RESTARTS
from solvers.transform import solution
from tests.matrices import springs

DIAGONAL = sp.diags_array(np.linspace(0, 1, 400), format="csr")
DOUBTFUL = [Verification.UNDECIDED, Verification.SKIPPED]
WAYS_TO_STOP = ["converged", "maxiter", "time_limit", "callback", "costly", "stagnated"]


@pytest.fixture(scope="module")
def solved() -> EigenResult:
    """Return a complete result, from which tests make others."""
    return eigsh(DIAGONAL, 4, which="LA", method="lanczos", rng=0, return_info=True)


def outcome(result: EigenResult, verify: Any, on_unconverged: str) -> str:
    """Settle a result; return what came of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            settle(result, verify, on_unconverged)
        except NoConvergence:
            return "raise"
    assert all(warning.category is ConvergenceWarning for warning in caught)
    return "warn" if caught else "silence"


@pytest.mark.parametrize("stopped", WAYS_TO_STOP)
@pytest.mark.parametrize("verification", Verification)
def test_copies_that_may_be_missing_never_leave_in_silence(
    solved: EigenResult, verification: Verification, stopped: str
) -> None:
    result = replace(solved, verification=verification).with_info(stopped=stopped)
    for on_unconverged in ("raise", "warn", "return"):
        ends = [outcome(result, verify, on_unconverged) for verify in ("never", "auto", "always")]
        if verification.is_decided:
            assert ends == ["silence"] * 3
        else:
            assert ends == ["silence", "warn", "raise" if on_unconverged == "raise" else "warn"]
    assert is_complete(result, "auto") == is_complete(result, "always") == verification.is_decided
    assert is_complete(result, "never")
    assert bool(doubt(result, "auto")) is not verification.is_decided
    assert doubt(result, "never") == ""


@pytest.mark.parametrize("stopped", WAYS_TO_STOP)
def test_copies_known_to_be_missing_are_no_fault_of_pairs_that_converged(
    solved: EigenResult, stopped: str
) -> None:
    result = solved.with_info(stopped=stopped, missing=2)
    with pytest.raises(NoConvergence, match=r"^All 4 pairs converged\. At least 2 copies are known"):
        settle(result, "auto", "raise")


@pytest.mark.parametrize("verify", ["never", "auto", "always"])
@pytest.mark.parametrize("stopped", WAYS_TO_STOP)
@pytest.mark.parametrize("verification", Verification)
def test_pairs_that_have_not_converged_follow_the_option_once(
    solved: EigenResult, verification: Verification, stopped: str, verify: Any
) -> None:
    result = replace(solved, verification=verification).with_info(stopped=stopped)
    unconverged = replace(result, converged=np.array([True, True, False, True]))
    incomplete = result.with_info(missing=1)
    for bad in (unconverged, incomplete, result.part(slice(3))):
        assert not is_complete(bad, verify)
        assert doubt(bad, verify) == ""
        ends = [outcome(bad, verify, option) for option in ("raise", "warn", "return")]
        assert ends == ["raise", "warn", "silence"]


@pytest.mark.parametrize("verify", ["never", "auto", "always"])
@pytest.mark.parametrize("on_unconverged", ["raise", "warn", "return"])
def test_an_interrupted_solve_always_raises_with_its_pairs(
    solved: EigenResult, verify: Any, on_unconverged: str
) -> None:
    for verification in Verification:
        result = replace(solved, verification=verification).with_info(stopped="interrupted")
        with pytest.raises(Interrupted) as stopped:
            settle(result, verify, on_unconverged)
        assert stopped.value.result is result


def test_the_message_says_what_was_not_searched_and_how_to_decide_it(solved: EigenResult) -> None:
    skipped = replace(solved, verification=Verification.SKIPPED)
    limited = doubt(skipped.with_info(stopped="maxiter", verification="skipped: the end"), "auto")
    assert "All 4 pairs converged" in limited
    assert "skipped: the end" in limited
    assert "raise maxiter" in limited
    assert "verify='never'" in limited
    undecided = doubt(replace(solved, verification=Verification.UNDECIDED), "auto")
    assert "not decided" in undecided
    assert "method='dense'" in undecided


def test_of_two_parts_the_less_sure_one_counts() -> None:
    order = list(Verification)
    for i, first in enumerate(order):
        for j, second in enumerate(order):
            assert first.joined(second) is order[max(i, j)]
    assert [each for each in order if not each.is_decided] == DOUBTFUL


def test_a_result_has_the_verification_for_programs_and_its_text_for_display(solved: EigenResult) -> None:
    assert solved.verification.is_decided
    assert solved.to_dict()["verification"] == solved.verification.value
    json.dumps(solved.to_dict())
    for verification in Verification:
        text = replace(solved, verification=verification).summary()
        assert ("no copy" in text) == verification.is_decided
        assert verification.is_decided or solved.info["verification"] in text


# --- calls -------------------------------------------------------------------------------------------


def never_searches(monkeypatch: pytest.MonkeyPatch, verification: Verification) -> None:
    """Let every search end without a decision."""

    def end(self: Iteration, state: Any) -> bool:
        self.verification = verification
        return True

    monkeypatch.setattr(Iteration, "_verified", end)
    monkeypatch.setattr(Iteration, "_doubtful", lambda self, theta: True)


CALL: dict[str, Any] = {"k": 4, "which": "LA", "rng": 0, "method": "lanczos"}


@pytest.mark.parametrize("verification", DOUBTFUL)
def test_a_call_without_a_decided_search_warns_and_with_always_raises(
    monkeypatch: pytest.MonkeyPatch, verification: Verification
) -> None:
    never_searches(monkeypatch, verification)
    with pytest.warns(ConvergenceWarning, match="copies of multiple eigenvalues may be missing") as caught:
        eigsh(DIAGONAL, **CALL)
    assert caught[0].filename == __file__
    with pytest.raises(NoConvergence, match="may be missing"):
        eigsh(DIAGONAL, **CALL, verify="always")
    with pytest.warns(ConvergenceWarning, match="may be missing"):
        eigsh(DIAGONAL, **CALL, verify="always", on_unconverged="warn")
    with pytest.warns(ConvergenceWarning, match="may be missing"), replace_eigsh():
        scipy.sparse.linalg.eigsh(DIAGONAL, **CALL)
    eigsh(DIAGONAL, **CALL, verify="never")


def test_auto_goes_on_to_dense_lapack_where_a_search_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    never_searches(monkeypatch, Verification.UNDECIDED)
    result = eigsh(DIAGONAL, 4, which="LA", rng=0, return_info=True, verify="always")
    assert result.verification.is_decided


def test_the_command_prints_that_copies_may_be_missing_and_has_an_exit_code_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    never_searches(monkeypatch, Verification.SKIPPED)
    arguments = ["laplace1d:n=400", "-k", "4", "--which", "LA", "--method", "lanczos", "--tol", "1e-3"]
    assert main(arguments) == 3
    captured = capsys.readouterr()
    assert "copies of multiple eigenvalues may be missing (not checked: " in captured.out
    assert captured.err.startswith("blockvec-eigs: All 4 pairs converged, but copies")
    assert main([*arguments, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["verification"] == "skipped"
    assert main([*arguments, "--verify", "never"]) == 0


def doubled(rows: int) -> tuple[Any, Any, Any]:
    """Return a membrane of varying mass, twice, and its lowest values."""
    K = models.model(f"laplace2d:n={rows}")
    M = sp.diags_array(np.linspace(1, 2, rows**2), format="csr")
    values = scipy.linalg.eigh(K.toarray(), M.toarray(), eigvals_only=True, subset_by_index=[0, 9])
    K2, M2 = (sp.csr_array(sp.block_diag([Z, Z])) for Z in (K, M))
    return K2, M2, np.repeat(values, 2)


@pytest.mark.parametrize("restarts", [3, 4, 6, 8])
@pytest.mark.parametrize("verify", ["auto", "always"])
def test_a_stage_that_ends_before_its_search_is_not_the_answer_for_a_pair(
    monkeypatch: pytest.MonkeyPatch, restarts: int, verify: Any
) -> None:
    monkeypatch.setitem(PAIR_RESTARTS, "host", restarts)
    monkeypatch.setattr("solvers.call.fits_dense", lambda op: False)
    K, M, values = doubled(16)
    for seed, tol in enumerate((1e-4, 1e-6, 1e-8, 1e-9)):
        options: dict[str, Any] = {"tol": tol, "convergence": "norm", "rng": seed, "verify": verify}
        result = eigsh(K, 6, M=M, which="SA", return_info=True, **options)
        assert np.abs(result.eigenvalues - values[:6]).max() <= result.limits.max()
        assert result.verification.is_decided


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("verify", ["auto", "always"])
def test_copies_of_a_large_pair_are_all_found(seed: int, verify: Any) -> None:
    K = sp.csr_array(sp.block_diag([models.model("laplace2d:n=90")] * 2))
    M = sp.csr_array(sp.block_diag([sp.diags_array(np.linspace(1, 2, 8100))] * 2))
    w, _ = eigsh(K, 6, M=M, which="SA", tol=1e-6, convergence="norm", rng=seed, verify=verify)
    assert np.allclose(w, [0.001574, 0.001574, 0.00388, 0.00388, 0.003999, 0.003999], atol=1e-6)


def chain(seed: int) -> tuple[Any, Any]:
    """Return a chain of springs with masses over four decades."""
    rng = np.random.default_rng(seed)
    masses = 10.0 ** rng.uniform(-2, 2, 50)
    return springs(10.0 ** rng.uniform(-1, 1, 51), masses)


@pytest.mark.parametrize("seed", range(8))
def test_what_dense_lapack_returns_for_graded_masses_is_the_answer(seed: int) -> None:
    K, M = chain(seed)
    values = scipy.linalg.eigh(K.toarray(), M.toarray(), eigvals_only=True)
    ends = np.r_[values[:5], values[-5:]]
    for k, which, right in ((50, "SA", values), (10, "BE", ends), (10, "SA", values[:10])):
        result = eigsh(K, k, M=M, which=which, rng=seed, return_info=True)
        assert np.abs(result.eigenvalues - right).max() <= 1e-12 * values[-1]


def test_a_wrong_result_of_dense_lapack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    K, M = chain(5)

    def spoiled(by: float) -> Any:
        def solve(*arguments: Any) -> Any:
            theta, X, norm = dense_eigenpairs(*arguments)
            return theta * (1 + by), X, norm

        return solve

    def unrefined(form: Any, inner: EigenResult, inside: Any, problem: Any, norms: Any) -> EigenResult:
        return solution._transformed_back(form, inner, problem, norms)

    monkeypatch.setattr(solution, "_refined", unrefined)
    for by, error in ((1e-6, NoConvergence), (np.nan, BlockvecError)):
        monkeypatch.setattr("solvers.stages.drivers.dense_eigenpairs", spoiled(by))
        with pytest.raises(error):
            eigsh(K, 50, M=M, which="SA", method="dense", rng=0)


@pytest.mark.parametrize("stopped", ["interrupted", "time_limit"])
def test_a_stop_while_pairs_are_polished_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    K, M = chain(5)
    measured = solution._measured

    def inaccurate(*arguments: Any) -> Any:
        result = measured(*arguments)
        residuals = result.residuals + 1e3 * result.limits
        return replace(result, residuals=residuals, converged=residuals <= result.limits)

    monkeypatch.setattr(solution, "_polished", lambda inner, inside: inner.with_info(stopped=stopped))
    monkeypatch.setattr(solution, "_measured", inaccurate)
    monkeypatch.setattr("solvers.call.fits_dense", lambda op: False)
    options: dict[str, Any] = {"sigma": 0.0, "method": "lanczos", "rng": 0, "return_info": True}
    if stopped == "interrupted":
        with pytest.raises(Interrupted):
            eigsh(K, 4, M=M, **options)
    else:
        assert eigsh(K, 4, M=M, on_unconverged="return", **options).info["stopped"] == stopped
