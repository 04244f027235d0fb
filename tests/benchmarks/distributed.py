"""Weak and strong scaling over GPUs of one host, beside one GPU in the same run.

    mpiexec -n 2 python -m tests.benchmarks.distributed --json scaling.json --seconds 100

Each process has a GPU. A row is measured alone, by every process on its own GPU, and with rows split over all
of them; of several GPUs the slowest counts. Rows that the file has are skipped, and no row is begun after the
seconds given, so that a run can be continued.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from blockvec import BlockVector, RowLayout, as_operator, density_of_states, expm_multiply, models
from blockvec.backends import backend_for
from blockvec.parallel import choose_gpu, communicator, share
from blockvec.system.files import replaced
from solvers import eigsh
from tests.benchmarks.records import environment

Record = dict[str, Any]

REPEATS = 5
BURST = 16  # calls between two events

PRODUCTS = ((20_000_000, 8), (4_000_000, 32), (2_000_000, 8), (200_000, 8))
MATRICES = {  # per number of processes; all are cut into slabs
    "laplace3d 200^3": lambda P: f"laplace3d:nx=200,ny=200,nz={200 * P}",
    "graphene 2000^2": lambda P: f"graphene:nx=2000,ny={2000 * P}",
    "stencil27 128^3": lambda P: f"stencil27:nx=128,ny=128,nz={128 * P}",
}
WIDTHS = (1, 8, 32)
SOLVES: dict[str, tuple[Callable[[int], str], dict[str, Any]]] = {
    "lanczos": (
        lambda P: f"laplace3d:nx=160,ny=160,nz={160 * P}",
        {"method": "lanczos", "block_size": 8, "ncv": 96, "maxiter": 3, "verify": "never"},
    ),
    "filter": (lambda P: f"laplace3d:nx=160,ny=160,nz={160 * P}", {"method": "filter"}),
    "jd": (
        lambda P: f"laplace3d:nx=160,ny=160,nz={160 * P}",
        {"method": "jd", "maxiter": 8, "verify": "never"},
    ),
}
STRONG = ("laplace3d:n=200", "laplace3d:n=320")
FUNCTIONS: dict[str, tuple[Callable[[int], str], Callable[[Any, BlockVector], object]]] = {
    "moments of graphene": (
        lambda P: f"graphene:nx=2000,ny={2000 * P}",
        lambda A, _: density_of_states(A, 512, 16, rng=0),
    ),
    "exponential of laplace3d": (
        lambda P: f"laplace3d:nx=160,ny=160,nz={160 * P}",
        lambda A, psi: expm_multiply(-10j * A, psi),
    ),
}


class Clock:
    """Times work of all processes on their GPUs."""

    def __init__(self, comm: Any) -> None:
        import cupy

        self.cupy, self.comm, self.backend = cupy, communicator(comm), backend_for("gpu")
        self.one = self.backend.empty((1,), "float64")
        self.layout = None if self.comm is None else RowLayout.equal(comm.size, comm)

    def barrier(self) -> None:
        """Wait for this GPU and all processes."""
        self.cupy.cuda.get_current_stream().synchronize()
        if self.layout is not None:
            self.layout.largest(np.zeros(1))

    def slowest(self, seconds: float) -> float:
        """Return the longest time of all processes."""
        return seconds if self.layout is None else float(self.layout.largest(np.array([seconds]))[0])

    def call(self, work: Callable[[], object]) -> tuple[float, float]:
        """Return the median times of a call on the GPU and on the host, of the slowest process.

        A burst is queued while its stream is blocked, as for the other tables: a GPU never waits for calls.
        """
        for _ in range(25):  # sparse matrices may be converted after 20 products
            work()
        on_gpu, on_host = [], []
        for _ in range(REPEATS):
            self.barrier()
            for _ in range(3):  # 4.5 ms
                self.backend.block_stream()
            if self.comm is not None:
                self.comm.allgather(self.one)  # the GPUs begin together
            begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            begin.record()
            begin_s = time.perf_counter()
            for _ in range(BURST):
                work()
            host_s = time.perf_counter() - begin_s
            end.record()
            end.synchronize()
            on_gpu.append(self.slowest(self.cupy.cuda.get_elapsed_time(begin, end) * 1e-3 / BURST))
            on_host.append(self.slowest(host_s / BURST))
        return statistics.median(on_gpu), statistics.median(on_host)

    def beside(self, alone: Callable[[], object], split: Callable[[], object]) -> Record:
        """Measure the same work with own rows alone and with split rows."""
        (alone_s, alone_call_s), (time_s, call_s) = self.call(alone), self.call(split)
        return {"alone_s": alone_s, "time_s": time_s, "alone_call_s": alone_call_s, "call_s": call_s}

    def once(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Return the time of a call after those that compile and record, and its result."""
        for _ in range(2):
            work()
        self.barrier()
        begin = time.perf_counter()
        result = work()
        self.cupy.cuda.get_current_stream().synchronize()
        return self.slowest(time.perf_counter() - begin), result


def products(clock: Clock, comm: Any) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield V^H W and V C by name."""

    def measure(rows: int, width: int, is_dot: bool) -> Record:
        layout = RowLayout.equal(rows * comm.size, comm)
        V, W = (BlockVector.random(rows, width, rng=seed, device="gpu") for seed in (0, 1))
        v, w = (BlockVector(block.array, layout=layout) for block in (V, W))
        C = V.backend.from_host(np.eye(width))
        sizes = {"operation": "tsmttsm" if is_dot else "tsmm", "K": rows, "M": width}
        if is_dot:
            return {**sizes, **clock.beside(lambda: V.dot(W), lambda: v.dot(w))}
        return {**sizes, **clock.beside(lambda: V.combine(C, out=W), lambda: v.combine(C, out=w))}

    for rows, width in PRODUCTS:
        for is_dot in (True, False):
            name = f"{'V^H W' if is_dot else 'V C'} {rows} x {width}"
            yield name, lambda r=rows, m=width, d=is_dot: measure(r, m, d)  # type: ignore[misc]


def sparse_products(clock: Clock, comm: Any, *matrices: str) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield A X, the step of a Chebyshev recurrence, and A X with x^H A x, by name."""
    operators: dict[str, Any] = {}

    def measure(matrix: str, width: int, kind: str) -> Record:
        if matrix not in operators:
            operators.clear()
            generator = models.generator(MATRICES[matrix](comm.size))
            layout = RowLayout.equal(generator.shape[0], comm)
            operators[matrix] = as_operator(generator, device="gpu", layout=layout)
        A = operators[matrix]
        own = getattr(A, "own", A)
        X = BlockVector.random(own.shape[0], width, rng=0, device="gpu")
        Y, layout = X.like(), A.layout
        x, y = (BlockVector(block.array, layout=layout) for block in (X, Y))

        def work(op: Any, a: BlockVector, b: BlockVector) -> Callable[[], object]:
            step = op.affine(0.3, 6.0)
            works: dict[str, Callable[[], object]] = {
                "plain": lambda: op.apply(a, out=b),
                "chebyshev": lambda: step.apply(a, out=b, beta=-1),
                "dots": lambda: op.apply(a, out=b, shift=1.5, dots="xy"),
            }
            return works[kind]

        sizes = {"matrix": matrix, "M": width, "fused": kind, "halo_rows": getattr(A, "halo_rows", 0)}
        return {"operation": "spmmv", **sizes, **clock.beside(work(own, X, Y), work(A, x, y))}

    for matrix in matrices:
        for width in WIDTHS:
            for kind in ("plain", "chebyshev", "dots") if width == 8 else ("plain",):
                yield f"{matrix} x {width} {kind}", lambda a=matrix, m=width, f=kind: measure(a, m, f)  # type: ignore[misc]


def solves(clock: Clock, comm: Any) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield solves with equal rows per GPU, and one with equal rows in all, by name."""

    def solved(matrix: str, options: dict[str, Any], processes: Any) -> tuple[float, Any]:
        generator = models.generator(matrix)
        layout = RowLayout.equal(generator.shape[0], processes)
        A = as_operator(generator, device="gpu", layout=layout)
        return clock.once(
            lambda: eigsh(
                *(A, 20),
                **{"which": "SA", "rng": 0, "tol": 1e-8, "convergence": "norm"},
                **{"on_unconverged": "return", "return_info": True, **options},
            )
        )

    def measure(matrix: Callable[[int], str], options: dict[str, Any], is_weak: bool) -> Record:
        alone_s, alone = solved(matrix(1), options, None)
        time_s, split = solved(matrix(comm.size), options, comm)
        columns = [result.info["operator_columns"] for result in (alone, split)]
        record = {"operation": "eigsh", "matrix": matrix(comm.size), "k": 20, **options}
        record |= {
            "operator_columns": columns,
            "restarts": split.info["restarts"],
            "solve_s": [alone_s, time_s],
        }
        record |= {"residual": float(split.residuals.max()), "converged": int(split.converged.sum())}
        if is_weak:  # per operator column
            return {**record, "alone_s": alone_s / columns[0], "time_s": time_s / columns[1]}
        return {**record, "alone_s": alone_s, "time_s": time_s, "speedup": alone_s / time_s}

    for name, (matrix, options) in SOLVES.items():
        yield f"eigsh {name}", lambda m=matrix, o=options: measure(m, o, True)  # type: ignore[misc]
    for text in STRONG:
        yield f"eigsh strong {text}", lambda t=text: measure(lambda _: t, {"method": "filter"}, False)  # type: ignore[misc]


def functions(clock: Clock, comm: Any) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield functions of matrices with equal rows per GPU, by name."""

    def taken(matrix: str, work: Callable[[Any, BlockVector], object], processes: Any) -> float:
        generator = models.generator(matrix)
        layout = RowLayout.equal(generator.shape[0], processes)
        A = as_operator(generator, device="gpu", layout=layout)
        psi = BlockVector.random(layout.n_local, 8, "complex128", rng=0, device="gpu")
        return clock.once(lambda: work(A, BlockVector(psi.array, layout=layout)))[0]

    def measure(matrix: Callable[[int], str], work: Callable[[Any, BlockVector], object]) -> Record:
        alone_s, time_s = taken(matrix(1), work, None), taken(matrix(comm.size), work, comm)
        return {"operation": "function", "matrix": matrix(comm.size), "alone_s": alone_s, "time_s": time_s}

    for name, (matrix, work) in FUNCTIONS.items():
        yield name, lambda m=matrix, w=work: measure(m, w)  # type: ignore[misc]


def main() -> None:
    """Measure the rows that a file lacks, and print all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="file to continue or to write")
    parser.add_argument("--seconds", type=float, default=100, help="after which no row is begun")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name contains one of these texts")
    arguments = parser.parse_args()
    comm: Any = MPI.COMM_WORLD
    processes = communicator(comm)
    begin, is_first = time.monotonic(), comm.rank == 0
    choose_gpu(processes)
    clock = Clock(comm)
    document: dict[str, Any] = {"environment": environment(backend_for("gpu")), "ceilings": {}, "records": []}
    if arguments.json.exists():
        document = json.loads(arguments.json.read_text())
    done = {(record["row"], record["processes"]) for record in document["records"]}
    first, *others = MATRICES
    rows = [*products(clock, comm), *sparse_products(clock, comm, first), *solves(clock, comm)]
    rows += [*functions(clock, comm), *sparse_products(clock, comm, *others)]
    for name, measure in rows:
        due = any(text in name for text in arguments.only) and (name, comm.size) not in done
        due = due and time.monotonic() - begin < arguments.seconds
        if not (due if processes is None else share(processes, due)[0]):
            continue
        started = time.monotonic()
        record = {"row": name, "processes": comm.size, **measure()}
        record["efficiency"] = round(record["alone_s"] / record["time_s"], 4)
        clock.cupy.get_default_memory_pool().free_all_blocks()
        if is_first:
            document["records"].append(record)
            document["route"] = getattr(processes, "gpu_route", "")
            with replaced(str(arguments.json)) as stream:
                stream.write(json.dumps(document, indent=1).encode())
            numbers = f"{record['alone_s'] * 1e6:12.1f} {record['time_s'] * 1e6:12.1f} us"
            if "call_s" in record:
                numbers += f"; calls {record['alone_call_s'] * 1e6:7.1f} {record['call_s'] * 1e6:7.1f} us"
            took = time.monotonic() - started
            print(f"{record['efficiency']:6.3f} {name:28} {numbers} ({took:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
