"""The processes that this one was started with by a launcher such as mpiexec."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

from ..errors import OptionError
from ..system.installation import install_command

PATIENCE_S = 60.0  # after which processes that have not begun may never do so
WAIT_S = 1e-4  # between two looks for them

# Per launcher: rank and number of processes. MPICH and Intel MPI, Open MPI, and Slurm's srun.
VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched() -> tuple[int, int]:
    """Look up rank and number of the processes of a launcher; (0, 1) without one.

    Examples
    --------
    >>> from blockvec.parallel.launch import launched
    >>> launched()
    (0, 1)
    """
    for rank, size in VARIABLES:
        numbers = [os.environ.get(name, "") for name in (rank, size)]
        if all(number.isdecimal() for number in numbers):
            return int(numbers[0]), int(numbers[1])
    return 0, 1


def world() -> Any:
    """Return the communicator of all processes, of mpi4py.

    Raises
    ------
    OptionError
        If mpi4py, or the MPI that it uses, cannot be loaded.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(
            f"comm: mpi4py cannot be loaded ({reason}): {install_command('mpi')} uses the MPI of this "
            f"computer, {install_command('mpi-local')} brings one."
        ) from None
    return MPI.COMM_WORLD


def await_all(comm: Any) -> None:
    """Wait until all processes of an mpi4py communicator are here; warn where that takes long."""
    arrival, begin_s, is_patient = comm.Ibarrier(), time.monotonic(), True
    while not arrival.Test():
        time.sleep(WAIT_S)
        if is_patient and time.monotonic() - begin_s > PATIENCE_S:
            is_patient = False
            warnings.warn(
                f"process {comm.Get_rank()} of {comm.Get_size()} has waited {PATIENCE_S:g} s for the others "
                "to use their communicator; if some of them were not given comm=, it waits forever.",
                RuntimeWarning,
                stacklevel=2,
            )
