"""The commands end to end: exit codes, one JSON document and nothing else, silence in a pipe."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse as sp

import blockvec
import solvers
from blockvec.operators import row_generator
from solvers.__main__ import main
from solvers.functions.__main__ import main as dos
from tests.matrices import element_mass, nearest
from tests.pretended_gpu import pretended_gpu

ROOT = Path(__file__).resolve().parents[2]


COMMAND = [sys.executable, "-W", "error", "-m", "solvers"]  # as a user would, warnings being errors
DENSITY = ["graphene:nx=12,ny=12", "--moments", "64", "--vectors", "4", "--device", "cpu"]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run the command in a process of its own."""
    where: Any = {"cwd": ROOT, "timeout": 120, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.run([*COMMAND, *arguments], **where | options)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command here, and return its JSON."""
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_table_on_stdout_and_silence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laplace3d:n=10", "-k", "4", "--which", "SA"]) == 0
    done = capsys.readouterr()
    assert done.err == ""
    assert "laplace3d:n=10: 1000 x 1000, 6400 entries, float64, on " in done.out
    assert "3 of 3" in done.out
    assert "4 eigenvalues, all converged; " in done.out
    assert "spmmv" not in done.out


def test_a_chain_is_solved_without_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "xxz:sites=12,up=6", "-k", "3", "--device", "cpu"
    with_and_without = (answer(capsys, *asked, *more)["eigenvalues"] for more in ((), ("--matrix-free",)))
    np.testing.assert_allclose(*with_and_without, atol=1e-7)


def test_a_gpu_makes_the_rows_of_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_generator, "_PANEL_ROWS", 0)  # an error
    with pretended_gpu():
        assert main(["laplace2d:n=32", "-k", "3", "--device", "gpu"]) == 0
    assert "laplace2d:n=32: 1024 x 1024, 4992 entries, float64, on " in capsys.readouterr().out


def test_json_is_one_document_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, asked = tmp_path / "out.npz", ("laplace2d:n=24", "-k", "3", "--rng", "5")
    done = run(*asked, "--json", "--save", str(saved), text=True)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["converged"] == [True] * 3
    assert document["matrix"] == "laplace2d:n=24"
    assert document["info"]["n"] == 576
    assert "kernels" not in document
    with np.load(saved) as pairs:
        assert pairs["eigenvectors"].shape == (576, 3)
        assert pairs["eigenvalues"].tolist() == document["eigenvalues"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]
    again = answer(capsys, *asked)
    assert (again["eigenvalues"], again["residuals"]) == (document["eigenvalues"], document["residuals"])


def test_pairs_that_did_not_converge_are_shown_and_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["laplace3d:n=12", "-k", "6", "--maxiter", "1", "--method", "lanczos"]
    assert main(asked) == 1
    assert "not converged" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 1
    assert not all(json.loads(capsys.readouterr().out)["converged"])


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (main, ["nosuch.mtx"], "nosuch.mtx"),
        (main, ["laplace3d:m=3"], "laplace3d"),
        (main, ["laplace1d:n=9", "--matrix-free"], "laplace1d:n=9 is stored as a matrix"),
        (main, ["laplace3d:n=6", "-k", "0"], "k: got 0"),
        (main, ["laplace3d:n=6", "-k", "3", "--interval", "1", "2"], "k: got 3, but the interval holds"),
        (main, ["laplace3d:n=4", "--mass", "mass.mtx", "--comm", "mpi"], "blockvec-eigs: --mass: "),
        (main, ["laplace3d:n=4", "--interval", "0", "1", "--comm", "mpi"], "blockvec-eigs: --interval: "),
        (main, ["-", "--comm", "mpi"], "blockvec-eigs: -: "),
        (main, ["laplace3d:n=6", "-k", "many"], "argument -k: invalid int value"),
        (main, ["laplace3d:n=6", "--which", "SM"], "argument --which: invalid choice"),
        (
            main,
            ["laplace3d:n=6", "-k", "9" * 4000],
            "k: got an integer of more than 64 bits; give an integer from",
        ),
        (main, ["laplace3d:n=6", "-k", "9" * 5000], "argument -k: invalid int value"),
        (main, ["laplace3d:n=6", "--rng", "-1"], "rng: got -1; give"),
        (main, ["laplace3d:n=" + "9" * 4000], "n has more than 18 digits"),
        (main, ["laplace3d:n=" + "9" * 5000], "99' is not an integer"),
        (main, ["banded:n=10,bandwidth=20,elements=2000000000"], "a row of the band has room for 10"),
        (main, ["laplace3d:n=6", "--tol", "-1"], "tol: got -1"),
        (
            main,
            ["laplace3d:n=6", "--plot", "no/such/folder/x.png"],
            "--plot: cannot write 'no/such/folder/x.png'",
        ),
        (main, ["laplace3d:n=6", "--plot", "x.bogus"], "--plot: a picture cannot be of type '.bogus'"),
        (main, ["laplace3d:n=6", "--plot", "x"], "--plot: a picture cannot be of type ''"),
        (main, ["laplace3d:n=6", "--save", "."], "--save: cannot write '.'"),
        (main, ["laplace3d:n=6", "--save", os.devnull], "it is a device"),
        (main, ["laplace3d:n=6", "--checkpoint", "no/such/x"], "--checkpoint: cannot write"),
        (main, ["laplace3d:n=6", "--save", "x.svg", "--plot", "./x.svg"], "'./x.svg' is the file of --save"),
        (main, ["laplace3d:n=6", "--checkpoint", "laplace3d:n=6"], "is the file of the matrix"),
        (main, ["laplace3d:n=6", "--method", "dense", "--plot", "x.png"], "--plot: --method dense"),
        (main, ["laplace3d:n=6", "--sigma", "nan"], "sigma: got nan"),
        (main, ["laplace3d:n=6", "--sigma", "x"], "argument --sigma: invalid float value"),
        (main, ["laplace3d:n=6", "--mass", "nosuch.mtx"], "nosuch.mtx: there is no such file"),
        (
            main,
            ["stiffness.mtx", "mass.mtx"],
            "unrecognized arguments: mass.mtx; a mass matrix is given by --mass",
        ),
        (main, ["laplace3d:n=6", "--nosuch"], "unrecognized arguments: --nosuch (see"),
        (main, ["laplace3d:n=6", "--mass", "laplace3d:n=5"], "M is 125 x 125 but A is 216 x 216"),
        (
            main,
            ["laplace3d:n=6", "--mass", "laplace3d:n=6"],
            "--mass: 'laplace3d:n=6' is the file of the matrix",
        ),
        (main, ["-", "--mass", "-"], "--mass: '-' is the file of the matrix"),
        (main, [], "the following arguments are required: MATRIX"),
        (dos, [*DENSITY, "--sites", "0;1"], "--sites: invalid rows value: '0;1'"),
        (dos, [*DENSITY, "--plot", "no/folder/dos.png"], "no/folder"),
        (dos, [*DENSITY, "second"], "unrecognized arguments: second; one matrix is enough"),
    ],
    ids=lambda value: value[:25] if isinstance(value, str) else "",
)
def test_bad_arguments_and_files_are_one_line_and_exit_code_two(
    command: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = command(arguments)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("blockvec-eigs: " if command is main else "blockvec-dos: ")
    assert message in captured.err


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Any, Any, str, str]:
    """Stiffness and mass of a bar, and their files."""
    K, M = blockvec.models.model("laplace1d:n=60"), 6 * element_mass(60)
    scipy.io.mmwrite(tmp_path / "K.mtx", K, symmetry="symmetric")
    sp.save_npz(tmp_path / "M.npz", M)
    return K, M, str(tmp_path / "K.mtx"), str(tmp_path / "M.npz")


def test_all_eigenvalues_of_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    exact = blockvec.models.spectra.laplace_eigenvalues([30, 30])
    for ends in (("1.0", "1.2"), ("-inf", "0.1"), ("-1e-3", "0.1"), ("2", "2.0001")):
        asked = "laplace2d:nx=30,ny=30", "--device", "cpu", "--tol", "1e-12"
        found, (low, high) = answer(capsys, *asked, "--interval", *ends), map(float, ends)
        np.testing.assert_allclose(found["eigenvalues"], exact[(exact >= low) & (exact <= high)], atol=1e-12)
        assert found["info"]["interval"] == [low if np.isfinite(low) else None, high]


@pytest.mark.parametrize("device", ["auto", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shift", [[], ["--sigma", "0.2"], ["--sigma", "-1e-3"], ["--method", "dense"]])
def test_a_pair_of_files_has_the_values_of_the_generalised_problem(
    shift: list[str], device: str, pair: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    K, M, stiffness, mass = pair
    options = "-k", "3", "--tol", "1e-12", "--device", device, *shift
    found = answer(capsys, stiffness, "--mass", mass, *options)
    values = scipy.linalg.eigvalsh(K.toarray(), M.toarray())
    np.testing.assert_allclose(found["eigenvalues"], nearest(values, found["sigma"] or 0.0, 3), rtol=1e-9)
    assert (found["matrix"], found["mass"]) == (stiffness, mass)


@pytest.mark.parametrize("operand", ["K.mtx", "K.mtx.gz", "M.npz"])
def test_standard_input_is_read_like_a_file(
    operand: str, pair: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "K.mtx.gz").write_bytes(gzip.compress((tmp_path / "K.mtx").read_bytes()))
    content = io.BytesIO((tmp_path / operand).read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content))
    of_file, of_input = (answer(capsys, name, "--device", "cpu") for name in (str(tmp_path / operand), "-"))
    assert of_file["eigenvalues"] == of_input["eigenvalues"]


def test_standard_input_that_is_no_matrix_is_one_line(tmp_path: Path) -> None:
    broken = b"%%MatrixMarket matrix coordinate real general\n3 3 1\n1 x 2\n"
    done = run("-", input=broken, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"blockvec-eigs: standard input:3: found '1 x 2', expected 2 indices")
    assert done.stderr.count(b"\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_terminal_is_not_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in None, SimpleNamespace(isatty=lambda: True):
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["-"]) == 2
        assert "redirect a file to it" in capsys.readouterr().err


def full_disk(stream: Any, **arrays: Any) -> None:
    stream.write(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_takes_neither_the_results_nor_the_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    saved, picture = tmp_path / "out.npz", tmp_path / "out.svg"
    saved.write_bytes(b"old")
    monkeypatch.setattr("solvers.command.np.savez", full_disk)
    assert main(["laplace2d:n=12", "-k", "3", "--save", str(saved), "--plot", str(picture)]) == 2
    captured = capsys.readouterr()
    assert "3 eigenvalues, all converged; " in captured.out
    assert captured.err == f"blockvec-eigs: --save: {saved}: No space left on device\n"
    assert picture.read_bytes().startswith(b"<?xml")
    assert saved.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "out.svg"]


def test_a_checkpoint_that_cannot_be_written_is_a_line_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solvers.runtime.checkpoint.write", lambda file, parts: full_disk(file))
    arguments = ["laplace3d:n=8", "--method", "lanczos", "--maxiter", "2", "--tol", "1e-14"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([*arguments, "--checkpoint", str(tmp_path / "run")]) == 1
    captured = capsys.readouterr()
    assert "not converged" in captured.out
    assert captured.err.startswith("blockvec-eigs: warning: checkpoint: ")
    assert "No space left on device; the solve goes on" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_printed_takes_no_file_with_it(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run("laplace2d:n=12", "-k", "3", "--save", str(tmp_path / "x"), stdout=full, text=True)
    assert (done.returncode, done.stderr) == (2, "blockvec-eigs: standard output: No space left on device\n")
    with np.load(tmp_path / "x") as pairs:
        assert pairs["eigenvectors"].shape == (144, 3)


def test_a_reader_that_has_seen_enough_changes_no_exit_code(tmp_path: Path) -> None:
    saved = tmp_path / "out.npz"
    arguments = ["laplace3d:n=10", "--save", str(saved), "--maxiter", "1", "--method", "lanczos"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, **pipes) as process:
        process.stdout.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (1, b"")
    assert saved.exists()


def read(screen: int, until: bytes = b"") -> bytes:
    """Read for a minute at most: to the end, when the terminal is closed on the other side, or to a word."""
    seen, deadline = b"", time.monotonic() + 60
    with contextlib.suppress(OSError):
        while not until or until not in seen:
            ready, _, _ = select.select([screen], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(screen, 65536) if ready else b""
            if not chunk:
                break
            seen += chunk
    return seen


def test_ctrl_c_shows_what_was_reached_and_exits_with_130() -> None:
    screen, terminal = pytest.importorskip("pty", reason="pseudo-terminals").openpty()
    command = [*COMMAND, "laplace3d:n=64", "-k", "40", "--tol", "1e-14"]
    how: Any = {"stdout": subprocess.PIPE, "stderr": terminal, "env": {**os.environ, "TERM": "xterm"}}
    with subprocess.Popen(command, cwd=ROOT, **how) as process:
        os.close(terminal)
        try:
            assert b"restart" in read(screen, until=b"restart")
            process.send_signal(signal.SIGINT)
            seen = read(screen)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(screen)
    assert process.returncode == 130
    assert b"interrupted" in out + seen
    assert b"Traceback" not in seen


def test_a_second_ctrl_c_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_twice(*arguments: Any, **options: Any) -> Any:
        def press(state: Any) -> None:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

        return solvers.eigsh(*arguments, callback=press, **options)

    monkeypatch.setattr("solvers.__main__.eigsh", press_twice)
    assert main(["laplace3d:n=8", "--method", "lanczos"]) == 130
    assert capsys.readouterr() == ("", "blockvec-eigs: interrupted\n")


def test_several_processes_need_the_flag_and_one_of_them_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", "2")
    assert main(["laplace3d:n=4"]) == 2
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("PMI_RANK", "0")
    assert main(["laplace3d:n=4"]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("blockvec-eigs: 3 processes were started; add --comm mpi to split")


def test_frequencies_in_hz_are_given_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "springs.npz"
    modes = np.array([0.0, 10.0, 20.0, 30.0])
    sp.save_npz(file, sp.diags_array((2 * np.pi * modes) ** 2, format="csr"))
    assert main([str(file), "--hz", "--interval", "5", "25", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frequencies_hz"] == pytest.approx([10.0, 20.0])
    assert main([str(file), "--hz", "-k", "1", "--sigma", "29"]) == 0
    assert "frequency / Hz\n   1             30\n" in capsys.readouterr().out


def test_a_density_of_states_is_printed_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    saved, picture = tmp_path / "dos.npz", tmp_path / "dos.png"
    assert dos([*DENSITY, "--points", "11", "--json", "--save", str(saved), "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    rho = solvers.density_of_states(blockvec.models.model(DENSITY[0]), 64, 4, rng=0)
    assert found["density"] == rho(np.array(found["energies"])).tolist()
    assert (found["n"], found["products"], found["bounds"]) == (144, 128, list(rho.bounds))
    assert np.array_equal(np.load(saved)["moments"], rho.moments)
    assert picture.stat().st_size > 1000


def test_tables_of_densities_and_of_kernels_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert dos([*DENSITY, "--profile"]) == 0
    out = capsys.readouterr().out
    assert "graphene:nx=12,ny=12: 144 x 144" in out
    assert "64 moments of 4 vectors, 128 products" in out
    assert "density" in out
    assert "spmmv" in out
    assert dos([*DENSITY, "--sites", "0,17", "--kernel", "lorentz"]) == 0
    out = capsys.readouterr().out
    assert out.count("site 17") == 1
    assert dos(["xxz:sites=6,up=3", "--matrix-free", "--moments", "8", "--device", "cpu"]) == 0
