"""The GPUs of processes that share the rows of a block: one per process."""

from __future__ import annotations

import platform

from ..backends import backend_for
from ..errors import DeviceError
from .agreement import agreed
from .communicator import Communicator, share
from .nccl import place


def choose_gpu(comm: Communicator | None) -> str:
    """Give each process a GPU of its own and make it CuPy's current device; all processes call it.

    Processes whose current devices are different GPUs already keep them, as where a launcher shows each one
    its own. Otherwise the processes of a host take its GPUs in the order of their ranks. `eigsh` and
    `as_operator` call this function for ``device="gpu"``; a script that makes blocks before calls it itself.

    Returns
    -------
    str
        Its name, such as ``"cuda:1"``.

    Raises
    ------
    DeviceError
        If CuPy is not installed, or a host has fewer GPUs than processes.

    Examples
    --------
    >>> from blockvec.parallel import choose_gpu
    >>> device = choose_gpu(comm)  # doctest: +SKIP
    """
    if comm is None:
        return backend_for("gpu").name
    with agreed(comm):
        backend_for("gpu")
        import cupy

        runtime, host = cupy.cuda.runtime, platform.node()
        number, count = int(runtime.getDevice()), int(runtime.getDeviceCount())
        found = share(comm, (host, place(number)))
        if len(set(found)) < comm.size:
            beside = [rank for rank, (name, _) in enumerate(found) if name == host]
            number = beside.index(comm.rank)
            if len(beside) > count:
                raise DeviceError(
                    f"device 'gpu': {len(beside)} processes of {host} have {count} GPUs; start one process "
                    f"per GPU, as mpiexec -n {count}, or let all of them share one with device='cuda:0'."
                )
        cupy.cuda.Device(number).use()
    return f"cuda:{number}"
