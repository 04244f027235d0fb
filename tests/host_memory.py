"""Memory that processes of a host share: the same results as by messages, and no process waits forever.

Processes of mpiexec call `main`; see `tests.under_mpi`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec.backends import backend_for
from blockvec.parallel import RowLayout, agreed, host_memory
from blockvec.parallel.communicator import MpiCommunicator
from blockvec.parallel.halo import Halo, Messages
from blockvec.parallel.host_memory import SMALL_BYTES, HostCopies

DEADLINE_S = 30.0


def pause() -> None:
    """Let the processes come to an operation in any order."""
    time.sleep(random.choice((0, 0, 0, 1e-4, 1e-3)))


def sums_have_the_bits_of_messages(shared: MpiCommunicator, messages: MpiCommunicator) -> None:
    """Also for arrays that are modified at once, and for those that are too large."""
    rng = np.random.default_rng(shared.rank)
    for dtype in ("float32", "float64", "complex128", "int64"):
        for shape in ((), (0,), (1,), (3, 5), (SMALL_BYTES // 8,), (SMALL_BYTES // 8 + 1, 3)):
            for _ in range(5):
                part = np.asarray(100 * rng.standard_normal(shape)).astype(dtype)
                kept = part.copy()
                pause()
                parts, total = shared.allgather(part), shared.sum(part)
                part[...] = 0
                assert np.array_equal(parts, messages.allgather(kept))
                assert np.array_equal(total, messages.sum(kept))
                assert parts.dtype == total.dtype == part.dtype


def plan(comm: MpiCommunicator, backend: Any = None) -> tuple[Halo, Any, RowLayout]:
    """Plan the exchange of a range and of some scattered rows with all others."""
    layout = RowLayout.equal(60 * comm.size, comm)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    chosen = {True: [0, 1, 2], False: [3, 17, 40]}
    rows = np.concatenate([layout.cuts[rank] + np.array(chosen[rank > comm.rank]) for rank in others])
    return Halo(layout, rows, backend or backend_for("cpu")), rows, layout


def halos_follow_blocks_that_change(comm: MpiCommunicator) -> None:
    """Blocks are modified while others may still read what they were, and widths alternate."""
    halo, wanted, layout = plan(comm)
    whole = 100.0 * np.arange(60 * comm.size)[:, None] + np.arange(5)
    for width, order in ((3, "C"), (1, "C"), (3, "F"), (1, "F"), (3, "C")):
        X = np.array(whole[layout.rows, 1 : 1 + width], order=order)  # type: ignore[call-overload]
        for turn in range(60):
            finish, _ = halo.start(X)
            X += 0.5
            pause()
            assert np.array_equal(finish(), whole[wanted, 1 : 1 + width] + 0.5 * turn)


def kinds(halo: Halo) -> set[type]:
    return {type(buffers) for buffers in halo._buffers.values()}


def ends_everywhere(comm: MpiCommunicator, failing: int, work: Callable[[Exception | None], None]) -> None:
    """Check that the failure of a process, which `work` is to raise there, soon ends the work of all."""
    begin_s = time.monotonic()
    with pytest.raises(OSError, match=f"^rank {failing}: no more data"), agreed(comm):
        work(OSError("no more data") if comm.rank == failing else None)
    assert time.monotonic() - begin_s < DEADLINE_S


def a_failure_ends_waits(comm: MpiCommunicator) -> None:
    halo, _, _ = plan(comm)
    X = np.ones((60, 2))

    def exchanges(error: Exception | None) -> None:
        """Raise an exception in the middle of an exchange, or between sums; the others go on."""
        for turn in range(20):
            comm.sum(np.ones(3))
            finish, _ = halo.start(X)
            if error is not None and turn == 10:
                raise error
            finish()

    for failing in range(comm.size):
        ends_everywhere(comm, failing, exchanges)
        assert comm.sum(np.ones(2)).tolist() == [comm.size] * 2
        assert np.array_equal(halo.start(X)[0](), np.ones((halo.wanted_rows, 2)))
        halos_follow_blocks_that_change(comm)


def unequal_patterns_are_exchanged_by_messages(comm: MpiCommunicator) -> None:
    """The first process wants a row of each other one, which want nothing."""
    layout = RowLayout.equal(60 * comm.size, comm)
    rows = np.array(layout.cuts[1:-1] if comm.rank == 0 else [], np.int64)
    halo = Halo(layout, rows, backend_for("cpu"))
    X = np.arange(60 * comm.size)[layout.rows, None] * np.ones((1, 2))
    assert np.array_equal(halo.start(X)[0]()[:, 0], rows)
    assert kinds(halo) == {Messages}


def main(*_: Any) -> None:
    """Call all functions, by all processes of mpiexec."""
    from mpi4py import MPI

    messages, shared = (MpiCommunicator(MPI.COMM_WORLD, by_messages=choice) for choice in (True, False))
    random.seed(shared.rank)
    assert messages._mailbox is None
    if shared._mailbox is not None:
        sums_have_the_bits_of_messages(shared, messages)
        halo = plan(shared)[0]
        halo.start(np.ones((60, 2)))[0]()
        assert kinds(halo) == {HostCopies}
    for comm in (shared, messages):
        halos_follow_blocks_that_change(comm)
        a_failure_ends_waits(comm)
        unequal_patterns_are_exchanged_by_messages(comm)
    for refusing in ({0}, {shared.size - 1}, set(range(shared.size))):
        with pytest.MonkeyPatch.context() as patch:
            if shared.rank in refusing:
                patch.setattr(host_memory, "FOLDER", Path("/nowhere"))
            assert MpiCommunicator(MPI.COMM_WORLD)._mailbox is None
