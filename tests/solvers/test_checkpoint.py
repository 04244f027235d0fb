"""Checkpoints: a killed run goes on bit for bit; what is broken or belongs to something else is refused."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import as_operator, models
from blockvec.errors import FormatError, OptionError
from solvers import EigenResult, IterationState, JacobiDavidsonOptions, eigsh
from solvers.iterations import lanczos
from solvers.runtime.checkpoint import Checkpoint
from solvers.stages import end
from tests.benchmarks.eigsh_easy import laplacian, power_law_graph
from tests.solvers import answers

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = "laplace3d:n=9"
CASES: dict[str, dict[str, Any]] = {
    "lanczos": {"which": "SA", "method": "lanczos", "block_size": 2},
    "filter": {"which": "SA", "method": "filter", "ncv": 24, "block_size": 2},
    "mixed": {"which": "SA", "precision": "mixed", "ncv": 24, "block_size": 2},
    "jd": {"which": "SA", "method": "jd", "tol": 1e-6},
    "inside": {"sigma": 4.03, "method": "jd", "tol": 1e-10, "k": 2},
    "preconditioned minres": {
        "which": "SA",
        "method": "jd",
        "tol": 1e-8,
        "block_size": 2,
        "preconditioner": lambda X: X / 6 + np.roll(X, 1, axis=0) / 36 + np.roll(X, -1, axis=0) / 36,
        "jd_options": JacobiDavidsonOptions(correction="minres"),
    },
    "single precision": {"which": "SA", "method": "lanczos", "block_size": 2, "tol": 1e-4},
    "both ends": {"which": "BE", "method": "lanczos", "tol": 1e-8},
    "shift-invert": {"sigma": 0.0, "ncv": 12, "tol": 1e-9},
    "an interval": {"A": "laplace2d:n=30", "k": None, "interval": (0.5, 2.5)},
    "beside a number": {"A": "graph", "which": "SM", "k": 6},
    "beside a number that is inside": {"A": "graph with negative values", "which": "SM", "k": 6},
    "tiny numbers by lanczos": {"A": "tiny", "method": "lanczos", "which": "SA", "block_size": 2, "k": 3},
    "tiny numbers by jd": {"A": "tiny", "method": "jd", "which": "SA", "block_size": 2, "k": 3},
    "tiny numbers by a filter": {"A": "tiny", "method": "filter", "which": "SA", "block_size": 2, "k": 3},
}


def matrix(name: str) -> Any:
    if name.startswith("graph"):
        A = laplacian(power_law_graph(np.random.default_rng(3), 2500))
        return A if name == "graph" else sp.csr_array(A - 0.5 * sp.eye_array(2500))
    return 2.0**-700 * models.model("laplace3d:n=6") if name == "tiny" else models.model(name)


class KilledError(Exception):
    """Stands for the end of a process."""


def solve(A: Any, **options: Any) -> EigenResult:
    return answers.solve(A, **{"k": 8, "checkpoint_interval": 0, **options})


def killed(A: Any, path: Path, calls: int, **options: Any) -> None:
    """Begin a run and leave it in the callback of a restart."""
    left = calls

    def leave(state: IterationState) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    with pytest.raises(KilledError):
        solve(A, checkpoint=path, callback=leave, **options)


def same(one: EigenResult, other: EigenResult) -> bool:
    counted = ("operator_columns", "reductions", "restarts", "verification", "stopped")
    return (
        np.array_equal(one.eigenvalues, other.eigenvalues)
        and np.array_equal(one.eigenvectors, other.eigenvectors)
        and np.array_equal(one.residuals, other.residuals)
        and all(one.info[name] == other.info[name] for name in counted)
    )


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("case", [pytest.param("lanczos", marks=pytest.mark.slow), "jd"])
def test_a_process_killed_in_the_middle_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    script = f"""
import os, signal
from blockvec import models
from solvers import eigsh
def kill(state):
    if state.restart == 1:
        os.kill(os.getpid(), signal.SIGKILL)
eigsh(models.model({MODEL!r}), k=8, rng=0, callback=kill, checkpoint={str(path)!r}, checkpoint_interval=0,
      **{CASES[case]!r})
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.exists()
    A = models.model(MODEL)
    resumed = solve(A, checkpoint=path, **CASES[case])
    assert same(resumed, solve(A, **CASES[case]))
    assert [state.restart for state in resumed.history] == list(range(resumed.info["restarts"]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_wherever_a_run_ends_it_goes_on_bit_for_bit(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(CASES[case])
    A = matrix(options.pop("A", "laplace3d:n=6"))
    if "inside" in case:  # what steps do not show
        sketch_of = end.sketch_of
        monkeypatch.setattr(end, "sketch_of", lambda *given: one_sided(sketch_of(*given)))
    calls_of: list[IterationState] = []
    whole = solve(A, checkpoint=tmp_path / "whole.npz", callback=calls_of.append, **options)
    last, was_written = len(calls_of), False
    for calls in {1, max(1, last // 2), last}:
        path = tmp_path / f"{calls}.npz"
        killed(A, path, calls, **options)
        was_written |= bool(list(tmp_path.iterdir()))
        assert same(solve(A, checkpoint=path, **options), whole)
        assert not list(tmp_path.iterdir())
    assert was_written or last == 1


def one_sided(seen: Any) -> Any:
    """Hide the values of a sketch that are not above zero."""
    return replace(seen, theta=np.abs(seen.theta) + 0.1)


@pytest.mark.parametrize("is_matrix", [True, False])  # a short matrix iterates in double precision
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("padding", [1, 8])
def test_all_types_and_locked_columns_are_saved(
    dtype: str, is_matrix: bool, padding: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanczos, "width_padding", lambda block: padding)
    A = models.model("hofstadter:nx=12,ny=12") if "complex" in dtype else models.model("laplace2d:n=12")
    A = A.astype(dtype)
    options = {"which": "LA", "method": "lanczos", "block_size": 2, "tol": 1e-4}
    options["orthogonal_to"] = np.linalg.eigh(A.toarray())[1][:, -3:]
    operator = A if is_matrix else as_operator(A)
    whole = solve(operator, **options)
    assert whole.info["dtype"] == dtype
    killed(operator, tmp_path / "run.npz", 3, **options)
    if dtype != "complex128":
        with pytest.raises(OptionError, match=f"dtype = '{dtype}', now it is"):
            solve(A.astype(np.result_type(dtype, "f8")), checkpoint=tmp_path / "run.npz", **options)
    assert same(solve(operator, checkpoint=tmp_path / "run.npz", **options), whole)


def test_a_stiff_end_goes_on_in_the_stage_that_it_was_in(tmp_path: Path, real_matrix: Any) -> None:
    A, options = real_matrix("bcsstk06"), {"which": "SA", "block_size": 2, "k": 4}
    whole = solve(A, **options)
    assert whole.info["method"] == "shift-invert"
    for calls in (2, len(whole.history)):
        killed(A, tmp_path / "run", calls, **options)
        assert same(solve(A, checkpoint=tmp_path / "run", **options), whole)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [{"which": "SA"}, {"which": "BE"}, {"which": "SA", "M": sp.diags_array(np.linspace(1, 2, 729))}],
)
def test_a_limit_on_restarts_may_be_lifted(options: dict[str, Any], tmp_path: Path) -> None:
    A, how = models.model(MODEL), {"tol": 1e-10, "ncv": 20, "block_size": 2, **options}
    straight, how = solve(A, **how), {**how, "checkpoint": tmp_path / "run.npz"}
    first = solve(A, **how, maxiter=1, on_unconverged="return")
    resumed = solve(A, **how)
    assert first.info["stopped"] == "maxiter"
    assert resumed.info["operator_columns"] == straight.info["operator_columns"]
    assert np.array_equal(resumed.eigenvectors, straight.eigenvectors)
    assert not list(tmp_path.iterdir())


FOREIGN = b"a thesis"
STAGED: dict[str, dict[str, Any]] = {
    "both ends": {"which": "BE", "method": "lanczos"},
    "both ends by jd": {"which": "BE", "method": "jd", "tol": 1e-6},
    "both ends of a pair": {"which": "BE", "M": sp.diags_array(np.linspace(1, 2, 216), format="csr")},
    "both ends of the transformed values": {"which": "BE", "sigma": 0.0},
    "a pair": {"which": "SA", "M": sp.diags_array(np.linspace(1, 2, 216), format="csr")},
    "a window": {"sigma": 4.03, "method": "filter", "k": 2},
}


@pytest.mark.parametrize("case", [*STAGED, "lanczos", "jd"])
def test_files_of_others_are_refused_before_the_solve_or_not_used_and_left(
    case: str, written: Path, tmp_path: Path
) -> None:
    def refuse(state: IterationState) -> None:
        raise AssertionError("the solve had begun")

    A, options, before = models.model("laplace3d:n=6"), (STAGED | CASES)[case], written.read_bytes()
    for name in ("thesis.txt", "run.LA", "run.SA"):
        path, is_stage = tmp_path / name, name != "thesis.txt"
        path.write_bytes(FOREIGN)
        run = tmp_path / "run" if is_stage else path
        if is_stage and options.get("which") != "BE":
            solve(A, checkpoint=run, **options)
        else:
            with pytest.raises(FormatError, match=f"{name}' is broken or no checkpoint"):
                solve(A, checkpoint=run, callback=refuse, **options)
        assert path.read_bytes() == FOREIGN
        path.unlink()
    if case in STAGED:
        assert solve(A, checkpoint=written, **options).converged.all()
    assert written.read_bytes() == before
    assert list(tmp_path.iterdir()) == [written]


def with_another_entry() -> Any:
    A = models.model("laplace2d:n=20").tolil()
    A[7, 7] *= 1 + 1e-6
    return A.tocsr()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint of `FOR`."""
    killed(models.model("laplace2d:n=20"), tmp_path / "run.npz", 3, **FOR)
    return tmp_path / "run.npz"


FOR = {"k": 4, "which": "SA", "method": "lanczos", "block_size": 2, "ncv": 12}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 5}, "was written with k = 4, now it is 5"),
        ({"which": "LA"}, "was written with which = 'SA', now it is 'LA'"),
        ({"method": "filter"}, "was written with degree = 1"),
        ({"method": "jd"}, "was written with"),
        ({"block_size": 3}, "block_size = 2, now it is 3"),
        ({"ncv": 14}, "ncv = 12, now it is 14"),
        ({"tol": 1e-8}, "tol = 0.0, now it is 1e-08"),
        ({"convergence": "norm"}, "convergence = 'value', now it is 'norm'"),
        ({"verify": "always"}, "verify = 'auto', now it is 'always'"),
        ({"norm": 8.0}, "norm = None, now it is 8.0"),
        ({"orthogonal_to": np.ones(400)}, "columns of orthogonal_to = 0, now it is 1"),
        ({"v0": np.ones(400)}, "columns of v0 = 0, now it is 1"),
        ({"rng": np.random.Generator(np.random.Philox(0))}, "rng = 'PCG64', now it is 'Philox'"),
        ({"A": models.model("laplace2d:n=21")}, "n = 400, now it is 441"),
        ({"A": models.model("laplace2d:nx=40,ny=10")}, "belongs to another matrix of the same size"),
        ({"A": with_another_entry()}, "another matrix of the same size"),
        ({"A": models.model("laplace2d:n=20").astype(np.float32)}, "dtype = 'float64', now it is 'float32'"),
        ({"version": "99.0"}, f"blockvec = '{blockvec.__version__}', now it is '99.0'"),
        ({"checkpoint": Path("no") / "such"}, "cannot write 'no/such': there is no folder"),
        ({"checkpoint": Path()}, "cannot write '.': it is a folder"),
        ({"checkpoint": 3}, "got 3; give the path of a file"),
        ({"checkpoint_interval": -1}, "_interval: got -1; give seconds"),
        ({"method": "dense"}, "not available with method='dense'"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_checkpoint_of_something_else_is_refused(
    options: dict[str, Any], message: str, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, options = written.read_bytes(), {"checkpoint": written, **FOR, **options}
    monkeypatch.setattr("solvers.iterations.base.__version__", options.pop("version", blockvec.__version__))
    with pytest.raises(OptionError) as caught:
        solve(**{"A": models.model("laplace2d:n=20"), **options})
    assert message in str(caught.value)
    assert str(caught.value).startswith("checkpoint")
    assert written.read_bytes() == before


def test_a_broken_or_altered_file_is_refused_and_left(written: Path) -> None:
    data, rng = written.read_bytes(), np.random.default_rng(0)
    with np.load(written) as members:
        arrays = dict(members)
    rewritten = io.BytesIO()  # with checksums that fit
    np.savez(rewritten, **arrays | {"state/H": 2 * arrays["state/H"]})
    contents = [b"", data[:-1], b"text", b"\x80\x04N.", rewritten.getvalue() + data[-32:]]
    for at in rng.integers(0, len(data), 30):
        contents.append(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for content in contents:
        written.write_bytes(content)
        with pytest.raises(FormatError, match="broken or no checkpoint"):
            Checkpoint(written, 0).load()
        assert written.read_bytes() == content


# --- formats: literal copies, so that a change of a name, a field or a hash shows here ---------------


# Of this tree: format, fingerprint, state.
NAMES = """
blockvec checkpoint 6
block_size blockvec columns of orthogonal_to columns of v0 convergence correction degree dtype inner_steps k
method min_basis n ncv norm preconditioner rng rounding sigma tol unit verify which
counts defect degree digits elapsed_s filter_calls history krylov_norm least
looked_at m missing next_look norm rng
search_width verification verification_text w
"""


def test_a_checkpoint_of_an_earlier_tree_is_refused_for_its_version(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    np.savez(path, header=np.frombuffer(b'{"format": "blockvec checkpoint 1"}', np.uint8))
    written = path.read_bytes()
    with pytest.raises(FormatError, match=r"of this version \(its format is 'blockvec checkpoint 1', not"):
        solve_with_checkpoint(path)
    assert path.read_bytes() == written


def test_a_format_with_other_names_has_another_number(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    solve_with_checkpoint(path, maxiter=1, on_unconverged="return")
    with np.load(path) as members:
        header = json.loads(members["header"].tobytes())
    names = " ".join((header["format"], *sorted(header["problem"]), *sorted(header["state"])))
    assert names == NAMES.replace("\n", " ").strip()


def solve_with_checkpoint(path: Path, **options: Any) -> None:
    A = sp.diags_array(np.arange(1.0, 41.0), format="csr")
    options |= {"which": "SA", "method": "lanczos", "ncv": 6, "block_size": 1, "tol": 1e-8}
    eigsh(A, 1, rng=0, checkpoint=path, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["lanczos", "filter", "jd"])
def test_blocks_on_a_device_are_saved_from_the_host(case: str, tmp_path: Path) -> None:
    A = models.model(MODEL)
    options = CASES[case] | {"device": "gpu"}
    whole, path = solve(A, **options), tmp_path / "run.npz"
    killed(A, path, len(whole.history), **options)
    resumed = solve(A, checkpoint=path, **options)
    assert bool((resumed.eigenvectors == whole.eigenvectors).all())
    assert np.array_equal(resumed.residuals, whole.residuals)
