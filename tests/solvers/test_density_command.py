"""``blockvec-dos``: the density of states from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blockvec import models
from solvers import density_of_states
from solvers.functions.__main__ import main

ARGUMENTS = ["graphene:nx=12,ny=12", "--moments", "64", "--vectors", "4", "--device", "cpu"]


def test_it_prints_and_saves_the_density(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    saved, picture = tmp_path / "dos.npz", tmp_path / "dos.png"
    assert main([*ARGUMENTS, "--points", "11", "--json", "--save", str(saved), "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    rho = density_of_states(models.model(ARGUMENTS[0]), 64, 4, rng=0)
    assert found["density"] == rho(np.array(found["energies"])).tolist()
    assert (found["n"], found["products"], found["bounds"]) == (144, 128, list(rho.bounds))
    assert np.array_equal(np.load(saved)["moments"], rho.moments)
    assert picture.stat().st_size > 1000


def test_it_prints_tables_of_densities_and_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--profile"]) == 0
    out = capsys.readouterr().out
    assert "graphene:nx=12,ny=12: 144 x 144" in out
    assert "64 moments of 4 vectors, 128 products" in out
    assert "density" in out
    assert "spmmv" in out
    assert main([*ARGUMENTS, "--sites", "0,17", "--kernel", "lorentz"]) == 0
    out = capsys.readouterr().out
    assert out.count("site 17") == 1
    assert main(["xxz:sites=6,up=3", "--matrix-free", "--moments", "8", "--device", "cpu"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--sites", "0;1"], "--sites: got '0;1'"),
        (["--sites", "200"], "sites: got 200"),
        (["--moments", "0"], "moments: got 0"),
        (["--plot", "no/folder/dos.png"], "no/folder"),
        (["second"], "unrecognized arguments: second; one matrix is enough"),
    ],
)
def test_wrong_arguments_are_lines_on_stderr(
    change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main([*ARGUMENTS, *change])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
