"""Build the archives of compiled kernels that are installed with blockvec, for common solves.

    python tests/benchmarks/prebuilt_kernels.py             # writes blockvec/kernels/prebuilt/*/*.zip
    python tests/benchmarks/prebuilt_kernels.py --check     # counts the kernels that are missing

The kernels are those that solves on a pretended GPU ask for, for several numbers of rows and structures of
matrices. No GPU is needed. Kernels that are in an archive already are not compiled again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import blockvec.backends.cuda.backend as cuda
from blockvec import BlockVector, as_operator, dispatch, models, option_context, options
from blockvec.backends import Backend
from blockvec.kernels import prebuilt
from blockvec.kernels.compile import OPTIONS, compile_source, compiler_version
from blockvec.kernels.device import H200
from blockvec.kernels.elementwise import AxpbyKernel, Factor, FoldKernel, WithinKernel, real_type
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.kernels.inverse_factor import InverseFactorKernel
from blockvec.kernels.krylov_steps import KrylovStepsKernel
from blockvec.kernels.problem import (
    ENTRY_CLASSES,
    MAX_ALIGNMENT,
    SpmmvProblem,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    itemsize,
)
from blockvec.kernels.recurrence import RecurrenceKernel
from blockvec.kernels.sparse import codes, pieces
from blockvec.kernels.tuning import choices, installed_choices
from blockvec.kernels.tuning.choices import made_choices
from blockvec.kernels.tuning.winners import configure_sparse
from solvers import eigsh
from solvers.blocks import PADDING
from tests.benchmarks.drawn_problems import draw, matrix
from tests.benchmarks.precompiled_lists import solves
from tests.pretended_cupy import CuPy
from tests.pretended_gpu import PretendedGpu, Solve, pretended_gpu

__all__ = ["missing", "sources"]

FOLDER = Path(__file__).resolve().parents[2] / "blockvec" / "kernels" / "prebuilt"
DEVICES = (H200,)
Matrix = tuple[Any, int, int]
ROWS = (1 << 12, (1 << 14) + 1, 1 << 18, (1 << 18) + 1, 1 << 22)
"""For each of `ROW_CLASSES` numbers that belong to it, with more and fewer bytes than `LEAST_BYTES`: from so
many on, measured winners replace the models' choices."""
RUNS: tuple[tuple[str, tuple[int | None, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    # element type, block sizes, numbers of eigenpairs, rows
    ("float64", (None, 1, 4), (1, 6, 10, 14, 20), ROWS),
    ("complex128", (None,), (6, 10, 15, 20), ROWS),
    ("float32", (None,), (1, 6, 10, 20), ROWS),
    ("complex64", (None,), (1, 6, 10, 20), ROWS),
)
METHODS = ("lanczos", "filter", "jd")
SHIFT_INVERT = (
    (6, 136),
    (10, 144),
    (20, 152),
    (50, 184),
)  # eigenpairs, and basis vectors at shifts of `eigsh`
KRYLOV_STEPS = (  # element type, block size, and columns of the basis in units of 32
    *(("float64", 2, tiles) for tiles in (1, 2)),
    *(("float64", 4, tiles) for tiles in (2, 3)),
    *(("float64", 8, tiles) for tiles in (3, 4, 5, 6, 7)),
    *(("complex128", b, tiles) for b, tiles in ((2, 1), (2, 2), (4, 2), (4, 3))),
)
ENTRY_TYPES = ("float32", "float64", "complex64", "complex128")
DRAWN = (1001, 64, 2e4)
"""Seed, number and most rows of drawn problems whose solves count, too."""
MULTIPLE = [
    (f"torus3d:n={n},seed=0", k, which)
    for n, pairs in ((16, (1, 6, 10, 14, 20, 50)), (25, (6, 14, 20)), (32, (6, 14, 20)))
    for k in pairs
    for which in ("SA", "LA")
]
"""Problems of multiple eigenvalues, whose missed copies and searches have blocks of few columns."""
LONG = 4096  # entries of the longest row, where kernels of long rows are wanted
MANY_ENTRIES = (40, 64, 96, 128, 192, 256)
COMMON: tuple[Matrix, ...] = (("planes", 7, 7), ("lines", 5, 5), ("scattered", 4, 4))
"""Pattern, entries per row and those of the longest row of matrices for which all products are compiled."""
OTHERS: dict[str, tuple[Matrix, ...]] = {
    "float64": (
        *(("scattered", entries, LONG if entries > 4 else entries) for entries in ENTRY_CLASSES),
        *(("uneven", entries, LONG) for entries in (6, 10, 12, 14, 20, 40)),
        *(("lines", entries, entries) for entries in (3, 4, 6, 7, 8, 9, 10, 12, 14, 16, 27, *MANY_ENTRIES)),
        *(("planes", entries, entries) for entries in (9, 10, 12, 14, 20, 27, *MANY_ENTRIES)),
    ),
    "complex128": (
        *(("scattered", entries, entries) for entries in (5, 6, 8, 12, 16, 20)),
        *(("lines", entries, entries) for entries in (4, 9)),
    ),
    "float32": (
        *(("scattered", entries, entries) for entries in ENTRY_CLASSES),
        *(("uneven", entries, LONG) for entries in (6, 10, 12, 14, 20)),
        *(("lines", entries, entries) for entries in (4, 6, 7, 8, 9, 10, 12, 14, 16, 27)),
        *(("planes", entries, entries) for entries in (10, 12, 14, 27)),
    ),
    "complex64": (("scattered", 5, 5), ("lines", 4, 4), ("lines", 9, 9)),
}
"""Others by element type, for which products with blocks of up to `NARROW` columns are compiled."""
NARROW = 16
PADDED = range(PADDING, 129, PADDING)
"""Columns of locked and converged vectors: blocks are filled up to these widths with zeros."""
HALF_PADDED = range(PADDING // 2, 129, PADDING)
"""Columns of a basis that missed copies are appended to."""
FEW = range(1, 9)
"""Columns of a block, or of one that has lost some."""
LEFT: dict[str, tuple[int, ...]] = {"float64": (*FEW, 16, 32), "complex128": (1, 2, 4, 8)}
"""Columns that vectors are projected out of, by element type."""
UNPADDED = range(97, 129)
"""Columns of vectors for which a basis of a hundred wanted ones has no room to be filled up."""
SQUARES: dict[str, tuple[int, ...]] = {
    "float64": (*range(1, 17), *PADDED[1:]),
    "complex128": (*FEW, *PADDED),
}
"""Columns of blocks with a Gram matrix, or that are multiplied by a square matrix, by element type."""
CODED_ENTRIES = 1 << 21  # of matrices whose entries may be encoded


MANY = [
    *(("separated:n=12000,outside=62,seed=1", k, "LA") for k in (20, 100)),
    *(("peierls:nx=70,seed=1", k, which) for k in (1, 6, 12, 20, 40, 100) for which in ("SA", "LM")),
    ("anderson:n=22,disorder=10.0,seed=1", 100, "SA"),
    ("regular_graph:n=12000,degree=6,seed=1", 100, "LA"),
    *(("power_law_graph:n=12000,seed=1", k, "LM") for k in (1, 6, 8, 12, 16, 25, 30, 40, 64, 100)),
    *(("anderson:n=22,disorder=10.0,seed=1", k, "SA") for k in (64, 200)),
    ("rough_elements:nx=110,contrast=1.0,seed=1", 100, "SA"),
]
"""Problems of many eigenvalues, of which a draw has few."""
MIXED = [
    *(("peierls:nx=70,seed=1", k, which) for k in (1, 6, 20, 100) for which in ("SA", "LM")),
    *(("graphene:nx=70,seed=1", k, "LM") for k in (6, 20)),
    ("anderson:n=16,disorder=10.0,seed=1", 20, "LM"),
]
"""Problems whose filters are in single precision where they have many rows."""


@contextlib.contextmanager
def pretended_backend(device: Any) -> Iterator[Backend]:
    """Provide the CUDA backend of a device that is not there, with an empty cache folder."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setitem(sys.modules, "cupy", CuPy())
        patch.setattr(choices, "installed_choices", lambda device: None)  # the models are to choose
        patch.setattr(choices, "MAX_CHOICES", sys.maxsize)
        with option_context(cache_dir=Path(folder)):
            yield cuda.CudaBackend(PretendedGpu(0, device))


def sources(recorded: Iterable[Solve], backend: Backend, rows: Iterable[int]) -> dict[str, None]:
    """Generate the sources of all kernels that recorded solves would run with other numbers of rows."""
    found: dict[str, None] = {}
    requests = {request: solve.sizes["n"] for solve in recorded for request in solve.requests}
    for (request, n), count in itertools.product(requests.items(), rows):
        found |= dict.fromkeys(_sources(request, n, count, backend))
    return found


def _sources(request: Any, n: int, rows: int, backend: Backend) -> Iterator[str]:
    if isinstance(request, TsmttsmProblem | TsmmProblem | SweepProblem):
        tall = dataclasses.replace(request, K=rows) if n == request.K else request
        chosen = dispatch.preferred(tall, backend)
        if chosen is not None and chosen.name not in ("column_dot", "scale") and not chosen.vendor:
            yield chosen.source()
    elif isinstance(request, SpmmvProblem):
        others = OTHERS.get(request.dtype, ()) if request.width <= NARROW else ()
        for (pattern, entries, longest), coded in itertools.product((*COMMON, *others), (False, True)):
            if coded and rows * entries < CODED_ENTRIES:
                continue
            extents = {"n_rows": rows, "n_cols": rows, "nnz": rows * entries}
            product = dataclasses.replace(request, **extents, pattern=pattern, longest=longest, coded=coded)
            chosen = dispatch.preferred(product, backend)
            if chosen is not None and not chosen.vendor:
                family = SPARSE_FAMILIES[chosen.name]
                config, _ = configure_sparse(family, product, backend.device, options().winners_dir)
                yield from family.sources(product, config, backend.device)
    else:
        yield request.source()


def drawn_solves() -> Iterator[Solve]:
    """Yield the solves of drawn problems, of those with multiple or many eigenvalues, and mixed ones."""
    usual = itertools.product(("auto",), (*draw(*DRAWN), *MULTIPLE, *MANY))
    for precision, (text, k, which) in (*usual, *itertools.product(("mixed",), MIXED)):
        A = matrix(text).tocsr()
        indices = A.indices.astype(np.int32), A.indptr.astype(np.int32)  # as on a GPU
        A = sp.csr_array((A.data, *indices), shape=A.shape)
        tol = 1e-8 * float(abs(A).sum(axis=0).max())
        how: dict[str, Any] = {"which": which, "tol": tol, "convergence": "absolute", "precision": precision}
        with pretended_gpu() as watched, np.errstate(all="ignore"):
            eigsh(A, k, rng=0, device="gpu", on_unconverged="return", **how)
        yield from watched.solves


def function_solves() -> Iterator[Solve]:
    """Yield the solves with functions of a GPU, whose bases have more columns."""
    A = models.model("laplace3d:n=16")
    for dtype, k, which in itertools.product(("float64", "complex128"), (1, 2, 4, 6, 10, 20), ("SA", "LA")):
        with pretended_gpu() as watched, np.errstate(all="ignore"):
            operator = as_operator(A.astype(dtype), device="gpu")

            def product(X: Any, operator: Any = operator) -> Any:
                return (operator @ BlockVector(X)).array

            how: dict[str, Any] = {"shape": A.shape, "dtype": dtype, "on_unconverged": "return"}
            eigsh(product, k, which=which, tol=1e-8, rng=0, device="gpu", **how)
        yield from watched.solves


def products(dtype: str) -> Iterator[TsmttsmProblem | TsmmProblem | SweepProblem]:
    """Describe the products of a search for missed copies, whose widths recorded solves have by chance.

    Found vectors are columns of a wider block, grown ones a block of their own or columns of it.
    """
    conj = dtype.startswith("complex")
    pairs = [*itertools.product(PADDED, LEFT[dtype]), *((M, 1) for M in UNPADDED)]
    for (M, N), K in itertools.product(pairs, ROWS):
        lda = M + PADDING
        yield TsmttsmProblem(K, M, N, dtype, dtype, lda, N, conj=conj)
        yield TsmmProblem(K, M, N, dtype, dtype, lda, N, alpha="general", beta="one")
        if N <= PADDING and M in PADDED:
            yield SweepProblem("update_gram", K, M, N, dtype, dtype, dtype, lda, N)
    for M, N, K in itertools.product(HALF_PADDED, (1, 2, 4), ROWS):
        yield TsmttsmProblem(K, M, N, dtype, dtype, M + PADDING, N, conj=conj)
        yield SweepProblem("update_gram", K, M, N, dtype, dtype, dtype, M + PADDING, N)
    for M, N, K in itertools.product(PADDED, PADDED[:2], ROWS):  # found vectors, and random ones behind them
        wide = M + 2 * PADDING
        yield TsmttsmProblem(K, M, N, dtype, dtype, wide, wide, conj=conj)
        yield TsmmProblem(K, M, N, dtype, dtype, wide, wide, alpha="general", beta="one")
    for M, N, K in itertools.product(range(320, 961, 64), (8,), ROWS):  # a basis of many wanted vectors
        yield TsmttsmProblem(K, M, N, dtype, dtype, M + PADDING, N, conj=conj)
        yield TsmmProblem(K, M, N, dtype, dtype, M + PADDING, N, alpha="general", beta="one")
        yield SweepProblem("update_gram", K, M, N, dtype, dtype, dtype, M + PADDING, N)
    for n, K in itertools.product((*FEW, PADDING), ROWS):  # a mixture of vectors
        yield TsmmProblem(K, n, 1, dtype, dtype, n, 1)
    for n, K in itertools.product(SQUARES[dtype], ROWS):
        yield TsmttsmProblem(K, n, n, dtype, dtype, n, n, conj=conj)
        odd = itemsize(dtype)  # alignment of columns that begin at an odd place
        for ld, align in ((n, MAX_ALIGNMENT), (n + PADDING, MAX_ALIGNMENT), (n + PADDING, odd)):
            yield TsmttsmProblem(K, n, n, dtype, dtype, ld, ld, align, align, conj, same=True)
            yield TsmmProblem(K, n, n, dtype, dtype, ld, ld, align, align, inplace=True)
            yield TsmmProblem(K, n, n, dtype, dtype, ld, n, align)
            yield TsmmProblem(K, n, n, dtype, dtype, n, ld, align_b=align)


def restarts(dtype: str) -> Iterator[TsmmProblem]:
    """Describe the products of restarts, of a basis with kept Ritz vectors or few mixtures of them."""
    for M, K in itertools.product(PADDED, ROWS):
        for N, ld in itertools.product(PADDED[: M // PADDING], (M, M + 4, M + PADDING)):
            yield TsmmProblem(K, M, N, dtype, dtype, ld, ld, inplace=True)
        for N in FEW:
            yield TsmmProblem(K, M, N, dtype, dtype, M + 4, N)


def sums() -> Iterator[str]:
    """Generate the sources of alpha X + beta Y of one type, with real factors, of all columns or of each."""
    for dtype, flat, aligned in itertools.product(ENTRY_TYPES, (True, False), (True, False)):
        factors = Factor(), Factor(columns=real_type(dtype))
        for alpha, beta in itertools.product(factors, (None, *factors)):
            dtype_y = None if beta is None else dtype
            yield AxpbyKernel(dtype, dtype_y, dtype, alpha, beta or Factor(), flat, aligned).source()


def folds() -> Iterator[str]:
    """Generate the sources of sums of partial products in one type, also of Hermitian results."""
    for dtype, lanes, hermitian in itertools.product(ENTRY_TYPES, (1, 2, 4, 8, 16, 32), (True, False)):
        yield FoldKernel(dtype, dtype, lanes, hermitian=hermitian).source()


def krylov_steps(device: Any) -> dict[str, None]:
    """Generate the sources of Lanczos steps in the block sizes and on the bases that `eigsh` chooses."""
    kernels = [KrylovStepsKernel(*kind, piece=16) for kind in KRYLOV_STEPS]
    return dict.fromkeys(kernel.source(device) for kernel in kernels)


def recurrences() -> dict[str, None]:
    """Generate the sources of filters of the usual block sizes, and of sketches of one and two vectors."""
    kinds = (*((b, False) for b in (1, 2, 4, 8)), *((b, True) for b in (1, 2)))
    kernels = [RecurrenceKernel(dtype, b, lanczos) for dtype in ENTRY_TYPES for b, lanczos in kinds]
    return dict.fromkeys(kernel.source() for kernel in kernels)


def missing(wanted: Iterable[str], architecture: str) -> list[str]:
    """List the sources that have no machine code in the package."""
    return [source for source in wanted if prebuilt.find(source, architecture, OPTIONS) is None]


def wanted(device: Any) -> tuple[list[str], dict[str, Any]]:
    """Generate the sources of all kernels that the package contains for a device, and the models' choices."""
    found: dict[str, None] = {}
    with pretended_backend(device) as backend:
        for (dtype, block_sizes, pairs, rows), method in itertools.product(RUNS, METHODS):
            tol = 1e-8 if dtype in ("float64", "complex128") else 1e-4
            for b in block_sizes:
                # Of blocks of one column most searches would find copies, in blocks of many widths.
                verify = "auto" if b is None else "never"
                recorded = solves(method, (b,), pairs, dtype, verify=verify, tol=tol, maxiter=60)
                found |= sources(recorded, backend, rows)
            print(device.architecture, dtype, method, len(found), flush=True)
        for dtype in ("float64", "complex128"):
            how: dict[str, Any] = {"precision": "mixed", "tol": 1e-8, "maxiter": 60}
            found |= sources(solves("filter", (None,), (1, 6, 20), dtype, **how), backend, ROWS[2:])
        print(device.architecture, "mixed", len(found), flush=True)
        for k, ncv in SHIFT_INVERT:
            recorded = solves("lanczos", (8,), (k,), "float64", verify="never", maxiter=10, ncv=ncv)
            found |= sources(recorded, backend, ROWS[2:])
        print(device.architecture, "shift-invert", len(found), flush=True)
        found |= sources(drawn_solves(), backend, ROWS)
        print(device.architecture, "drawn", len(found), flush=True)
        found |= sources(function_solves(), backend, ROWS)
        print(device.architecture, "functions", len(found), flush=True)
        for dtype in LEFT:
            for problem in products(dtype):
                found |= dict.fromkeys(_sources(problem, problem.K, problem.K, backend))
        print(device.architecture, "searches", len(found), flush=True)
        for problem in restarts("float32"):
            found |= dict.fromkeys(_sources(problem, problem.K, problem.K, backend))
        found |= krylov_steps(device) | recurrences()
        found |= dict.fromkeys((*sums(), *folds()))
        found |= dict.fromkeys(InverseFactorKernel(dtype).source() for dtype in ENTRY_TYPES)
        found |= dict.fromkeys(WithinKernel(dtype).source() for dtype in ("int32", "int64"))
        found |= dict.fromkeys(codes.source(dtype) for dtype in ENTRY_TYPES)
        of_rows = itertools.product(pieces.KERNELS, ("int32", "int64"))
        found |= dict.fromkeys(pieces.source(kernel, index) for kernel, index in of_rows)
        return list(found), made_choices(device)


def build(found: Iterable[str], architecture: str) -> None:
    """Compile sources and write the archives of an architecture; kernels that are no longer wanted go."""

    def compiled(source: str) -> tuple[str, prebuilt.Prebuilt]:
        known = prebuilt.find(source, architecture, OPTIONS)
        if known is None:
            cubin = compile_source(source, architecture)
            known = prebuilt.Prebuilt(cubin.image, dataclasses.asdict(cubin.resources), compiler_version())
        return source, known

    groups: defaultdict[str, list[str]] = defaultdict(list)
    for source in found:
        groups[prebuilt.archive_of(source)].append(source)
    folder = FOLDER / architecture
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for name, members in sorted(groups.items()):
            keys = [prebuilt.identity(source, architecture, OPTIONS) for source in members]
            archive = prebuilt.pack(dict(zip(keys, threads.map(compiled, members), strict=True)))
            (folder / f"{name}.zip").write_bytes(archive)
            print(f"{name}: {len(members)} kernels, {len(archive) >> 10} KB", flush=True)
    for file in folder.glob("*.zip"):
        if file.stem not in groups:
            file.unlink()


def main() -> None:
    """Build or check the archives of all devices."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="count kernels instead of compiling them")
    arguments = parser.parse_args()
    for device in DEVICES:
        found, chosen = wanted(device)
        packed = installed_choices.pack(device, chosen)
        if arguments.check:
            lacking = len(missing(found, device.architecture))
            print(f"{device.architecture}: {lacking} of {len(found)} missing, {len(chosen)} choices")
        else:
            build(found, device.architecture)
            (FOLDER / device.architecture / installed_choices.FILE).write_bytes(packed)
            print(f"{len(chosen)} choices, {len(packed) >> 10} KB", flush=True)


if __name__ == "__main__":
    main()
