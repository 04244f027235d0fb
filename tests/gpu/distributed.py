"""What has to hold for rows split over processes with a GPU each, as functions of a communicator.

``mpiexec -n 2 python -m tests.gpu.distributed FOLDER [NAME ...]``

With fewer GPUs than processes all use the first one: NCCL takes them for processes of several hosts and sends
through sockets, while copy engines still write into memory that another process has opened.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, Recorder, RowLayout, as_operator, models, option_context
from blockvec.errors import BlockvecError, BreakdownError, FormatError, OptionError
from blockvec.parallel import agreed, agreement, choose_gpu, communicator, nccl
from blockvec.parallel.communicator import MpiCommunicator
from solvers import eigsh
from tests import distributed, distributed_solvers
from tests.contract.blocks import host
from tests.distributed import Work, listed_in, split
from tests.distributed_solvers import HOFSTADTER, check, dense_values
from tests.under_mpi import main

WORKS: dict[str, Work] = {}
work = listed_in(WORKS)


def share_one_gpu() -> None:
    """Let processes take the only GPU for one of their own, each on a host of its own."""
    import cupy
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if cupy.cuda.runtime.getDeviceCount() < size:
        os.environ |= {"NCCL_HOSTID": f"host {rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket"}
        place = nccl.place
        nccl.place = agreement.place = lambda number: f"{place(number)} {rank}"


@work
def each_process_has_a_gpu_of_its_own(comm: Any, folder: Path) -> None:
    processes: Any = communicator(comm)
    device = choose_gpu(processes)
    assert device == choose_gpu(processes)
    V = BlockVector.random(1000, 3, rng=0, device="gpu", layout=RowLayout.equal(1000, comm))
    assert V.device == device
    V.gram()
    assert processes.gpu_route.startswith("NCCL ")


def few_matrices() -> list[Any]:
    """Matrices with widths of blocks; few, because each type and width takes kernels of its own."""
    phases = sp.random_array((90, 90), density=0.1, rng=np.random.default_rng(3)) * np.exp(1j)
    return [
        (models.model("laplace3d:n=24"), (8,)),
        (models.model("xxz:sites=12,up=6"), (8,)),
        (sp.csr_array(sp.diags_array(np.arange(1.0, 41.0))), (8,)),
        (sp.csr_array(phases + phases.conj().T).astype(np.complex64), (3,)),
    ]


def also_on_gpus(name: str, **options: Any) -> None:
    """List what holds for rows on the host also for rows on GPUs."""

    def call(comm: Any, folder: Path) -> None:
        choose_gpu(communicator(comm))
        works = {**distributed.WORKS, **distributed_solvers.WORKS}
        works[name](comm, folder, device="gpu", **options)

    WORKS[name] = call


also_on_gpus("every_operation_gives_the_rows_of_the_whole", n=5077)
also_on_gpus("random_numbers_and_functions_depend_on_the_global_row")
also_on_gpus("files_are_those_of_one_process")
also_on_gpus("sums_are_the_same_bits_on_all_processes_and_in_every_run", n=30011)
also_on_gpus("products_are_those_of_the_whole_matrix", given=few_matrices())
also_on_gpus("fused_results_are_those_of_the_whole_block", given=few_matrices())
also_on_gpus("sums_of_products_that_vanish_are_zero")
also_on_gpus("partial_sums_add_up_to_the_whole")
also_on_gpus("every_method_finds_the_values_of_the_matrix", real=True, block_size=4)


@work
def all_transports_give_the_same_bits(comm: Any, folder: Path) -> None:
    """Hundreds of exchanges of blocks that are overwritten at once, of changing widths."""
    for matrix in ("laplace3d:nx=60,ny=60,nz=50", "xxz:sites=14,up=7"):
        found = []
        for transport in ("auto", "nccl", "mpi"):
            with option_context(gpu_transport=transport):
                processes = MpiCommunicator(comm)
                generator = models.generator(matrix)
                layout = RowLayout.equal(generator.shape[0], processes)
                op = as_operator(generator, device="gpu", layout=layout).affine(0.1, 1.0)
                blocks = []
                for width in (8, 1, 5, 8):
                    wide = BlockVector.random(op.shape[0], 9, rng=0, device="gpu", layout=layout)
                    X, Y = wide[:, :width], wide[:, :width].copy()
                    for _ in range(50):
                        op.apply(X, out=Y, beta=-1)
                        op.apply(Y, out=X, beta=-1)
                    blocks.append(host(X))
                route = processes.gpu_route
                assert route.startswith("MPI" if transport == "mpi" else "NCCL")
                assert transport != "nccl" or "halos by NCCL" in route
                if processes.rank == 0:
                    print(transport, route)
            found.append(blocks)
        for blocks in zip(*found, strict=True):
            assert np.isfinite(blocks[0]).all()
            assert all(np.array_equal(blocks[0], other) for other in blocks)


@work
def complex_matrices_and_copies_of_multiple_values_are_solved(comm: Any, folder: Path) -> None:
    B = models.model(HOFSTADTER)
    result = eigsh(B, 4, which="LA", rng=2, comm=comm, device="gpu", return_info=True)
    check(B, result, comm, dense_values(B)[-4:], 1e-10)
    generator = models.generator("laplace3d:n=40")
    one, several = (
        eigsh(generator, 10, which="SA", rng=0, comm=split, device="gpu", return_info=True)
        for split in (None, comm)
    )
    assert several.info["verification"].startswith(("passed", "not needed"))
    check(generator.matrix(), several, comm, host(one.eigenvalues), 1e-9)
    again = eigsh(generator, 10, which="SA", rng=0, comm=comm, device="gpu")[0]
    assert np.array_equal(host(again), host(several.eigenvalues))
    only = eigsh(generator, 10, which="SA", rng=0, comm=comm, device="gpu", return_eigenvectors=False)
    assert np.allclose(host(only), host(again), rtol=1e-9)


@work
def chains_are_solved_also_by_filters_in_single_precision(comm: Any, folder: Path) -> None:
    chain = "xxz:sites=14,up=7"
    options: dict[str, Any] = {"which": "SA", "rng": 1, "device": "gpu", "return_info": True}
    with pytest.raises(OptionError, match=r"models\.generator"):
        eigsh(models.operator(chain, device="gpu"), 5, comm=comm, **options)
    alone = eigsh(models.operator(chain, device="gpu"), 5, **options)
    generator = models.generator(chain)
    result = eigsh(generator, 5, comm=comm, method="lanczos", block_size=4, **options)
    check(generator.matrix(), result, comm, host(alone.eigenvalues), 1e-9)
    mixed = eigsh(generator, 5, comm=comm, method="filter", precision="mixed", **options)
    assert mixed.info["single_columns"] > 0
    check(generator.matrix(), mixed, comm, host(alone.eigenvalues), 1e-9)


@work
def recorded_sums_and_updates_are_repeated(comm: Any, folder: Path) -> None:
    choose_gpu(communicator(comm))
    whole = np.random.default_rng(4).standard_normal((4001, 4))
    unit, layout = whole / np.linalg.norm(whole, axis=0), RowLayout.equal(4001, comm)
    V = split(whole, layout, "gpu")
    G, scales = V.gram(), V.norms()

    def step() -> None:
        G[...] = V.gram()
        scales[...] = V.norms()
        V.scale(1 / scales)

    with Recorder(V.device) as recorder:
        step()
        recorded = recorder.record(step)
        for _ in range(3):
            V.array[...] *= 2
            recorded()
    assert np.abs(host(G) - 4 * unit.T @ unit).max() <= 1e-13
    assert np.abs(host(scales) - 2).max() <= 1e-14


def three_exchanges(doubled: Any, X: BlockVector, Y: BlockVector, Z: BlockVector) -> None:
    """Take two steps of a recurrence with X and Y, and make a block of norm one of the next one."""
    doubled.apply(X, out=Y, beta=-1)
    doubled.apply(Y, out=X, beta=-1)
    doubled.apply(X, out=Z)
    Z.scale(1 / Z.norms())


@work
def recorded_products_have_the_bits_of_calls(comm: Any, folder: Path) -> None:
    """A thousand replays, while the GPU has other work and processes pause at random.

    Beside other tests a replay takes milliseconds. Alone, 10,000 of each transport have the same bits, too.
    """
    import cupy

    choose_gpu(communicator(comm))
    replays = 1000 if cupy.cuda.runtime.getDeviceCount() >= comm.size else 300
    noise, beside = BlockVector.random(10_000, 32, rng=0, device="gpu"), cupy.cuda.Stream(non_blocking=True)
    rng = np.random.default_rng(comm.rank)
    for matrix, scale in (("laplace3d:nx=30,ny=30,nz=24", (1 / 3, 6.0)), ("xxz:sites=14,up=7", (0.1, 0.0))):
        early, late = [], []
        for transport in ("called", "auto", "nccl", "mpi"):
            with option_context(gpu_transport=transport.replace("called", "auto")):
                processes, generator = MpiCommunicator(comm), models.generator(matrix)
                layout = RowLayout.equal(generator.shape[0], processes)
                doubled = as_operator(generator, device="gpu", layout=layout).affine(*scale)
                random = BlockVector.random(layout.n_local, 12, rng=processes.rank, device="gpu").array
                blocks = [
                    BlockVector(random[:, j : j + 4].copy(), layout=layout).scale(1e-2) for j in (0, 4, 8)
                ]
                step = functools.partial(three_exchanges, doubled, *blocks)
                step()
                recorder = Recorder(blocks[0].device, processes)
                with recorder:
                    again = step if transport == "called" else recorder.record(step)
                    assert (again is step) == (transport in ("called", "mpi"))
                    for turn in range(replays // 10 if transport == "mpi" else replays):
                        again()
                        if turn % 100 == 0:
                            with beside:
                                noise.gram()
                            time.sleep(rng.choice((0, 0, 1e-4, 1e-3)))
                        if turn % 500 == 0:  # calls may be between them
                            doubled.apply(blocks[0])
                        if turn == replays // 10 - 1:
                            early.append([host(block) for block in blocks])
                if transport != "mpi":
                    late.append([host(block) for block in blocks])
                if processes.rank == 0:
                    print(transport, processes.gpu_route)
        for found in (early, late):
            assert np.isfinite(found[0]).all()
            assert all(np.array_equal(found[0], other) for other in found)


def fail_after(steps: int, op: Any, V: BlockVector, error: Exception | None) -> None:
    """Queue products with sums, raise an exception if there is one, and wait for the GPU."""
    for step in range(2 * steps):
        if error is not None and step == steps:
            raise error
        op.apply(V, dots="xy")
    host(V.gram())


@work
def a_failure_anywhere_ends_the_solve_everywhere(comm: Any, folder: Path) -> None:
    A, rank = models.model("laplace3d:n=20"), communicator(comm).rank  # type: ignore[union-attr]
    options: dict[str, Any] = {"which": "SA", "rng": 0, "method": "lanczos", "comm": comm, "device": "gpu"}
    called_s: list[float] = []

    def fails(state: Any) -> None:
        called_s.append(time.monotonic())
        if rank == 1 and len(called_s) == last:
            raise FormatError("the disk is gone")

    for method, ncv, turn in (("lanczos", 40, 2), ("filter", None, 1), ("jd", None, 2)):
        last = turn
        called_s.clear()
        with pytest.raises(FormatError, match="rank 1: the disk is gone"):
            eigsh(A, 8, ncv=ncv, callback=fails, **options | {"method": method})
        assert time.monotonic() - called_s[-1] < 10
    layout = RowLayout.equal(A.shape[0], comm)
    V = BlockVector.random(A.shape[0], 8, rng=0, device="gpu", layout=layout)
    op = as_operator(A, device="gpu", layout=layout)

    def product(X: Any) -> Any:
        """Apply A; on one process memory ends, or a number is lost."""
        calls.append(time.monotonic())
        Y = op @ X
        if rank == 0 and len(calls) == 7 and ends == "memory":
            Y.backend.empty((1 << 40, 8), "float64")
        if rank == 1 and len(calls) == 7 and ends == "number":
            Y.array[0] = np.nan
        return Y.array

    for ends, error in (("memory", MemoryError), ("number", BreakdownError)):
        for method in ("lanczos", "filter", "jd"):
            calls: list[float] = []
            with pytest.raises(error, match="rank 0: " if ends == "memory" else "NaN"):
                eigsh(product, 8, shape=A.shape, dtype="float64", **options | {"method": method})
            assert time.monotonic() - calls[-1] < 20
    begin = time.monotonic()
    with pytest.raises(OSError, match="rank 0: no more data"), agreed(layout.comm):
        fail_after(25, op, V, OSError("no more data") if rank == 0 else None)
    assert time.monotonic() - begin < 20
    first, again = (eigsh(A, 8, ncv=40, return_info=True, **options) for _ in range(2))
    assert np.array_equal(host(first.eigenvalues), host(again.eigenvalues))
    check(A, first, comm, host(eigsh(A, 8, which="SA", rng=0, method="lanczos")[0]), 1e-9)


def repeat_until_a_failure(again: Any, V: BlockVector, recorder: Any, processes: Any, failing: int) -> None:
    """Repeat a recording; one process raises an exception, and the others wait for the GPU."""
    with agreed(processes), recorder:
        for turn in range(8):
            if turn == 4 and processes.rank == failing:
                raise OSError("no more data")
            again()
        host(V.gram())


@work
def a_failure_between_recorded_steps_ends_them_everywhere(comm: Any, folder: Path) -> None:
    """Streams wait inside of recordings then, and may share queues of the GPU with all others."""
    import cupy

    choose_gpu(communicator(comm))
    most_s = 5 if cupy.cuda.runtime.getDeviceCount() >= comm.size else 60  # processes take turns on one GPU
    for transport in ("auto", "nccl"):
        with option_context(gpu_transport=transport):
            processes, generator = MpiCommunicator(comm), models.generator("laplace3d:nx=40,ny=40,nz=40")
            layout = RowLayout.equal(generator.shape[0], processes)
            op = as_operator(generator, device="gpu", layout=layout)
            V = BlockVector.random(op.shape[0], 8, rng=0, device="gpu", layout=layout)
            W, recorder = V.copy(), Recorder(V.device, processes)

            def step(op: Any = op, V: BlockVector = V, W: BlockVector = W) -> None:
                for _ in range(16):
                    op.apply(V, out=W, dots="xy")
                    op.apply(W, out=V, beta=1)

            for failing in range(processes.size):
                step()
                with recorder:
                    again = recorder.record(step)
                assert again is not step
                begin_s = time.monotonic()
                with pytest.raises(OSError, match="no more data"):
                    repeat_until_a_failure(again, V, recorder, processes, failing)
                took_s = time.monotonic() - begin_s
                if processes.rank == 0:
                    print(f"{transport}: all have raised after {took_s:.2f} s", flush=True)
                assert took_s < most_s
                with pytest.raises(BlockvecError, match="record them again"):
                    again()


if __name__ == "__main__":
    share_one_gpu()
    sys.exit(main(*sys.argv[1:], works=WORKS))
