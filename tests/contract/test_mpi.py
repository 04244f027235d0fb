"""What holds for threads holds for processes under mpiexec, with the communicator of mpi4py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from blockvec import models
from solvers import eigsh

FEW = (
    "products_are_those_of_the_whole_matrix",
    "files_are_those_of_one_process",
    "files_of_matrix_market_are_read",
    "the_exception_of_one_process_is_that_of_all",
    "functions_of_matrices_are_those_of_one_process",
    "a_plan_compares_the_processes_with_one",
    "systems_of_split_rows_have_the_solutions_of_whole_ones",
    "a_checkpoint_that_does_not_fit_is_refused_on_all_processes",
    "limits_and_callbacks_stop_all_processes",
    "densities_and_traces_are_those_of_one_process",
    "adjoints_and_sums_are_those_of_the_whole_matrix",
    "singular_triplets_are_those_of_the_whole_matrix",
    "a_failure_anywhere_ends_the_solve_everywhere",
    "processes_of_a_host_share_memory",
    "failures_between_gpus_end_all_processes",
)


def test_two_processes_that_split_rows(under_mpi: Callable[..., str], tmp_path: Path) -> None:
    assert f"{len(FEW)} passed" in under_mpi(2, "-m", "tests.under_mpi", str(tmp_path), *FEW)


def test_the_command_speaks_once_for_all_processes(under_mpi: Callable[..., str], tmp_path: Path) -> None:
    saved = tmp_path / "pairs.npz"
    model, options = "laplace3d:n=6", ("-k", "4", "--method", "lanczos", "--json", "--ncv", "16")
    file = tmp_path / "matrix.mtx"
    scipy.io.mmwrite(file, models.model(model))
    command = "-W", "error", "-m", "solvers"
    shared = ("--comm", "mpi", "--checkpoint", str(tmp_path / "state"))
    output = under_mpi(2, *command, model, *options, "--maxiter", "1", *shared, succeeds=False)
    stopped, _ = json.JSONDecoder().raw_decode(output)  # mpiexec of Open MPI reports the failure behind it
    assert output.count('"info"') == 1
    assert stopped["info"]["stopped"] == "maxiter"
    found = json.loads(under_mpi(2, *command, str(file), *options, *shared, "--save", str(saved)))
    assert found["history"][0] == stopped["history"][0]
    assert not (tmp_path / "state").exists()
    alone = eigsh(models.model("laplace3d:n=6"), 4, which="SA", rng=0)[0]
    assert np.abs(np.array(found["eigenvalues"]) - alone).max() <= 1e-8
    assert np.load(saved)["eigenvectors"].shape == (216, 4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_processes_that_split_rows(size: int, under_mpi: Callable[..., str], tmp_path: Path) -> None:
    assert "passed" in under_mpi(size, "-m", "tests.under_mpi", str(tmp_path))


SOLVE = """
import os, signal, sys
from mpi4py import MPI
from blockvec import eigsh, models
from solvers import Interrupted

begun = []

def stop(state):
    begun.append(state.restart)
    if MPI.COMM_WORLD.rank == 1 and state.restart == 20 and sys.argv[1]:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))

A = models.generator("laplace3d:n=12")
try:
    result = eigsh(
        A, 6, which="SA", method="lanczos", ncv=20, rng=0, callback=stop, comm=MPI.COMM_WORLD,
        checkpoint=sys.argv[2], checkpoint_interval=0, return_info=True,
    )
    if MPI.COMM_WORLD.rank == 0:
        print("from restart", begun[0], result.eigenvalues.tolist(), flush=True)
except Interrupted:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_and_other_numbers_of_processes_go_on(
    under_mpi: Callable[..., str], tmp_path: Path
) -> None:
    whole = under_mpi(2, "-c", SOLVE, "", str(tmp_path / "whole"))
    assert "from restart 0" in whole
    path = tmp_path / "state"
    begin_s = time.monotonic()
    assert "interrupted" not in under_mpi(2, "-c", SOLVE, "SIGKILL", str(path), succeeds=False)
    assert time.monotonic() - begin_s < 60
    assert under_mpi(3, "-c", SOLVE, "SIGINT", str(path)).count("interrupted") == 3
    resumed = under_mpi(2, "-c", SOLVE, "", str(path))
    assert int(resumed.split()[2]) > 20
    values = [np.array(json.loads(text[text.index("[") :])) for text in (whole, resumed)]
    assert np.abs(values[0] - values[1]).max() <= 1e-12
    assert not list(tmp_path.iterdir())
