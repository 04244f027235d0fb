"""What has to hold for rows split over processes with a GPU each, as functions of a communicator.

``mpiexec -n 2 python -m tests.gpu.distributed FOLDER [NAME ...]``

With fewer GPUs than processes all use the first one: NCCL takes them for processes of several hosts and sends
through sockets, while copy engines still write into memory that another process has opened.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, Recorder, RowLayout, as_operator, models, option_context
from blockvec.errors import BreakdownError, FormatError, OptionError
from blockvec.parallel import agreed, choose_gpu, communicator, devices, nccl, share
from blockvec.parallel.communicator import MpiCommunicator
from solvers import eigsh
from tests.contract.blocks import host
from tests.distributed import Work, integers, is_close, layouts, listed_in
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
        nccl.place = devices.place = lambda number: f"{place(number)} {rank}"


def on_gpu(rows: Any, layout: RowLayout) -> BlockVector:
    """Copy the rows of this process to its GPU."""
    return BlockVector(np.ascontiguousarray(rows[layout.rows]), layout=layout).to_device()


@work
def each_process_has_a_gpu_of_its_own(comm: Any, folder: Path) -> None:
    processes: Any = communicator(comm)
    device = choose_gpu(processes)
    assert device == choose_gpu(processes)
    V = BlockVector.random(1000, 3, rng=0, device="gpu", layout=RowLayout.equal(1000, comm))
    assert V.device == device
    V.gram()
    assert processes.gpu_route.startswith("NCCL ")


@work
def operations_give_the_rows_of_the_whole(comm: Any, folder: Path) -> None:
    choose_gpu(communicator(comm))
    for dtype in ("float32", "float64", "complex64", "complex128"):
        A, B, C = (integers(shape, dtype, 1) for shape in ((5077, 4), (5077, 3), (4, 3)))
        for layout in layouts(5077, comm):
            V, W = on_gpu(A, layout), on_gpu(B, layout)
            c = V.backend.from_host(C)
            assert np.array_equal(host(V.H @ W), A.conj().T @ B)
            assert np.array_equal(host(V.T @ W), A.T @ B)
            assert np.array_equal(host(V.gram()), A.conj().T @ A)
            assert np.array_equal(host(V[:, 1:].column_dot(W)), (A[:, 1:].conj() * B).sum(axis=0))
            assert np.array_equal(host((V @ c).gather()), A @ C)
            S = W.copy().update_gram(V, c)
            assert np.array_equal(host(S), (B - A @ C).conj().T @ (B - A @ C))
            path = folder / f"{dtype}.npy"
            V.save(path)
            assert np.array_equal(np.load(path), A)
            again = BlockVector.random(5077, 2, dtype, rng=5, device="gpu", layout=layout).gather()
            assert np.array_equal(host(again), BlockVector.random(5077, 2, dtype, rng=5).array)


@work
def sums_are_the_same_bits_on_all_processes_and_in_every_run(comm: Any, folder: Path) -> None:
    choose_gpu(communicator(comm))
    A = np.random.default_rng(8).standard_normal((30011, 5))
    layout = layouts(30011, comm)[1]
    V = on_gpu(A, layout)
    found = share(layout.comm, [host(V.gram()).tobytes() for _ in range(5)])
    assert len({bits for runs in found for bits in runs}) == 1


@work
def products_and_fused_results_are_those_of_the_whole_matrix(comm: Any, folder: Path) -> None:
    diagonal = sp.csr_array(sp.diags_array(np.arange(1.0, 41.0)))
    phases = sp.random_array((90, 90), density=0.1, rng=np.random.default_rng(3)) * np.exp(1j)
    for A, width in (  # few: each type and width takes kernels of its own
        (models.model("laplace3d:n=24"), 8),
        (models.model("xxz:sites=12,up=6"), 8),
        (diagonal, 8),
        (sp.csr_array(phases + phases.conj().T).astype(np.complex64), 3),
    ):
        n, dtype = A.shape[0], A.dtype
        X, Y, Z = (integers((n, width), dtype, seed) for seed in (1, 2, 3))
        shifts = np.arange(width, dtype=A.real.dtype)
        shifted = A @ X - X * shifts
        for layout in layouts(n, comm):
            op = as_operator(A, device="gpu", layout=layout)
            V, out, z = (on_gpu(whole, layout) for whole in (X, Y, Z))
            op.apply(V, out=out, alpha=2, beta=-1, shift=shifts)
            assert is_close(host(out), (2 * shifted - Y)[layout.rows], dtype)
            op.affine(0.5, 3).apply(V, out=out)
            assert is_close(host(out), (0.5 * (A @ X - 3 * X))[layout.rows], dtype)
            found = op.apply(V, shift=shifts, z=z, delta=2, eta=-1, dots=("xx", "xy"), gram=("xy", "yy"))
            assert is_close(host(found.Y), shifted[layout.rows], dtype)
            assert is_close(host(z), (2 * Z - shifted)[layout.rows], dtype)
            assert is_close(host(found.dots["xx"]), (np.abs(X) ** 2).sum(axis=0), dtype)
            assert is_close(host(found.dots["xy"]), (X.conj() * shifted).sum(axis=0), dtype)
            assert is_close(host(found.gram["xy"]), X.conj().T @ shifted, dtype)
            assert is_close(host(found.gram["yy"]), shifted.conj().T @ shifted, dtype)


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
def every_method_finds_the_values_of_the_matrix(comm: Any, folder: Path) -> None:
    A = models.model("laplace2d:n=25")
    values = dense_values(A)
    for options in (
        {"method": "lanczos"},
        {"method": "filter"},
        {"method": "jd"},
        {"method": "dense"},
        {"which": "BE", "method": "lanczos"},
        {"sigma": 3.1, "which": "LM", "method": "jd"},
        {"sigma": 3.1, "which": "LM", "method": "filter"},
    ):
        options = {"which": "SA", "block_size": 4, **options}  # few widths: each takes kernels of its own
        nearest = np.sort(values[np.argsort(np.abs(values - 3.1), kind="stable")[:6]])
        expected = {"SA": values[:6], "BE": np.r_[values[:3], values[-3:]], "LM": nearest}
        result = eigsh(A, 6, rng=1, comm=comm, device="gpu", return_info=True, **options)
        check(A, result, comm, expected[options["which"]], 1e-10)
        assert result.eigenvectors.device.startswith("cuda:")


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
def chains_are_solved_and_filters_in_single_precision_refused(comm: Any, folder: Path) -> None:
    chain = "xxz:sites=14,up=7"
    options: dict[str, Any] = {"which": "SA", "rng": 1, "device": "gpu", "return_info": True}
    with pytest.raises(OptionError, match=r"models\.generator"):
        eigsh(models.operator(chain, device="gpu"), 5, comm=comm, **options)
    alone = eigsh(models.operator(chain, device="gpu"), 5, **options)
    generator = models.generator(chain)
    result = eigsh(generator, 5, comm=comm, method="lanczos", block_size=4, **options)
    check(generator.matrix(), result, comm, host(alone.eigenvalues), 1e-9)
    with pytest.raises(OptionError, match="precision: 'mixed' needs a sparse matrix A"):
        eigsh(generator, 5, comm=comm, method="filter", precision="mixed", **options)


@work
def recorded_sums_and_updates_are_repeated(comm: Any, folder: Path) -> None:
    choose_gpu(communicator(comm))
    whole = np.random.default_rng(4).standard_normal((4001, 4))
    unit, layout = whole / np.linalg.norm(whole, axis=0), RowLayout.equal(4001, comm)
    V = on_gpu(whole, layout)
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
        if rank == 1:
            raise FormatError("the disk is gone")

    with pytest.raises(FormatError, match="rank 1: the disk is gone"):
        eigsh(A, 8, ncv=40, callback=fails, **options)
    assert time.monotonic() - called_s[-1] < 20
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


if __name__ == "__main__":
    share_one_gpu()
    sys.exit(main(*sys.argv[1:], works=WORKS))
