"""Agreement between processes: equal arguments, exceptions that all of them raise, a GPU for each."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..backends import backend_for
from ..errors import DeviceError, OptionError
from .communicator import Communicator, PeerError, share
from .nccl import place


def require_same(comm: Communicator, **values: str | None) -> None:
    """Raise an exception on all processes unless they have the same values.

    Parameters
    ----------
    comm : Communicator
    **values : str or None
        Descriptions by name; None is not compared.

    Raises
    ------
    OptionError
        On all processes; the message has the values of two of them.
    """
    shared = share(comm, values)
    others = [rank for rank, given in enumerate(shared) if given.keys() != shared[0].keys()]
    if others:
        raise OptionError(
            f"process {others[0]} has called another function than process 0; all processes call those that "
            "communicate, in the same order."
        )
    for name in values:
        found = [(rank, given[name]) for rank, given in enumerate(shared) if given[name] is not None]
        for rank, text in found[1:]:
            if text != found[0][1]:
                raise OptionError(
                    f"{name}: process {found[0][0]} has {found[0][1]}, process {rank} has {text}; give the "
                    "same to all processes."
                )


@contextmanager
def agreed(comm: Communicator | None) -> Iterator[None]:
    """Raise an exception in the ``with`` block of one process on all processes, naming the rank.

    All processes enter the block, and leave it together. Where all of them raise the same kind of exception,
    each raises its own.

    Parameters
    ----------
    comm : Communicator or None
        With None exceptions pass unchanged.
    """
    if comm is None:
        yield
        return
    error: BaseException | None = None
    try:
        yield
    except PeerError:
        pass
    except BaseException as raised:
        if getattr(raised, "_is_agreed", False):  # by a block inside this one
            raise
        error = raised
        comm.announce()
    reports = comm.settle(None if error is None else _report(error))
    failed = [(rank, *report) for rank, report in enumerate(reports) if report is not None]
    if not failed:
        return
    if error is not None and len(failed) == comm.size and len({kind for _, kind, _ in failed}) == 1:
        common = error
    else:
        rank, kind, text = failed[0]
        common = kind(f"rank {rank}: {text}")
    common._is_agreed = True  # type: ignore[attr-defined]
    if common is error:
        raise error
    raise common from error


def _report(error: BaseException) -> tuple[type[BaseException], str]:
    """Describe an exception by its text and its class, or the nearest base that can be sent and made."""
    text = str(error) or type(error).__name__
    for kind in type(error).__mro__:
        with suppress(Exception):
            kind(text)
            pickle.loads(pickle.dumps(kind))
            return kind, text
    raise AssertionError("BaseException takes a text")


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
