"""What has to hold for rows that are split over processes, as functions of a communicator.

Each function is called by all processes and compares with one process. Threads call them in
`tests/contract/test_distributed.py`, and processes under mpiexec in `tests/under_mpi.py`.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from blockvec import (
    BlockVector,
    DistributedOperator,
    Partition,
    RowLayout,
    as_operator,
    models,
    option_context,
    read_matrix,
)
from blockvec.errors import DTypeError, FormatError, OptionError, ShapeError
from blockvec.parallel import agreed, communicator, partial_sums, read_rows, share
from solvers import eigsh
from tests.blockvec.io.test_io import BROKEN
from tests.blockvec.io.test_petsc import BUILDS, stored
from tests.contract.blocks import DTYPES, exact_values, host

Work = Callable[..., None]


def listed_in(works: dict[str, Work]) -> Callable[[Work], Work]:
    """Make a decorator that lists functions by their names."""

    def work(function: Work) -> Work:
        works[function.__name__] = function
        return function

    return work


WORKS: dict[str, Work] = {}
work = listed_in(WORKS)


def layouts(n: int, comm: Any) -> list[RowLayout]:
    """Equal ranges, ragged ones, and all rows in the last process."""
    uneven = [0, *sorted(np.random.default_rng(n).integers(0, n + 1, comm.size - 1).tolist()), n]
    return [RowLayout.equal(n, comm), RowLayout(uneven, comm), RowLayout([0] * comm.size + [n], comm)]


def matrices() -> list[Any]:
    """Hermitian matrices of all element types: slabs, scattered rows, no coupling, one row."""
    rng = np.random.default_rng(3)
    scattered = sp.random_array((120, 120), density=0.05, rng=rng, dtype=np.float64)
    phases = sp.random_array((90, 90), density=0.1, rng=rng) * np.exp(1j)
    return [
        models.model("laplace2d:n=9,periodic=true"),
        sp.csr_array(scattered + scattered.T).astype(np.float32),
        sp.csr_array(phases + phases.conj().T),
        sp.csr_array(phases + phases.conj().T).astype(np.complex64),
        sp.csr_array(sp.diags_array(np.arange(1.0, 41.0))),
        sp.csr_array(np.array([[2.0]])),
        sp.csr_array((30, 30)),
    ]


def integers(shape: tuple[int, int], dtype: Any, seed: int) -> Any:
    return exact_values(np.random.default_rng(seed), shape, dtype)


def split(whole: Any, layout: RowLayout, device: str = "cpu") -> BlockVector:
    """Copy the rows of this process to a block, on its GPU if that is the device."""
    block = BlockVector(np.ascontiguousarray(whole[layout.rows]), copy=True, layout=layout)
    return block if device == "cpu" else block.to_device()


def is_close(a: Any, b: Any, dtype: Any) -> bool:
    a = host(a)
    scale = max(float(np.abs(b).max(initial=0.0)), 1.0)
    return bool(np.abs(a - b).max(initial=0.0) <= 64 * np.finfo(dtype).eps * scale)


# --- blocks -------------------------------------------------------------------------------------------------


@work
def layouts_cover_all_rows_once(comm: Any, folder: Path) -> None:
    for n in (0, 1, 2, 7, 100):
        for layout in layouts(n, comm):
            ranges = share(layout.comm, (layout.first_row, layout.n_local))
            assert [row for first, count in ranges for row in range(first, first + count)] == list(range(n))
            assert layout == RowLayout.from_local(layout.n_local, comm)
    with pytest.raises(ShapeError, match=f"give {comm.size + 1}"):
        RowLayout([0, 5], comm)
    with pytest.raises(ShapeError, match="do not descend"):
        RowLayout([0, 5, *[3] * (comm.size - 1)], comm)


@work
def a_layout_by_entries_balances_them(comm: Any, folder: Path) -> None:
    for seed, n in enumerate((1, 5, 60, 400)):
        entries = np.random.default_rng(seed).integers(0, 20, n)
        layout = RowLayout.by_entries(entries[RowLayout.equal(n, comm).rows], comm)
        assert layout.n_global == n
        assert abs(entries[layout.rows].sum() - entries.sum() / comm.size) <= 20


@work
def random_numbers_and_functions_depend_on_the_global_row(
    comm: Any, folder: Path, device: str = "cpu"
) -> None:
    for dtype in ("float32", "complex128"):
        for layout in layouts(50, comm):
            whole = BlockVector.random(50, 3, dtype, rng=5)
            part = BlockVector.random(50, 3, dtype, rng=5, device=device, layout=layout)
            assert np.array_equal(host(part), whole.array[layout.rows])
            again, once = part.random_like(2, 7), whole.random_like(2, 7)
            assert np.array_equal(host(again), once.array[layout.rows])
            table = BlockVector.from_function(lambda i, j: 10 * i + j, 50, 2, device=device, layout=layout)
            assert np.array_equal(host(table.gather()), 10 * np.arange(50)[:, None] + np.arange(2))


@work
def every_operation_gives_the_rows_of_the_whole(
    comm: Any, folder: Path, device: str = "cpu", n: int = 77
) -> None:
    for dtype in DTYPES:
        A, B, C = (integers(shape, dtype, 1) for shape in ((n, 4), (n, 3), (4, 3)))
        for layout in layouts(n, comm):
            V, W = split(A, layout, device), split(B, layout, device)
            c, one = (V.backend.from_host(matrix) for matrix in (C, np.eye(3, dtype=dtype)))
            assert np.array_equal(host(V.H @ W), A.conj().T @ B)
            assert np.array_equal(host(V.T @ W), A.T @ B)
            assert np.array_equal(host(V.gram()), A.conj().T @ A)
            assert np.array_equal(host(V[:, 1:].column_dot(W)), (A[:, 1:].conj() * B).sum(axis=0))
            assert is_close(V.norms(), np.linalg.norm(A, axis=0), dtype)
            assert np.array_equal(host(V.sum()), A.sum(axis=0))
            assert np.array_equal(host((V @ c).gather()), A @ C)
            assert np.array_equal(host(W.copy().axpby(2, V[:, :3], -1).gather()), 2 * A[:, :3] - B)
            assert np.array_equal(host(W.copy().combine_dot(one, V)), A.conj().T @ B)
            assert np.array_equal(host(W.copy().update_gram(V, c)), (B - A @ C).conj().T @ (B - A @ C))
            assert V.n_global == n
            assert V.shape == (layout.n_local, 4)
            made = [V[:, 1:], V[:, [0, 2]], V.copy(), V.like(2), V.random_like(1), V + V, 2 * V, V @ c, -V]
            assert all(block.layout is layout for block in [*made, V.to_host(), BlockVector(V)])
            with pytest.raises(ShapeError, match=r"V\.array\[rows\]"):
                V[0:2]


@work
def adjoints_and_sums_are_those_of_the_whole_matrix(comm: Any, folder: Path) -> None:
    rng = np.random.default_rng(3)
    A, B = (integers((60, 60), "complex128", seed) * (rng.random((60, 60)) < 0.1) for seed in (1, 2))
    X = integers((60, 3), "complex128", 3)
    for layout in layouts(60, comm):
        a, b = (as_operator(sp.csr_array(matrix), layout=layout) for matrix in (A, B))
        V = BlockVector(X[layout.rows], copy=True, layout=layout)
        for found, whole in (
            (a.H, A.conj().T),
            (a.T, A.T),
            (2j * a - b.H, 2j * A - B.conj().T),
            ((a + 3 * b).H, (A + 3 * B).conj().T),
        ):
            assert np.array_equal((found @ V).gather().array, whole @ X)
            dots = found.apply(V, shift=2, dots="xy").dots
            assert np.array_equal(dots["xy"], (X.conj() * (whole @ X - 2 * X)).sum(axis=0))
        assert a.H.H is a


@work
def sums_are_the_same_bits_on_all_processes_and_in_every_run(
    comm: Any, folder: Path, device: str = "cpu", n: int = 301
) -> None:
    layout = layouts(n, comm)[1]
    V = split(np.random.default_rng(8).standard_normal((n, 5)), layout, device)
    found = share(layout.comm, [host(V.gram()).tobytes() for _ in range(5)])
    assert len({bits for runs in found for bits in runs}) == 1


@work
def files_are_those_of_one_process(comm: Any, folder: Path, device: str = "cpu") -> None:
    A = integers((53, 2), "complex64", 4)
    for number, layout in enumerate(layouts(53, comm)):
        path = folder / f"{comm.size}-{number}.npy"
        V = split(A, layout, device)
        V.save(path)
        assert np.array_equal(np.load(path), A)
        assert np.array_equal(host(BlockVector.load(path, device=device, layout=layout)), host(V))
        with pytest.raises(ShapeError, match="got 53 rows over all processes, but the layout has 54"):
            BlockVector.load(path, layout=RowLayout.equal(54, comm))
    with pytest.raises(OSError, match="missing"):
        V.save(folder / "missing" / "block.npy")
    assert np.array_equal(host(V.gram()), A.conj().T @ A)  # the communicator works after a failure


@work
def one_process_is_no_split(comm: Any, folder: Path) -> None:
    layout = RowLayout.equal(10, None)
    assert BlockVector.zeros(10, 2, layout=layout).layout is None
    assert BlockVector(np.ones((10, 2)), layout=layout).layout is None
    assert not isinstance(as_operator(sp.eye_array(10), layout=layout), DistributedOperator)


# --- operators ----------------------------------------------------------------------------------------------


@work
def products_are_those_of_the_whole_matrix(
    comm: Any, folder: Path, device: str = "cpu", given: Any = None
) -> None:
    for A, widths in given or [(A, (1, 3)) for A in matrices()]:
        n = A.shape[0]
        for width in widths:
            dtype = np.result_type(A.dtype, np.complex64) if width == 3 else A.dtype
            X, Y = (integers((n, width), dtype, seed) for seed in (1, 2))
            shifts = np.arange(width, dtype=A.real.dtype)
            product = A @ X
            for layout in layouts(n, comm):
                op, V = as_operator(A, device=device, layout=layout), split(X, layout, device)
                assert op.shape == A.shape
                assert op.nnz == A.nnz
                assert is_close(op @ V, product[layout.rows], A.dtype)
                out, given_shifts = split(Y, layout, device), V.backend.from_host(shifts)
                op.apply(V, out=out, alpha=2, beta=-1, shift=given_shifts)
                assert is_close(out, (2 * (product - X * shifts) - Y)[layout.rows], A.dtype)
                half = op.affine(0.5, 3).apply(V, out=out.copy(), beta=-1)
                expected = 0.5 * (product - 3 * X) - (2 * (product - X * shifts) - Y)
                assert is_close(half, expected[layout.rows], A.dtype)
                if device != "cpu":
                    continue
                turns, again = [V.astype(half.dtype), half.copy()], [V.astype(half.dtype), half.copy()]
                bound = op.prepare(*again, alpha=0.5, beta=-1, shift=2, repeat=3)
                for _ in range(2):
                    bound()
                    for source, target in ((0, 1), (1, 0), (0, 1)):
                        op.apply(turns[source], out=turns[target], alpha=0.5, beta=-1, shift=2)
                for block, repeated in zip(turns, again, strict=True):
                    np.testing.assert_array_equal(block.array, repeated.array)
                x, y = (np.asfortranarray(whole[layout.rows].astype(A.dtype)) for whole in (X.real, Y.real))
                op.apply_columns(x, y, beta=1)  # column-major arrays
                assert is_close(y, (A @ X.real + Y.real)[layout.rows], A.dtype)


@work
def fused_results_are_those_of_the_whole_block(
    comm: Any, folder: Path, device: str = "cpu", given: Any = None
) -> None:
    strip = models.model("laplace2d:nx=3,ny=40")  # most rows have no coupling
    strips = [strip.astype(dtype) for dtype in DTYPES]
    for A, (*_, width) in given or [(A, (3,)) for A in (*strips, *matrices())]:
        X, Z, W = (integers((A.shape[0], width), A.dtype, seed) for seed in (3, 4, 5))
        Y = A @ X - 2 * X
        for layout in layouts(A.shape[0], comm):
            V, z, out = (split(whole, layout, device) for whole in (X, Z, W))
            op = as_operator(A, device=device, layout=layout)
            found = op.apply(V, shift=2, z=z, delta=2, eta=-1, dots=("xx", "xy"), gram=("xy", "yy"))
            assert is_close(found.Y, Y[layout.rows], A.dtype)
            assert is_close(z, (2 * Z - Y)[layout.rows], A.dtype)
            assert is_close(found.dots["xx"], (np.abs(X) ** 2).sum(axis=0), A.dtype)
            assert is_close(found.dots["xy"], (X.conj() * Y).sum(axis=0), A.dtype)
            assert is_close(found.gram["xy"], X.conj().T @ Y, A.dtype)
            assert is_close(found.gram["yy"], Y.conj().T @ Y, A.dtype)
            assert np.array_equal(host(found.gram["yy"]), host(found.gram["yy"]).conj().T)
            with option_context(jit="always" if device == "cpu" and A.dtype.char in "dF" else "auto"):
                op.apply(V, out, 3, -1, 2, z=z, delta=0, eta=2, dots="yy")
                found = op.apply(V, out, 3, -1, 2, dots=("xx", "xy", "yy"))  # which gives W again
            assert is_close(found.Y, W[layout.rows], A.dtype)
            assert is_close(z, (6 * Y - 2 * W)[layout.rows], A.dtype)
            for name, (x, y) in {"xx": (X, X), "xy": (X, W), "yy": (W, W)}.items():
                assert is_close(found.dots[name], (x.conj() * y).sum(axis=0), A.dtype)


@work
def partial_sums_add_up_to_the_whole(comm: Any, folder: Path, device: str = "cpu") -> None:
    A, X = models.model("laplace2d:nx=4,ny=60"), integers((240, 3), np.float64, 8)
    layout = RowLayout.equal(240, comm)
    op, V = as_operator(A, device=device, layout=layout), split(X, layout, device)
    with partial_sums():
        found = op.apply(V, dots=("xy", "yy"))
        parts = [V.gram(), V.dot(found.Y), found.dots["xy"], found.dots["yy"]]
    own = X[layout.rows]
    assert np.array_equal(host(parts[0]), own.T @ own)
    wholes = [host(layout.sum(part)) for part in parts]
    Y = A @ X
    for whole, expected in zip(
        wholes, (X.T @ X, X.T @ Y, (X * Y).sum(axis=0), (Y * Y).sum(axis=0)), strict=True
    ):
        assert np.array_equal(whole, expected)
    assert np.array_equal(host(V.gram()), X.T @ X)  # outside, sums are whole again


@work
def sums_of_products_that_vanish_are_zero(comm: Any, folder: Path, device: str = "cpu") -> None:
    """The own parts of rows with a coupling are not zero; no sum may have been made of them."""
    A = models.model("laplace2d:nx=4,ny=60,periodic=true")
    layout = RowLayout.equal(240, comm)
    op, V = as_operator(A, device=device, layout=layout), split(np.ones((240, 3)), layout, device)
    found = op.apply(V, dots=("xy", "yy"), gram="yy")
    assert not any(host(sums).any() for sums in (found.Y.array, *found.dots.values(), found.gram["yy"]))


@work
def all_ways_to_give_an_operator_give_the_same(comm: Any, folder: Path) -> None:
    generator = models.generator("xxz:sites=8,up=4")
    A = generator.matrix()
    n = A.shape[0]
    for layout in layouts(n, comm):
        V = BlockVector.random(n, 2, rng=1, layout=layout)
        rows = A[layout.rows]

        def local(X: Any, rows: Any = rows, layout: Any = layout) -> Any:
            return rows @ layout.gather(X)

        expected = A @ BlockVector.random(n, 2, rng=1).array
        for given in (generator, A, A.toarray(), rows, local, sp.coo_array(A)):
            op = as_operator(given, shape=(n, n) if given is local else None, layout=layout)
            assert is_close((op @ V).gather().array, expected, A.dtype)
            assert as_operator(op, layout=layout) is op
        op.check_hermitian()


class PetscMatrix(SimpleNamespace):
    """What is used of a matrix of petsc4py, for a given split of its rows."""

    def __init__(self, A: Any, layout: RowLayout, kind: str = "mpiaij", is_assembled: bool = True) -> None:
        rows = sp.csr_array(A[layout.rows])
        comm = SimpleNamespace(getSize=lambda: layout.size, tompi4py=lambda: layout.comm)
        super().__init__(
            getType=lambda: kind,
            isAssembled=lambda: is_assembled,
            getSize=lambda: (layout.n_global, A.shape[1]),
            getOwnershipRange=lambda: (layout.rows.start, layout.rows.stop),
            getValuesCSR=lambda: (rows.indptr, rows.indices, rows.data),
            getComm=lambda: comm,
        )

    def __call__(self, x: Any, y: Any = None) -> Any:
        raise AssertionError("applies A to a vector of PETSc")


@work
def a_matrix_of_petsc4py_brings_its_split_of_rows(comm: Any, folder: Path) -> None:
    A = models.model("laplace2d:n=12")
    X = integers((144, 3), A.dtype, 1)
    for layout in layouts(144, comm):
        P = PetscMatrix(A, layout)
        op = as_operator(P)
        assert op.layout.cuts == layout.cuts
        assert is_close(
            (op @ BlockVector(X[layout.rows], layout=op.layout)).array, (A @ X)[layout.rows], float
        )
        other = RowLayout.equal(144, comm)
        assert as_operator(P, layout=other).layout == other
        for options in ({}, {"comm": comm}):
            w = eigsh(P, 3, which="SA", method="lanczos", rng=0, **options)[0]
            assert np.abs(w - np.linalg.eigvalsh(A.toarray())[:3]).max() <= 1e-12
    with pytest.raises(OptionError, match="with rows in several processes"):
        eigsh(A, 3, M=P)
    with pytest.raises(DTypeError, match=r"PETSc's type 'shell'; convert it by A.convert"):
        as_operator(PetscMatrix(A, layout, "shell"))
    with pytest.raises(OptionError, match=r"call A.assemble\(\)"):
        eigsh(PetscMatrix(A, layout, is_assembled=False), 3, comm=comm)
    alone = PetscMatrix(A, RowLayout.equal(144, None), "seqaij")
    assert np.array_equal((as_operator(alone) @ X).array, A @ X)
    sigma, M = 0.3, PetscMatrix(sp.eye_array(144, format="csr"), RowLayout.equal(144, None), "seqaij")
    wanted = eigsh(A, 3, sigma=sigma, rng=0)[0]
    assert np.abs(eigsh(alone, 3, M=M, sigma=sigma, rng=0)[0] - wanted).max() <= 1e-12


@work
def views_and_changing_widths_are_no_special_case(comm: Any, folder: Path) -> None:
    A, X = models.model("laplace2d:n=8"), integers((64, 12), "float64", 9)
    layout = RowLayout.equal(64, comm)
    op, V = as_operator(A, layout=layout), BlockVector(X[layout.rows], copy=True, layout=layout)
    for width in (*range(1, 12), 2, 1):
        Y = BlockVector.zeros(64, 12, layout=layout)
        op.apply(V[:, 1 : 1 + width], out=Y[:, :width])
        assert np.array_equal(Y.gather().array[:, :width], A @ X[:, 1 : 1 + width])
        assert not Y.array[:, width:].any()


@work
def what_does_not_fit_is_refused_on_all_processes(comm: Any, folder: Path) -> None:
    A, layout = models.model("laplace1d:n=20"), RowLayout.equal(20, comm)
    op = as_operator(A, layout=layout)
    with pytest.raises(ShapeError, match=r"give blocks of A\.layout"):
        op @ BlockVector.zeros(20, 1)
    other = RowLayout([0] * comm.size + [20], comm)
    with pytest.raises(ShapeError, match=r"give blocks of A\.layout"):
        op @ BlockVector.zeros(20, 1, layout=other)
    with pytest.raises(ShapeError, match=r"A has shape \(9, 20\)"):
        as_operator(sp.csr_array((9, 20)), layout=layout)
    with pytest.raises(OptionError, match="give shape"):
        as_operator(lambda X: X, layout=layout)
    with pytest.raises(OptionError, match=r"give A's"):
        as_operator(op, layout=other)
    with pytest.raises(OptionError, match=r"models\.generator"):
        as_operator(as_operator(A), layout=layout)


# --- failures -----------------------------------------------------------------------------------------------


def fail_on(rank: int, V: BlockVector, error: Exception, op: Any) -> None:
    """Raise an exception on one process while the others go on."""
    for step in range(5):
        V.gram()
        op.apply(V, dots="xy")
        if V.comm.rank == rank and step == 2:
            raise error


@work
def the_exception_of_one_process_is_that_of_all(comm: Any, folder: Path) -> None:
    A, layout = models.model("laplace1d:n=30"), RowLayout.equal(30, comm)
    op, V = as_operator(A, layout=layout), BlockVector.zeros(30, 2, layout=layout)
    for failing in range(comm.size):
        for kind in (FormatError, MemoryError, ZeroDivisionError):
            with pytest.raises(kind, match=f"rank {failing}: what went wrong"), agreed(layout.comm):
                fail_on(failing, V, kind("what went wrong"), op)
        assert V.gram().tolist() == [[0, 0], [0, 0]]
        assert not op.apply(V).array.any()
    with pytest.raises(ValueError, match=r"^the same everywhere$"), agreed(layout.comm):
        raise ValueError("the same everywhere")
    wrong = sp.csr_array((3, 4)) if layout.rank == 0 else A
    with pytest.raises(ShapeError, match=r"rank 0: A has shape \(3, 4\)"):
        as_operator(wrong, layout=layout)


# --- rows in other layouts, and in files --------------------------------------------------------------------


@work
def rows_move_to_their_owners_in_another_layout(comm: Any, folder: Path) -> None:
    A = integers((37, 3), "complex64", 2)
    M = sp.random_array((37, 41), density=0.2, rng=np.random.default_rng(4), format="csr")
    for one, other in itertools.product(layouts(37, comm), repeat=2):
        V = BlockVector(np.array(A[one.rows]), layout=one)
        moved = V[:, 1:].redistribute(other)
        assert moved.layout is other
        assert np.array_equal(moved.array, A[other.rows, 1:])
        rows = one.redistribute(sp.csr_array(M[one.rows]), other)
        assert np.array_equal(rows.toarray(), M[other.rows].toarray())
    with pytest.raises(ShapeError, match="got 37 rows over all processes, but the layout has 38"):
        one.redistribute(A[one.rows], RowLayout.equal(38, comm))
    with pytest.raises(OptionError, match="give one of the same processes"):
        BlockVector.zeros(37, 1).redistribute(one)


@work
def rows_go_to_the_parts_of_a_partitioner_and_back(comm: Any, folder: Path) -> None:
    rng = np.random.default_rng(12)
    for A in matrices():
        n = A.shape[0]
        X = integers((n, 3), A.dtype, 5)
        for parts in (rng.integers(0, comm.size, n), np.full(n, comm.size - 1), np.arange(n) % comm.size):
            for given in layouts(n, comm):
                split = Partition(parts[given.rows], given)
                order = np.argsort(parts, kind="stable")  # old number of each new row
                numbers = np.concatenate(share(given.comm, split.numbers))
                assert np.array_equal(np.argsort(order), numbers)
                assert np.diff(split.layout.cuts).tolist() == np.bincount(parts, minlength=comm.size).tolist()
                V = BlockVector(np.array(X[given.rows]), layout=given)
                moved = split.to_parts(V)
                assert np.array_equal(moved.array, X[order][split.layout.rows])
                assert np.array_equal(split.to_given(moved[:, 1:]).array, V.array[:, 1:])
                rows = split.matrix(sp.csr_array(A[given.rows]))
                expected = sp.csr_array(A)[order][:, order][split.layout.rows]
                assert np.array_equal(rows.toarray(), expected.toarray())
                product = split.to_given(as_operator(rows, layout=split.layout) @ moved)
                assert is_close(product.array, (A @ X)[given.rows], A.dtype)
    with pytest.raises(OptionError, match=f"give a process from 0 to {comm.size - 1}"):
        Partition(np.full(given.n_local, comm.size), given)
    with pytest.raises(OptionError, match="give one on the host with"):
        split.to_parts(BlockVector.zeros(given.n_local, 1))


def written(A: Any, path: Path, comm: Any, text: bytes | None = None, **options: Any) -> None:
    """Write a matrix on process 0, as Matrix Market or as the bytes given."""
    if comm.rank == 0:
        if text is None:
            scipy.io.mmwrite(path, A, **options)
        else:
            path.write_bytes(text)
    share(communicator(comm), None)


def check_rows(path: Path, comm: Any) -> None:
    """Compare the rows that processes read with those of the whole file."""
    whole = read_matrix(path)
    for layout in (None, *layouts(whole.shape[0], comm)):
        rows = read_rows(path, comm, layout)
        own = RowLayout.equal(whole.shape[0], comm) if layout is None else layout
        assert type(rows) is type(whole)
        assert rows.dtype == whole.dtype
        assert rows.shape == (own.n_local, whole.shape[1])
        expected = whole[own.rows]
        assert np.array_equal(*(part.toarray() if sp.issparse(part) else part for part in (rows, expected)))
        assert not sp.issparse(rows) or rows.indices.dtype == np.int32


@work
def files_of_matrix_market_are_read(comm: Any, folder: Path) -> None:
    rng = np.random.default_rng(6)
    general = sp.random_array((23, 17), density=0.3, rng=rng)
    square = sp.random_array((23, 23), density=0.3, rng=rng)
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "general": (general, {}),
        "complex": (general * (1 - 2j), {}),
        "symmetric": (square + square.T, {"symmetry": "symmetric"}),
        "hermitian": (square * 1j + (square * 1j).conj().T, {"symmetry": "hermitian"}),
        "skew": (square - square.T, {"symmetry": "skew-symmetric"}),
        "pattern": (general, {"field": "pattern"}),
        "integer": (sp.coo_array(np.arange(20).reshape(4, 5) % 3), {"field": "integer"}),
        "dense": (general.toarray(), {}),
        "empty": (sp.coo_array((9, 9)), {}),
        "one": (sp.coo_array(np.array([[2.5]])), {}),
    }
    for name, (A, options) in cases.items():
        path = folder / f"{comm.size}-{name}.mtx"
        written(sp.coo_array(A) if name != "dense" else A, path, comm, comment="made up\n", **options)
        check_rows(path, comm)
    lines = b"%%MatrixMarket matrix coordinate real general\n% c\n\n3 3 4\n"
    lines += b"1 1 1e0\n\n 1 1 2\n\n3 2 4\t\n2 3 5\n\n\n"
    for name, text in {
        "blanks": lines,
        "no newline": lines.rstrip(),
        "windows": lines.replace(b"\n", b"\r\n"),
    }.items():
        path = folder / f"{comm.size}-{name}.mtx"
        written(None, path, comm, text)
        check_rows(path, comm)
    packed = folder / f"{comm.size}-packed.mtx.gz"
    written(None, packed, comm, gzip.compress(lines))
    check_rows(packed, comm)


@work
def files_of_petsc_and_scipy_are_read_in_parts(comm: Any, folder: Path) -> None:
    A = sp.random_array((31, 12), density=0.3, rng=np.random.default_rng(8), format="csr")
    for number, (index, value) in enumerate(BUILDS):
        path, broken = (folder / f"{comm.size}-{number}{name}.petsc" for name in ("", "-broken"))
        text = stored(A, index, value)
        written(None, path, comm, text)
        check_rows(path, comm)
        first = np.diff(A.indptr)[:1].astype(index).tobytes()
        written(None, broken, comm, text.replace(first, b"\x7f" * len(first), 1))
        with pytest.raises(FormatError, match="do not add up"):
            read_rows(broken, comm)
    path = folder / f"{comm.size}.npz"
    if comm.rank == 0:
        sp.save_npz(path, A.astype(np.float32))
    share(communicator(comm), None)
    check_rows(path, comm)


@work
def broken_files_are_refused_as_by_one_process(comm: Any, folder: Path) -> None:
    banner = "%%MatrixMarket matrix coordinate real "
    good = "".join(f"{i} {i} 1.5\n" for i in range(1, 9))
    files = BROKEN | {  # in the part of one process
        "fortran": banner + "general\n8 8 8\n" + good.replace("7 1.5", "7 1.5D0"),
        "parts of lines": banner + "general\n8 8 8\n" + good.replace("3 3 1.5\n", "3 3\n1.5 "),
        "row": banner + "general\n8 8 8\n" + good.replace("8 8 1.5", "9 8 1.5"),
        "triangles": banner + "symmetric\n8 8 10\n1 2 1\n" + good + "2 1 1\n",
        "skew": banner + "skew-symmetric\n8 8 8\n" + good,
        "text": "a thesis",
    }
    for number, text in enumerate(files.values()):
        path = folder / f"{comm.size}-{number}"
        written(None, path, comm, text.encode("latin-1"))
        with pytest.raises(FormatError) as alone:
            read_matrix(path)
        with pytest.raises(FormatError) as together:
            read_rows(path, comm)
        assert str(together.value).removeprefix("rank 0: ") == str(alone.value)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_rows(folder / "missing", comm)
