"""The end of a call: results joined of stages, returned in silence, with a warning, or not at all."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg

from blockvec import models
from blockvec.errors import BlockvecError
from solvers import ConvergenceWarning, EigenResult, Interrupted, NoConvergence, eigsh, replace_eigsh
from solvers.__main__ import main
from solvers.iterations.base import Iteration
from solvers.problem import Selection, Verification, select
from solvers.result import doubt, is_complete, settle
from solvers.stages.combine import lacks, one_after_other
from solvers.stages.dense import dense_eigenpairs
from solvers.stages.run import PAIR_RESTARTS
from solvers.transform import solution
from solvers.transform.spectral_map import SpectralMap
from tests.matrices import springs
from tests.solvers.answers import answered, eigenvalues, solve, twice

DIAGONAL = sp.diags_array(np.linspace(0, 1, 400), format="csr")
DOUBTFUL = [Verification.UNDECIDED, Verification.SKIPPED]
WAYS_TO_STOP = ["converged", "maxiter", "time_limit", "callback", "costly", "stagnated"]


@pytest.fixture(scope="module")
def solved() -> EigenResult:
    """Return a complete result, from which tests make others."""
    return solve(DIAGONAL, 4, which="LA", method="lanczos")


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
def test_pairs_and_copies_that_may_be_missing_never_leave_in_silence(
    solved: EigenResult, verification: Verification, stopped: str
) -> None:
    result = replace(solved, verification=verification).with_info(stopped=stopped)
    unconverged = replace(result, converged=np.array([True, True, False, True]))
    short, known_missing = result.part(slice(3)), result.with_info(missing=2)
    for verify in ("never", "auto", "always"):
        is_doubtful = verify != "never" and not verification.is_decided
        assert is_complete(result, verify) is not is_doubtful
        assert bool(doubt(result, verify)) is is_doubtful
        raises = "raise" if verify == "always" else "warn"
        expected = [raises, "warn", "warn"] if is_doubtful else ["silence"] * 3
        assert [outcome(result, verify, option) for option in ("raise", "warn", "return")] == expected
        for bad in (unconverged, short, known_missing):
            assert not is_complete(bad, verify)
            assert doubt(bad, verify) == ""
            ends = [outcome(bad, verify, option) for option in ("raise", "warn", "return")]
            assert ends == ["raise", "warn", "silence"]
        for option in ("raise", "warn", "return"):  # an interrupted solve always raises with its pairs
            pressed = result.with_info(stopped="interrupted")
            with pytest.raises(Interrupted) as caught:
                settle(pressed, verify, option)
            assert caught.value.result is pressed
    with pytest.raises(NoConvergence, match=r"^All 4 pairs converged\. At least 2 copies are known"):
        settle(known_missing, "auto", "raise")


def test_the_message_says_what_was_not_searched_and_how_to_decide_it(solved: EigenResult) -> None:
    skipped = replace(solved, verification=Verification.SKIPPED)
    limited = doubt(skipped.with_info(stopped="maxiter", verification="skipped: the end"), "auto")
    for part in ("All 4 pairs converged", "skipped: the end", "raise maxiter", "verify='never'"):
        assert part in limited
    assert "method='dense'" in doubt(replace(solved, verification=Verification.UNDECIDED), "auto")


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

    def end(self: Iteration) -> bool:
        self.verification = verification
        return True

    monkeypatch.setattr(Iteration, "_is_verified", end)


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
    if verification is Verification.UNDECIDED:  # method "auto" goes on to dense LAPACK
        assert solve(DIAGONAL, 4, which="LA", verify="always").verification.is_decided


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


@pytest.mark.parametrize("restarts", [3, 4, 6, 8])
@pytest.mark.parametrize("verify", ["auto", "always"])
def test_a_stage_that_ends_before_its_search_is_not_the_answer_for_a_pair(
    monkeypatch: pytest.MonkeyPatch, restarts: int, verify: Any
) -> None:
    monkeypatch.setitem(PAIR_RESTARTS, "host", restarts)
    monkeypatch.setattr("solvers.call.fits_dense", lambda op: False)
    K, M = models.model("laplace2d:n=16"), sp.diags_array(np.linspace(1, 2, 256), format="csr")
    values = np.repeat(eigenvalues(K, M), 2)
    K, M = twice(K, M)
    for seed, tol in enumerate((1e-4, 1e-6, 1e-8, 1e-9)):
        options: dict[str, Any] = {"tol": tol, "convergence": "norm", "rng": seed, "verify": verify}
        result = solve(K, 6, M, which="SA", **options)
        assert np.abs(result.eigenvalues - values[:6]).max() <= result.limits.max()
        assert result.verification.is_decided


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("verify", ["auto", "always"])
def test_copies_of_a_large_pair_are_all_found(seed: int, verify: Any) -> None:
    K, M = twice(models.model("laplace2d:n=90"), sp.diags_array(np.linspace(1, 2, 8100)))
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
    for k, which in ((50, "SA"), (10, "BE"), (10, "SA")):
        answered(K, k, M, exact=eigenvalues(K, M), which=which, rng=seed)


@pytest.mark.parametrize(("by", "error"), [(1e-6, NoConvergence), (np.nan, BlockvecError)])
def test_a_wrong_result_of_dense_lapack_is_refused(
    monkeypatch: pytest.MonkeyPatch, by: float, error: type[Exception]
) -> None:
    def unrefined(form: Any, inner: EigenResult, _: Any, *rest: Any) -> EigenResult:
        return solution._transformed_back(form, inner, *rest)

    def spoiled(*arguments: Any) -> Any:
        theta, X, norm = dense_eigenpairs(*arguments)
        return theta * (1 + by), X, norm

    monkeypatch.setattr(solution, "_refined", unrefined)
    monkeypatch.setattr("solvers.stages.dense.dense_eigenpairs", spoiled)
    K, M = chain(5)
    with pytest.raises(error):
        eigsh(K, 50, M=M, which="SA", method="dense", rng=0)


@pytest.mark.parametrize("stopped", ["interrupted", "time_limit", "converged"])
def test_a_stop_while_pairs_are_polished_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    """Pairs above their limits have not converged, although those of the inverse have."""
    (K, M), measured = chain(5), solution.measured_pairs

    def inaccurate(*arguments: Any) -> Any:
        result = measured(*arguments)
        return replace(result, residuals=1e3 * result.limits, converged=np.zeros(4, bool))

    monkeypatch.setattr(solution, "_polished", lambda inner, inside: inner.with_info(stopped=stopped))
    monkeypatch.setattr(solution, "measured_pairs", inaccurate)
    monkeypatch.setattr("solvers.call.fits_dense", lambda op: False)
    with pytest.raises(Interrupted if stopped == "interrupted" else NoConvergence) as caught:
        solve(K, 4, M, sigma=0.0, method="lanczos")
    expected = "stagnated" if stopped == "converged" else stopped
    assert caught.value.result.info["stopped"] == expected


# --- joins of stages ---------------------------------------------------------------------------------


SELECTIONS: tuple[Selection, ...] = ("LM", "LA", "SA", "BE")
MAPS = (None, SpectralMap(0.3), SpectralMap(0.3, "cayley"), SpectralMap(0.3, "buckling"))


def result_of(like: EigenResult, values: Any, converged: Any) -> EigenResult:
    limits = np.full(len(values), 1e-12)
    residuals = np.where(converged, 0.1, 1e9) * limits
    vectors = np.eye(50)[:, : len(values)]
    pairs = np.asarray(values), vectors, residuals, limits
    return EigenResult.from_pairs(*pairs, like.verification, like.info)


@pytest.mark.parametrize("which", SELECTIONS)
@pytest.mark.parametrize("map", MAPS)
def test_joined_stages_keep_every_settled_pair_that_is_wanted(
    which: Selection, map: SpectralMap | None, solved: EigenResult
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        spectrum = np.sort(rng.uniform(-1, 1, 20))
        spectrum[rng.integers(1, 20)] = spectrum[0]  # a copy
        seen = spectrum if map is None else map.transformed(spectrum)
        k = int(rng.integers(2, 8))
        order = select(seen, which)
        wanted = np.sort(spectrum[order[:k]])
        settled = rng.random(k) < 0.5
        first = result_of(solved, np.where(settled, wanted, wanted + 0.01), settled)
        missed = rng.random(k) < rng.choice([0.0, 0.2])  # by the later stage, which has the next ones instead
        found = np.delete(order, np.flatnonzero(missed))[:k]
        later = result_of(solved, np.sort(spectrum[found]), np.ones(k, bool))
        joined = one_after_other(first, later, which, map)
        assert not Counter(wanted[settled].tolist()) - Counter(joined.eigenvalues.tolist())  # with copies
        if not missed.any():
            np.testing.assert_array_equal(joined.eigenvalues, wanted)
            assert joined.converged.all()
        columns = first.info["operator_columns"] + later.info["operator_columns"]
        assert joined.info["operator_columns"] == columns


def test_values_that_moved_within_their_errors_are_not_lost(solved: EigenResult) -> None:
    values = np.array([1.0, 1.0, 2.0])
    first = result_of(solved, values + 5e-13, np.ones(3, bool))
    assert not lacks(result_of(solved, values, np.ones(3, bool)), first, "LA")
    assert lacks(result_of(solved, values - 1e-11, np.ones(3, bool)), first, "LA")


def test_a_polished_result_without_a_settled_pair_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    polished, made = solution._polished, []

    def without_the_nearest_value(*arguments: Any) -> EigenResult:
        made.append(polished(*arguments).part(slice(-1)))
        return made[-1]

    A = models.model("laplace2d:n=24")
    M = sp.diags_array(np.linspace(1, 2, A.shape[0]), format="csr")
    values = eigenvalues(A, M)
    monkeypatch.setattr(solution, "_polished", without_the_nearest_value)
    monkeypatch.setattr(solution, "_excess", lambda result: len(result.residuals))  # and that is better
    monkeypatch.setattr(solution, "solve_around", lambda form, inside: solution.solve(inside))
    options: dict[str, Any] = {"method": "lanczos", "on_unconverged": "return"}
    result = solve(A, 4, M, sigma=float(values[0]) * (1 - 1e-9), **options)
    assert made
    settled = result.eigenvalues[result.converged]
    np.testing.assert_allclose(settled, values[: len(settled)], rtol=1e-9)
    assert abs(result.eigenvalues[0] - values[0]) < 1e-9
