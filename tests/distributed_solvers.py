"""What has to hold for solves whose rows are split over processes; see `tests.distributed`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, RowLayout, as_operator, models, profile
from blockvec.errors import BreakdownError, FormatError, OptionError, ShapeError
from blockvec.parallel import communicator, recorded_traffic, share
from solvers import (
    EigenResult,
    NoConvergence,
    cg,
    density_of_states,
    double_moments,
    eigsh,
    evolve,
    expm_multiply,
    funm_multiply,
    gmres,
    lobpcg,
    logdet,
    minres,
    plan,
    solve,
    spectral_bounds,
    svds,
    trace,
)
from solvers.blocks import ColumnBlock
from solvers.orthogonalization import orthogonalize
from tests.contract.blocks import host
from tests.distributed import Work, integers, layouts, listed_in
from tests.drawn.judge import wanted

WORKS: dict[str, Work] = {}
work = listed_in(WORKS)


def check(A: Any, result: EigenResult, comm: Any, expected: Any, tol: float) -> None:
    """Check values, residuals and orthonormality, and that all processes have the same values."""
    w, V = host(result.eigenvalues), result.eigenvectors
    assert isinstance(V, BlockVector)
    assert len(set(share(communicator(comm), w.tobytes()))) == 1
    X, scale = host(V.gather()), max(float(np.abs(expected).max()), 1.0)
    assert np.abs(w - expected).max() <= tol * scale
    assert np.abs(X.conj().T @ X - np.eye(len(w))).max() <= tol
    assert np.linalg.norm(A @ X - X * w, axis=0).max() <= 100 * tol * scale


def dense_values(A: Any) -> Any:
    return np.linalg.eigvalsh(A.toarray().astype(np.complex128))


HOFSTADTER = "hofstadter:nx=16,ny=12,p=1,q=8"


SOLVES: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    *(
        ("laplace2d:n=15", "float64", 6, options)
        for options in (
            *({"method": method, "which": "SA"} for method in ("auto", "lanczos", "filter", "jd", "dense")),
            *({"method": "lanczos", "which": "BE"}, {"method": "lanczos", "which": "LM", "block_size": 3}),
        )
    ),
    ("laplace3d:n=9", "float64", 10, {"method": "lanczos", "which": "SA", "block_size": 2}),
    *(
        ("laplace2d:n=9", "float64", 3, options)
        for options in ({"sigma": 3.1, "method": "jd"}, {"sigma": 3.1, "method": "filter"}, {"which": "SM"})
    ),
    *(
        (HOFSTADTER, dtype, 4, {"which": "LA", "method": method})
        for dtype in ("complex128", "complex64")
        for method in ("lanczos", "filter", "jd")
    ),
)


@work
def every_method_finds_the_values_of_the_matrix(
    comm: Any, folder: Path, real: bool = False, **more: Any
) -> None:
    """Solve all, or all real ones."""
    for model, dtype, k, options in SOLVES:
        if real and dtype != "float64":
            continue
        A = models.model(model).astype(dtype)
        values = dense_values(A)
        result = eigsh(A, k, rng=1, comm=comm, return_info=True, **more | options)
        assert result.eigenvectors.device.startswith("cuda:" if "device" in more else "cpu")
        chosen = wanted(values, options.get("which", "LM"), options.get("sigma"), k)
        check(A, result, comm, values[chosen], 1e-4 if dtype == "complex64" else 1e-9)


@work
def filters_of_a_copy_in_single_precision_are_those_of_one_process(comm: Any, folder: Path) -> None:
    A = models.model("laplace3d:n=9")
    options: dict[str, Any] = {
        "which": "SA",
        "method": "filter",
        "tol": 1e-8,
        "convergence": "norm",
        "rng": 1,
    }
    for layout in layouts(A.shape[0], comm):
        op = as_operator(A, layout=layout)
        result = eigsh(op, 6, precision="mixed", return_info=True, **options)
        check(A, result, comm, dense_values(A)[:6], 1e-7)
        assert result.info["single_columns"] > 0
    with pytest.raises(OptionError, match="precision: 'mixed' needs a sparse matrix A"):
        eigsh(lambda X: X, 6, shape=A.shape, precision="mixed", comm=comm, **options)


@work
def values_are_computed_beside_those_far_out(comm: Any, folder: Path) -> None:
    values = np.r_[np.random.default_rng(0).uniform(-1, 1, 4000), 3.0, 3.5, 3.5]
    A = sp.diags_array(values).tocsr()
    result = eigsh(A, 12, which="LA", method="filter", block_size=8, rng=0, comm=comm, return_info=True)
    assert "further out were computed" in result.info["why"]
    check(A, result, comm, np.sort(values)[-12:], 1e-10)


@work
def sizes_and_method_are_those_of_one_process(comm: Any, folder: Path) -> None:
    for model, k in (("xxz:sites=10,up=5", 3), ("laplace3d:n=9", 10), ("laplace2d:n=23", 12)):
        A, options = models.model(model), {"which": "SA", "rng": 0, "return_info": True}
        for method in ("auto", "lanczos", "filter"):
            alone = eigsh(A, k, method=method, **options).info
            found = eigsh(A, k, method=method, comm=comm, **options).info
            for name in ("method", "block_size", "ncv", "degree"):
                assert found[name] == alone[name]
            if found["method"] != "dense":  # which forms split rows by products
                difference = abs(found["operator_columns"] - alone["operator_columns"])
                assert difference <= 0.2 * alone["operator_columns"]  # a restart more, by rounding


@work
def column_major_blocks_are_the_rows_of_the_whole(comm: Any, folder: Path) -> None:
    A, B, C = (np.asfortranarray(integers(shape, complex, 1)) for shape in ((77, 4), (77, 3), (4, 3)))
    for layout in layouts(77, comm):
        V, W = (ColumnBlock(whole[layout.rows], layout) for whole in (A, B))
        assert np.array_equal(V.dot(W), A.conj().T @ B)
        assert np.array_equal(V.gram(), A.conj().T @ A)
        assert np.array_equal(V[:, 1:].column_dot(W), (A[:, 1:].conj() * B).sum(axis=0))
        assert np.allclose(V.norms(), np.linalg.norm(A, axis=0))
        rest = B - A @ C
        assert np.array_equal(W.copy().update_gram(V, C), rest.conj().T @ rest)
        assert np.array_equal(V.combine(C).array, (A @ C)[layout.rows])
        assert np.array_equal(V.random_like(2, 7).array, ColumnBlock(A).random_like(2, 7).array[layout.rows])
        assert V.n_global == 77


@work
def a_step_of_a_recurrence_is_orthonormal_over_all_processes(comm: Any, folder: Path) -> None:
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.standard_normal((60, 8)))[0]
    new = rng.standard_normal((60, 2))
    for columns in (new, np.hstack([new[:, :1]] * 2), basis[:, :2] + 1e-9 * new, new[:, :1]):
        for layout, block in itertools.product(layouts(60, comm), (ColumnBlock, BlockVector)):
            V, W = (block(whole[layout.rows].copy(), layout=layout) for whole in (basis, columns))
            result = orthogonalize(W, V, first=[(6, 8)], scale=1.0)
            X = BlockVector(np.ascontiguousarray(W.array), layout=layout).gather().array
            Q = np.hstack([basis, X])
            assert np.abs(Q.T @ Q - np.eye(Q.shape[1])).max() <= 1e-14
            assert np.abs(basis @ result.S + X @ result.R - columns).max() <= 1e-13


def check_factors(W: Any, V: Any, layout: RowLayout) -> None:
    """Check the identities, and that all processes have the same factors and ranks as one alone."""
    Q, basis = (BlockVector(np.array(whole[layout.rows]), layout=layout) for whole in (W, V))
    found = orthogonalize(Q, basis, rng=3)
    assert len(set(share(layout.comm, found.R.tobytes() + found.S.tobytes()))) == 1
    alone = orthogonalize(BlockVector(np.array(W)), BlockVector(np.array(V)), rng=3)
    assert found.lost.sum() == alone.lost.sum()
    whole, eps = np.hstack([V, Q.gather().array]), np.finfo(W.dtype).eps
    assert np.abs(whole.conj().T @ whole - np.eye(whole.shape[1])).max() <= 100 * eps
    assert np.abs(whole @ np.vstack([found.S, found.R]) - W).max() <= 100 * eps * np.abs(W).max()


@work
def orthogonalisation_gives_the_identities(comm: Any, folder: Path) -> None:
    rng, one = np.random.default_rng(7), comm.size
    for dtype in ("float32", "float64", "complex64", "complex128"):
        parts = rng.standard_normal((2, 50, 7))
        columns = (parts[0] + 1j * parts[1] if "complex" in dtype else parts[0]).astype(dtype)
        V, W = np.linalg.qr(columns[:, :4])[0], columns[:, 4:]
        doubled = np.concatenate([W, W[:, :1], np.zeros((50, 1), dtype)], axis=1)
        for layout, basis, block in itertools.product(layouts(50, comm), (V, V[:, :0]), (W, doubled)):
            check_factors(block, basis, layout)
    for layout in (RowLayout.equal(one, comm), RowLayout([0] * one + [one], comm)):
        check_factors(rng.standard_normal((one, one - 1)), np.eye(one, 1), layout)
        with pytest.raises(ShapeError, match="columns"):
            orthogonalize(BlockVector.zeros(one, one + 1, layout=layout))
    W[-1, 0] = np.nan
    with pytest.raises(BreakdownError):
        orthogonalize(
            BlockVector(np.array(W[RowLayout.equal(50, comm).rows]), layout=RowLayout.equal(50, comm))
        )


@work
def ragged_and_empty_ranges_are_no_special_case(comm: Any, folder: Path) -> None:
    A = models.model("laplace2d:n=9")
    for layout in layouts(A.shape[0], comm):
        op = as_operator(A, layout=layout)
        for method in ("lanczos", "jd", "dense"):
            result = eigsh(op, 3, which="SA", method=method, rng=1, return_info=True)
            check(A, result, comm, dense_values(A)[:3], 1e-10)
            assert result.eigenvectors.layout == layout
    for n in (1, 2, 4):
        D = sp.csr_array(sp.diags_array(np.arange(1.0, n + 1)))
        for method in ("auto", "lanczos"):
            result = eigsh(D, 1, which="LA", method=method, rng=0, comm=comm, return_info=True)
            check(D, result, comm, np.array([float(n)]), 1e-13)


@work
def runs_repeat_and_values_are_those_of_one_process(comm: Any, folder: Path) -> None:
    A = models.model("xxz:sites=10,up=5")
    alone = eigsh(A, 5, which="SA", method="lanczos", rng=4)[0]
    first, again = (eigsh(A, 5, which="SA", method="lanczos", rng=4, comm=comm) for _ in range(2))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1].array, again[1].array)
    assert np.abs(first[0] - alone).max() <= 1e-12
    # Without a seed, the processes draw one together.
    values = eigsh(A, 2, which="SA", method="lanczos", comm=comm)[0]
    assert len(set(share(communicator(comm), values.tobytes()))) == 1


@work
def info_tells_the_share_of_each_process(comm: Any, folder: Path) -> None:
    A, comm_ = models.model("laplace2d:n=12"), communicator(comm)
    with recorded_traffic() as traffic:
        result = eigsh(A, 4, which="SA", method="lanczos", rng=0, comm=comm, return_info=True)
    shares = result.info["processes"]
    own = shares[comm_.rank]
    assert all(entry == own for entry in (entries[comm_.rank] for entries in share(comm_, shares)))
    layout = RowLayout.equal(144, comm)
    assert [entry["rows"] for entry in shares] == np.diff(layout.cuts).tolist()
    assert sum(entry["entries"] for entry in shares) == A.nnz
    neighbours = (comm_.rank > 0) + (comm_.rank < comm_.size - 1)
    assert own["halo_rows"] == 12 * neighbours
    assert own["products"] == result.info["block_applications"] == traffic.products
    assert own["reductions"] >= result.info["reductions"]
    assert own["bytes_sent"] > own["products"] * own["halo_rows"] * 8
    assert 0 < own["product_s"] + own["exchange_s"] + own["reduction_s"] <= result.info["time_s"]
    assert own["gpu_s"] == dict.fromkeys(("product", "exchange", "reduction"), 0.0)
    assert "processes" not in eigsh(A, 2, rng=0, return_info=True).info


@work
def a_plan_compares_the_processes_with_one(comm: Any, folder: Path) -> None:
    rng = np.random.default_rng(0)
    halves = [sp.eye_array(6000, format="csr")[rng.permutation(6000)] for _ in range(3)]
    graph, cube = sum(half + half.T for half in halves), models.generator("laplace3d:n=18")  # six neighbours
    plans = [plan(A, 8, which="LA", method="filter", comm=comm) for A in (graph, cube)]
    ratios = [made.stages[0].seconds / made.alone_s for made in plans]
    assert ratios[0] > ratios[1] > 1  # almost all rows are needed of others, or a face
    assert plans[0].alone_s == plan(graph, 8, which="LA", method="filter").stages[0].seconds
    assert f"split over {comm.size} processes; one alone takes" in " ".join(str(plans[0]).split())
    assert len(set(share(communicator(comm), str(plans)))) == 1
    square = as_operator(models.laplace2d(n=8), layout=RowLayout.equal(64, comm))  # of sums nothing is known
    result = eigsh(2 * square, 2, which="LA", rng=0, return_info=True)
    assert result.info["plan"].alone_s is None
    assert [own["halo_rows"] for own in result.info["processes"]] == [None] * comm.size


@work
def a_profile_has_rows_for_communication(comm: Any, folder: Path) -> None:
    layout = RowLayout.equal(40, comm)
    A = as_operator(models.model("laplace1d:n=40"), layout=layout)
    V = BlockVector.random(40, 3, rng=0, layout=layout)
    with profile() as times:
        for _ in range(5):
            A.apply(V)
        V.gram()
    rows = {row["operation"]: row for row in times.rows() if row["kernel"] == "processes"}
    neighbours = (layout.rank > 0) + (layout.rank < layout.size - 1)
    assert rows["exchange"]["calls"] == 5
    assert rows["exchange"]["bytes_moved"] == 5 * 3 * 8 * neighbours
    assert rows["sum"]["calls"] == 1
    assert rows["sum"]["bytes_moved"] == 9 * 8 * (layout.size - 1)
    assert "exchange" in times.table()


@work
def vectors_and_functions_of_the_caller_have_local_rows(comm: Any, folder: Path) -> None:
    A = models.model("laplace2d:n=10")
    values, vectors = np.linalg.eigh(A.toarray())
    layout = RowLayout.equal(100, comm)
    known = vectors[layout.rows, :1]
    diagonal = 1 / (A.diagonal()[layout.rows, None] + 1.0)
    start = BlockVector.random(100, 2, rng=9, layout=layout)

    def product(X: Any) -> Any:
        return A[layout.rows] @ layout.gather(X)

    for given, shape in ((A, None), (A[layout.rows], None), (product, (100, 100))):
        options: dict[str, Any] = {"which": "SA", "method": "jd", "orthogonal_to": known, "v0": start}
        options |= {"preconditioner": lambda X: X * diagonal, "rng": 0, "comm": comm, "return_info": True}
        result = eigsh(given, 3, shape=shape, **options)
        check(A, result, comm, values[1:4], 1e-9)
    with pytest.raises(ShapeError, match="v0"):
        eigsh(A, 1, v0=np.ones(101), comm=comm)


@work
def limits_and_callbacks_stop_all_processes(comm: Any, folder: Path) -> None:
    A, rank = models.model("laplace2d:n=30"), communicator(comm).rank
    options: dict[str, Any] = {"which": "SA", "method": "lanczos", "rng": 0, "comm": comm}
    with pytest.raises(NoConvergence, match="raise maxiter") as caught:
        eigsh(A, 8, maxiter=1, **options)
    assert isinstance(caught.value.result.eigenvectors, BlockVector)
    for stop in ({"callback": lambda state: rank == 1}, {"time_limit": 1e-9 if rank == 1 else 1e9}):
        # Some restarts pass before all processes know that one has no time left.
        result = eigsh(A, 8, ncv=18, on_unconverged="return", return_info=True, **options, **stop)
        assert result.info["stopped"] == next(iter(stop))
        assert len(result.eigenvalues) == 8


@work
def different_arguments_are_refused_on_all_processes(comm: Any, folder: Path) -> None:
    A, rank = models.model("laplace2d:n=30"), communicator(comm).rank
    last = rank == comm.size - 1
    rows = RowLayout.equal(900, comm).n_local
    tilted = sp.csr_array(A + sp.diags_array(np.arange(900.0)))
    for name, given in {
        "k": {"k": 4 + last},
        "which": {"which": "LA" if last else "SA"},
        "tol": {"tol": 1e-3 * last},
        "ncv": {"ncv": np.int64(30 + last)},
        "method": {"method": "filter" if last else "lanczos"},
        "sigma": {"sigma": 0.5 if last else None},
        "v0": {"v0": np.ones((rows, 1 + last))},
        "orthogonal_to": {"orthogonal_to": np.ones((rows, 1)) if last else None},
        "preconditioner": {"preconditioner": (lambda X: X) if last else None},
        "checkpoint": {"checkpoint": folder / "state" if last else None},
        "A": {"A": models.model("laplace2d:n=29") if last else A},
    }.items():
        with pytest.raises(OptionError, match=f"^{name}: process 0 has .*; give the same to all processes"):
            eigsh(**{"A": A, "k": 4, "rng": rank, "comm": comm, **given})
    for other in (tilted, A.astype(np.float32)):
        with pytest.raises(OptionError, match=r"^A: process 0 has 4380 entries of .* with the checksum"):
            eigsh(other if last else A, 4, comm=comm)
    with pytest.raises(OptionError, match=r"^layout: process 0 has"):
        as_operator(A, layout=RowLayout([0] * comm.size + [900] if last else [0] + [900] * comm.size, comm))
    with pytest.raises(OptionError, match="has called another function than process 0"):
        eigsh(as_operator(A, layout=RowLayout.equal(900, comm)) if last else A, 4, comm=comm)


@work
def what_needs_a_whole_matrix_is_refused_before_the_solve(comm: Any, folder: Path) -> None:
    A = models.model("laplace1d:n=50")
    identity = sp.eye_array(50)
    for name, options in {
        "M": {"M": identity},
        "OPinv": {"sigma": 1.0, "OPinv": identity},
        "mode": {"sigma": 1.0, "mode": "cayley"},
        "like": {"like": "numpy"},
        "sigma": {"sigma": 1.0, "method": "lanczos"},
    }.items():
        with pytest.raises(OptionError, match=f"^{name}: "):
            eigsh(A, 2, comm=comm, **options)
    with pytest.raises(OptionError, match=r"^comm: got a str; give a communicator"):
        eigsh(A, 2, comm="world")


@work
def a_failure_anywhere_ends_the_solve_everywhere(comm: Any, folder: Path) -> None:
    A, rank = models.model("laplace2d:n=10"), communicator(comm).rank
    layout = RowLayout.equal(100, comm)
    values = np.linalg.eigvalsh(A.toarray())
    diagonal = 1 / (A.diagonal()[layout.rows, None] + 1.0)

    def run(method: str, stage: str, failing: int, at: int, checkpoint: Path | None) -> tuple[Any, int]:
        """Solve, and fail at a call of a stage; return the result and the number of its calls."""
        calls = 0

        def passes(name: str) -> None:
            nonlocal calls
            calls += name == stage
            if name == stage and rank == failing and calls == at:
                raise (ZeroDivisionError if stage == "callback" else FormatError)(f"{stage} {at}")

        def product(X: Any) -> Any:
            passes("product")
            return A[layout.rows] @ layout.gather(X)

        def solve(X: Any) -> Any:
            passes("preconditioner")
            return X * diagonal

        options: dict[str, Any] = {"preconditioner": solve} if method == "jd" else {"ncv": 14}
        options |= {"callback": lambda state: passes("callback"), "checkpoint": checkpoint, "comm": comm}
        options |= {"shape": A.shape, "rng": 0, "verify": "always", "checkpoint_interval": 0}
        return eigsh(product, 3, which="SA", method=method, **options)[0], calls

    stages = itertools.product(("lanczos", "filter", "jd"), ("product", "callback"))
    for number, (method, stage) in enumerate([*stages, ("jd", "preconditioner")]):
        total = run(method, stage, -1, 0, None)[1]
        at, failing = (total // 2, total, 1)[number % 3], (0, comm.size - 1)[number % 2]
        state = folder / f"{comm.size}-{method}-{stage}"
        with pytest.raises((FormatError, ZeroDivisionError), match=f"^rank {failing}: {stage} {at}$"):
            run(method, stage, failing, at, state)
        resumed = run(method, stage, -1, 0, state)[0]  # from what the failure left
        assert np.abs(resumed - values[:3]).max() <= 1e-9
        assert not any(share(communicator(comm), state.exists()))
    with pytest.raises(ShapeError, match="rank 1: v0"):
        eigsh(A, 4, v0=np.ones((3 if rank == 1 else layout.n_local, 1)), comm=comm)
    A.data[-1] = np.nan
    with pytest.raises(BreakdownError, match=f"NaN or Inf .* in rows of process {layout.size - 1}"):
        eigsh(A, 4, which="SA", method="lanczos", rng=0, comm=comm)


# --- checkpoints --------------------------------------------------------------------------------------------

SAVED: dict[str, dict[str, Any]] = {
    "lanczos": {"which": "SA", "method": "lanczos", "block_size": 2},
    "filter": {"which": "SA", "method": "filter", "ncv": 24, "block_size": 2},
    "jd": {"which": "SA", "method": "jd", "tol": 1e-8},
    "ends": {"which": "BE", "method": "lanczos", "tol": 1e-8},
}


class LeftError(Exception):
    """Leaves a run in a callback."""


def left(A: Any, path: Path, comm: Any, *, at: int = 2, **options: Any) -> None:
    """Begin a run with checkpoints, and leave it in a callback of the last process."""
    calls: list[Any] = []

    def leave(state: Any) -> None:
        calls.append(state)
        if len(calls) == at and (comm is None or communicator(comm).rank == comm.size - 1):
            raise LeftError

    with pytest.raises(LeftError):
        eigsh(A, 6, rng=0, comm=comm, checkpoint=path, checkpoint_interval=0, callback=leave, **options)


@work
def a_run_that_was_left_goes_on_bit_for_bit(comm: Any, folder: Path) -> None:
    real = models.model("laplace3d:n=7")
    phases = sp.diags_array(np.exp(1j * np.arange(343)))
    turned = sp.csr_array(phases @ real @ phases.conj())
    for dtype, name in (
        *(("float64", name) for name in SAVED),
        ("complex64", "lanczos"),
        ("complex64", "jd"),
    ):
        A = real if dtype == "float64" else turned.astype(dtype)
        options = SAVED[name] if dtype == "float64" else SAVED[name] | {"tol": 1e-4}
        path = folder / f"{comm.size}-{dtype}-{name}"
        whole = eigsh(A, 6, rng=0, comm=comm, return_info=True, **options)
        left(A, path, comm, **options)
        found = eigsh(A, 6, rng=0, comm=comm, return_info=True, checkpoint=path, **options)
        assert np.array_equal(found.eigenvalues, whole.eigenvalues)
        assert np.array_equal(found.eigenvectors.array, whole.eigenvectors.array)
        assert found.info["operator_columns"] == whole.info["operator_columns"]
        assert not any(share(communicator(comm), list(folder.glob(f"{path.name}*"))))


@work
def a_checkpoint_of_several_processes_is_that_of_one(comm: Any, folder: Path) -> None:
    A, comm_ = models.model("laplace3d:n=7"), communicator(comm)
    values = dense_values(A)[:6]
    for name in ("lanczos", "filter", "jd"):
        path, copy = folder / f"one-{comm.size}-{name}", folder / f"copy-{comm.size}-{name}"
        left(A, path, comm, **SAVED[name])
        if comm_.rank == 0:
            copy.write_bytes(path.read_bytes())
            w, V = eigsh(A, 6, rng=0, checkpoint=copy, **SAVED[name])
            assert np.abs(w - values).max() <= 1e-8
            assert np.abs(V.T @ V - np.eye(6)).max() <= 1e-8
            left(A, copy, None, **SAVED[name])
        share(comm_, None)
        for file in (path, copy):
            result = eigsh(A, 6, rng=0, comm=comm, checkpoint=file, return_info=True, **SAVED[name])
            check(A, result, comm, values, 1e-8)
            assert [state.restart for state in result.history] == list(range(result.info["restarts"]))


@work
def a_checkpoint_that_does_not_fit_is_refused_on_all_processes(comm: Any, folder: Path) -> None:
    A, path, comm_ = models.model("laplace3d:n=7"), folder / f"fits-{comm.size}", communicator(comm)
    options = SAVED["lanczos"] | {"rng": 0, "comm": comm, "checkpoint": path}
    left(A, path, comm, **SAVED["lanczos"])
    whole = path.read_bytes()
    with pytest.raises(OptionError, match="was written with n = 343, now it is 512"):
        eigsh(models.model("laplace3d:n=8"), 6, **options)
    with pytest.raises(OptionError, match="was written with k = 6"):
        eigsh(A, 5, **options)
    with pytest.raises(OptionError, match="belongs to another matrix of the same size"):
        eigsh(2 * A, 6, **options)
    for position in (len(whole) // 3, len(whole) // 2):
        if comm_.rank == 0:
            changed = bytearray(whole)
            changed[position] ^= 1
            path.write_bytes(changed)
        with pytest.raises(FormatError, match=r"rank 0: checkpoint: .* is broken"):
            eigsh(A, 6, **options)
    if comm_.rank == 0:
        path.write_bytes(whole)
    with pytest.raises(OptionError, match="rank 0: checkpoint: cannot write"):
        eigsh(A, 6, **{**options, "checkpoint": folder / "missing" / "file"})
    check(A, eigsh(A, 6, return_info=True, **options), comm, dense_values(A)[:6], 1e-8)


@work
def functions_of_matrices_are_those_of_one_process(comm: Any, folder: Path) -> None:
    rng = np.random.default_rng(0)
    for A, f, method in (
        (models.model("laplace2d:n=9"), -0.5j, "chebyshev"),
        (models.model(HOFSTADTER), 0.3, "chebyshev"),
        (sp.csr_array(rng.standard_normal((81, 81)) / 4), 1, "taylor"),
    ):
        n, layout = A.shape[0], RowLayout.equal(A.shape[0], communicator(comm))
        B = rng.standard_normal((n, 3)) + 1j * rng.standard_normal((n, 3))
        found, info = expm_multiply(f * A, B[layout.rows], comm=comm, return_info=True)
        assert info["method"] == method
        whole = expm_multiply(f * A, B)
        assert np.abs(host(found.gather()) - whole).max() <= 1e-12 * np.abs(whole).max()
        if method == "taylor":
            continue
        for t, psi in evolve(A, B[layout.rows], [1.0, 2.5], comm=comm):
            assert np.abs(host(psi.gather()) - expm_multiply(-1j * t * A, B)).max() <= 1e-12
        for g in (np.cos, np.abs):
            found = funm_multiply(g, A, B[layout.rows], comm=comm)
            assert np.abs(host(found.gather()) - funm_multiply(g, A, B)).max() <= 1e-8
        low, high = spectral_bounds(A, comm=comm)
        values = dense_values(A)
        assert low <= values[0] <= values[-1] <= high
    with pytest.raises(ShapeError, match="A is 81 x 81, but B has 7 rows"):
        expm_multiply(models.model("laplace2d:n=9"), np.ones((7, 1)), comm=comm)


@work
def densities_and_traces_are_those_of_one_process(comm: Any, folder: Path) -> None:
    A, B = models.model("laplace2d:n=15"), models.model(HOFSTADTER)
    for matrix, f in ((A, np.sqrt), (B, np.exp)):
        n = matrix.shape[0]
        alone = density_of_states(matrix, 32, 8, rng=3, bounds=(-9.0, 9.0))
        local = density_of_states(matrix, 16, sites=[0, n - 1], bounds=(-9.0, 9.0))
        estimate = trace(f, matrix, rng=4, vectors=20)
        for layout in layouts(n, comm):
            op = as_operator(matrix, layout=layout)
            rho = density_of_states(op, 32, 8, rng=3, bounds=(-9.0, 9.0))
            assert np.abs(rho.samples - alone.samples).max() <= 1e-13
            assert np.abs(density_of_states(2 * op - op, 32, 8, rng=3).integrate() - 1) <= 1e-12
            ends = density_of_states(op, 16, sites=[0, n - 1], bounds=(-9.0, 9.0))
            assert np.abs(ends.moments - local.moments).max() <= 1e-13
            again = trace(f, op, rng=4, vectors=20)
            assert abs(again.value - estimate.value) <= 1e-9 * abs(estimate.value)
    H = sp.diags_array([1j, -1j], offsets=[1, -1], shape=(40, 40)).tolil()
    H[38, 39] = H[39, 38] = 2  # the rows of some processes are imaginary
    alone = density_of_states(H.tocsr(), 16, 4, rng=3, bounds=(-4.0, 4.0))
    rows = H.tocsr()[RowLayout.equal(40, communicator(comm)).rows]
    split = density_of_states(rows, 16, 4, rng=3, bounds=(-4.0, 4.0), comm=comm)
    assert np.abs(split.samples - alone.samples).max() <= 1e-13
    found = logdet(A, 0.1, rng=0, comm=comm)
    assert found.method != "factors"
    assert abs(found.value - np.linalg.slogdet(A.toarray())[1]) <= 4 * found.error
    with pytest.raises(OptionError, match="double moments need one"):
        double_moments(as_operator(A, layout=RowLayout.equal(225, comm)), A)


@work
def systems_of_split_rows_have_the_solutions_of_whole_ones(comm: Any, folder: Path) -> None:
    A = models.model("laplace2d:n=15")
    B = np.random.default_rng(4).standard_normal((A.shape[0], 5))
    layout = RowLayout.equal(A.shape[0], communicator(comm))
    rows, X = layout.rows, np.linalg.solve(A.toarray(), B)
    inverse = (1 / A.diagonal())[rows][:, None]
    for call, options in (
        (cg, {}),
        (cg, {"M": lambda R: R * inverse, "x0": B[rows]}),
        (minres, {}),
        (gmres, {"restart": 60}),
        (solve, {}),
    ):
        found = call(A, B[rows], rtol=1e-10, comm=comm, return_info=True, **options)
        assert found.converged
        assert len(set(share(communicator(comm), found.residuals.tobytes()))) == 1
        assert np.abs(host(found.X.gather()) - X).max() <= 1e-7
    w, V = lobpcg(
        as_operator(A, layout=layout),
        BlockVector(B[rows], copy=True, layout=layout),
        tol=5e-9,
        maxiter=200,
        largest=False,
    )
    assert np.abs(host(w) - dense_values(A)[:5]).max() <= 1e-9
    assert V.gather().shape == B.shape


@work
def singular_triplets_are_those_of_the_whole_matrix(comm: Any, folder: Path) -> None:
    rng = np.random.default_rng(5)
    for shape, dtype in (((70, 24), "float64"), ((24, 70), "complex128"), ((40, 40), "float32")):
        A = rng.standard_normal(shape) * (rng.random(shape) < 0.3)
        A = (A + 0.5j * A**2 if dtype == "complex128" else A).astype(dtype)
        tol = 400 * float(np.finfo(dtype).eps)
        for number, rows in enumerate(layouts(shape[0], comm)):
            own = A[rows.rows] if number else sp.csr_array(A[rows.rows])
            for options in ({}, {"center": True}, {"which": "SM", "k": 3}, {"solver": "randomized"}):
                options = {"k": 5, "rng": rows.rank, "comm": comm, "shape": shape, **options}
                result = svds(own, return_info=True, **options)
                D = A - A.mean(axis=0) * ("center" in options)
                u, s, vh = host(result.u.gather()), result.s, result.vh
                assert result.u.layout == rows
                assert len(set(share(rows.comm, s.tobytes() + vh.tobytes()))) == 1
                expected = np.sort(np.linalg.svd(D, compute_uv=False))
                expected = expected[:3] if "which" in options else expected[-5:]
                assert np.abs(s - expected).max() <= tol * np.linalg.norm(D, 2)
                assert np.abs(D.conj().T @ u - vh.conj().T * s).max() <= tol * np.linalg.norm(D, 2)
                assert np.abs(vh @ vh.conj().T - np.eye(len(s))).max() <= tol
                largest = u[np.abs(u).argmax(axis=0), np.arange(len(s))]
                assert np.abs(largest - np.abs(largest)).max() <= tol
    assert [entry["rows"] for entry in result.info["processes"]] == np.diff(rows.cuts).tolist()


@work
def singular_triplets_of_operators_with_a_layout(comm: Any, folder: Path) -> None:
    A = models.model("laplace2d:n=9") + sp.diags_array(np.ones(80), offsets=1, shape=(81, 81))
    expected = np.sort(np.linalg.svd(A.toarray(), compute_uv=False))[-4:]
    op = as_operator(A, layout=RowLayout.equal(81, comm))
    u, s, vh = svds(op, 4, rng=0)
    assert np.abs(s - expected).max() <= 1e-13
    assert np.abs(A @ vh.T - host(u.gather()) * s).max() <= 1e-12
    values = svds(models.generator("laplace2d:n=9"), 4, comm=comm, return_singular_vectors=False)
    assert np.abs(values - dense_values(models.model("laplace2d:n=9"))[-4:]).max() <= 1e-13


@work
def singular_values_need_the_rows_of_each_process(comm: Any, folder: Path) -> None:
    rank, n = communicator(comm).rank, 30
    A = np.random.default_rng(rank).standard_normal((20, n))
    m = 20 * communicator(comm).size
    for name, options in {
        "v0": {"v0": np.ones(n)},
        "like": {"like": "numpy"},
        "solver": {"solver": "dense"},
        "A": {"A": A.astype(np.float32) if rank else A},
        "k": {"k": 2 + rank},
    }.items():
        with pytest.raises(OptionError, match=f"^{name}: "):
            svds(**{"A": A, "k": 2, "shape": (m, n), "comm": comm, **options})
    for shape in (None, (20, n), (m, n + 1)):
        with pytest.raises(ShapeError, match=r"shape.*own rows|this process's rows"):
            svds(A, 2, shape=shape, comm=comm)
