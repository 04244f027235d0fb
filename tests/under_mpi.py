"""Call the functions of `tests.distributed` and of the modules like it with the processes of mpiexec.

``mpiexec -n 2 python -m tests.under_mpi FOLDER [NAME ...]``
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from tests import distributed, distributed_solvers, host_memory, pretended_nccl

WORKS = {
    **distributed.WORKS,
    **distributed_solvers.WORKS,
    "processes_of_a_host_share_memory": host_memory.main,
    "failures_between_gpus_end_all_processes": pretended_nccl.main,
}


def main(folder: str, *names: str, works: Mapping[str, distributed.Work] = WORKS) -> int:
    from mpi4py import MPI

    for name in names or works:
        try:
            works[name](MPI.COMM_WORLD, Path(folder))
        except BaseException:
            traceback.print_exc()
            print(f"{name} failed on rank {MPI.COMM_WORLD.rank}", flush=True)
            MPI.COMM_WORLD.Abort(1)
    if MPI.COMM_WORLD.rank == 0:
        print(f"{len(names or works)} passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
