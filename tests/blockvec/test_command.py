"""The command ``blockvec``, end to end."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import blockvec
from blockvec.__main__ import main
from blockvec.backends.host.backend import HOST
from blockvec.bench.info import describe
from blockvec.kernels.records import store
from tests.contract.blocks import CEILINGS

COMMAND = [sys.executable, "-W", "error", "-m", "blockvec"]
QUICK = ["bench", "--quick", "--op", "dot,combine,apply"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def ceilings() -> None:
    """Store ceilings for all commands of this module; they share the tests' cache."""
    device = HOST.device
    path = blockvec.options().cache_dir / "ceilings" / device.fingerprint
    store(path, path.name, {"ceilings": dataclasses.asdict(CEILINGS)})


def test_info_names_devices_libraries_and_ceilings(ceilings: None) -> None:
    done = run("info")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("blockvec", "numpy", "scipy", "python", "cupy", "nvrtc", "options", "cache", "cpu:"):
        assert f"\n{word}" in f"\n{done.stdout}"
    assert blockvec.__version__ in done.stdout
    assert "GB/s" in done.stdout
    assert "float64" in done.stdout
    assert "\x1b" not in done.stdout


def test_info_names_caches_of_an_earlier_version(ceilings: None, tmp_path: Path) -> None:
    for name in ("cubins", "tuned"):
        (tmp_path / name).mkdir()
    with blockvec.option_context(cache_dir=tmp_path):
        lines = list(itertools.takewhile(lambda line: line, describe()))
    assert lines[-1].endswith("of earlier versions and no longer read, to be deleted: cubins, tuned")


def test_a_quick_bench_prints_a_table(ceilings: None) -> None:
    done = run(*QUICK, "--dtype", "float64")
    assert (done.returncode, done.stderr) == (0, "")
    limits, head, *rows = done.stdout.splitlines()
    assert "GB/s" in limits
    assert head.split()[:4] == ["call", "type", "M", "N"]
    assert [row.split()[0] for row in rows] == [
        name for name in ("dot", "combine", "apply") for _ in range(3)
    ]
    for row in rows:
        assert float(row.split()[-1]) > 0  # the speed-up


def test_widths_are_numbers_and_ranges() -> None:
    from blockvec.__main__ import parse_widths

    assert parse_widths("1,3-5,8") == (1, 3, 4, 5, 8)


def test_explain_says_which_kernel_runs(ceilings: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "dot", "--rows", "1000000", "--widths", "4,8"]) == 0
    assert "tsmttsm on cpu" in capsys.readouterr().out
    assert main(["explain", "combine", "--widths", "3", "--dtype", "complex128"]) == 0
    assert "M=3, N=3" in capsys.readouterr().out
    assert main(["explain", "apply", "--matrix", "laplace1d:n=50"]) == 0
    assert "n_rows=50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench --op dott", "'dott' is not one of dot, combine"),
        ("bench --widths 1,x", "'x' is no integer from 1 to 10000"),
        ("bench --widths 1-99999999999", "'99999999999' is no integer from 1 to 10000"),
        ("bench --rows 0", "'0' is no integer from 1 to 10"),
        ("bench --rows " + "9" * 5000, "9' is no integer from 1 to 10"),
        ("explain dot --rows 9999999999999999999999", "'9999999999999999999999' is no integer from 1 to 10"),
        ("explain dot --rows 999999999999999999", "exceeds the address space"),
        ("explain dot --rows 9999999999999999", "Unable to allocate"),
        ("explain apply --matrix laplace1d:n=" + "9" * 5000, "9' is not an integer"),
        ("bench --dtype int8", "'int8' is not one of float32"),
        ("bench --device tpu", "'tpu'"),
        ("bench --json x.json", "--json: this option is gone; tests/benchmarks/products.py"),
        ("bench --plot x.svg", "--plot: this option is gone; tests/benchmarks/products.py"),
        ("bench --grid", "--grid: this option is gone; tests/benchmarks/products.py"),
        ("bench --sparse", "--sparse: this option is gone; tests/benchmarks/products.py"),
        ("tune --op dot", "this command is gone; tests/benchmarks/tune.py"),
        ("plot results", "this command is gone; tests/benchmarks/plot.py"),
        ("bench --quick --op apply --matrix laplace3d:m=3", "unknown parameter 'm'"),
        ("bench --quick --op apply --matrix nothing.mtx", "no such file"),
        ("explain dot --widths 1,2,3", "--widths: got 3"),
        ("sing", "invalid choice"),
        ("", "arguments are required"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments.split())
    except SystemExit as stop:  # argparse's way
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("blockvec")


def test_a_gpu_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    from blockvec.bench.info import gpus

    if gpus():
        pytest.skip("there is one")
    assert main(["bench", "--device", "gpu"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("blockvec bench: device 'gpu': ")
    assert "cpu" in message


@pytest.fixture
def running(ceilings: None) -> Iterator[Any]:
    """A command that prints for long."""
    widths = ",".join(map(str, range(1, 65)))
    command = [*COMMAND, "bench", "--quick", "--op", "dot", "--widths", widths, "--rows", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_ends_with_130_and_a_word(running: Any) -> None:
    for _ in range(4):
        assert running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, "blockvec bench: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(running: Any) -> None:
    running.stdout.readline()
    running.stdout.close()
    err = running.stderr.read()
    assert (running.wait(timeout=60), err) == (0, "")
