"""The command ``blockvec``: device limits, benchmarks, tuning, choice of kernels, pictures of results."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import BlockVector, as_operator, bench, explain
from .backends import Backend, array_namespace, backend_for
from .bench import info, latency, records, sparse, sparse_tuning, tables, tuning
from .bench.case import Case
from .bench.command_line import GPU_MATRIX, HOST_MATRIX, QUICK_MATRIX, QUICK_WIDTHS, WIDTHS, parser
from .bench.paper.measure import ALL_FIGURES, record_figures
from .bench.pictures.draw import draw
from .bench.precompile import compile_ahead, sources
from .dispatch import accepts
from .errors import OptionError
from .io import open_matrix
from .kernels.roofline import Ceilings
from .profile import ceilings
from .system.commands import DONE, guarded, write_all
from .system.files import check_apart, check_output, check_picture


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = parser().parse_args(argv)
    return guarded(f"blockvec {arguments.command}", lambda: _COMMANDS[arguments.command](arguments) or DONE)


@contextlib.contextmanager
def _progress(total: int | None) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Yield ``(say, step)``: `say` prints a line of the result, `step` shows progress on a terminal."""
    console = Console()
    if not (console.is_terminal and sys.stderr.isatty()):
        yield lambda line: print(line, flush=True), lambda what: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield (
            lambda line: progress.console.print(line, markup=False, highlight=False, soft_wrap=True),
            lambda what: progress.update(task, description=what, advance=1 if total else 0),
        )


def _info(arguments: argparse.Namespace) -> None:
    with _progress(None) as (say, step):
        for line in info.describe(measure=arguments.measure, notice=step):
            say(line)


# Benchmarks


def _bench(arguments: argparse.Namespace) -> None:
    _check_json(arguments, arguments.json)
    if arguments.plot:
        check_picture("--plot", arguments.plot)
        check_apart({"--json": arguments.json, "--plot": arguments.plot})
    run = _bench_paper if arguments.paper else _bench_latency if arguments.latency else _bench_operations
    run(arguments, backend_for(arguments.device))


def _check_json(arguments: argparse.Namespace, path: str | Path | None) -> None:
    """Refuse a file that cannot be written or is read, before anything is measured."""
    if path is not None:
        check_output("--json", path)
        check_apart({**{f"--matrix {name}": name for name in arguments.matrix or ()}, "--json": path})


def _bench_operations(arguments: argparse.Namespace, backend: Backend) -> None:
    if backend.device.kind == "cuda" and not arguments.sparse:
        problems = (c.problem for c in _dense_cases(arguments, backend) if accepts(c.problem, backend))
        compile_ahead(sources(problems, backend), backend)
    cases = _cases(arguments, backend)
    with _measuring(arguments, backend, refresh=not arguments.quick) as (book, limits, say, step):
        say(bench.heading(backend, limits))
        deadline = time.monotonic() + (math.inf if arguments.seconds is None else arguments.seconds)
        for case in cases:
            if time.monotonic() > deadline:
                say(f"{arguments.seconds:g} seconds are over")
                break
            step(f"{case.operation} {case.problem.dtype}")
            measured = bench.measure_case(case, backend, limits, quick=arguments.quick)
            book.add(measured.record(), limits)
            say(measured.line())


def _cases(arguments: argparse.Namespace, backend: Backend) -> Iterator[Case]:
    """Create the cases of dense and sparse operations; on a GPU, matrices are generated from now on."""
    quick, on_host = arguments.quick, backend.name == "cpu"
    if arguments.sparse:
        table = sparse.QUICK_TABLE if quick else sparse.HOST_TABLE if on_host else sparse.GPU_TABLE
        table = dataclasses.replace(
            table,
            matrices=tuple(arguments.matrix or table.matrices),
            widths=arguments.widths or table.widths,
        )
        return sparse.sparse_cases(sparse.OPERATIONS, table, backend, _sizes(arguments))
    cases = _dense_cases(arguments, backend)
    products = [name for name in arguments.op if name in sparse.OPERATIONS]
    if not products:
        return cases
    default = QUICK_MATRIX if quick else HOST_MATRIX if on_host else GPU_MATRIX
    table = sparse.Table(tuple(arguments.matrix or (default,)), _widths(arguments), arguments.dtype, ())
    return itertools.chain(cases, sparse.sparse_cases(products, table, backend, _sizes(arguments)))


def _dense_cases(arguments: argparse.Namespace, backend: Backend) -> Iterator[Case]:
    widths = _widths(arguments)
    shapes = [(N, N) for N in widths]
    if arguments.grid or arguments.basis:
        shapes = [(M, N) for M in arguments.basis or widths for N in widths]
    dense = [name for name in arguments.op if name in bench.OPERATIONS]
    return bench.make_cases(dense, arguments.dtype, shapes, device=backend.name, sizes=_sizes(arguments))


def _widths(arguments: argparse.Namespace) -> tuple[int, ...]:
    return arguments.widths or (QUICK_WIDTHS if arguments.quick else WIDTHS)


def _sizes(arguments: argparse.Namespace) -> bench.Sizes:
    return bench.Sizes(arguments.rows, arguments.bytes, arguments.quick, arguments.ld)


def _bench_latency(arguments: argparse.Namespace, backend: Backend) -> None:
    rows = tuple(K for K in latency.ROWS if not arguments.quick or K <= 10**4)
    widths = arguments.widths or (4, 32)
    total = len(arguments.dtype) * len(widths) * len(rows)
    refresh = not arguments.quick
    with _measuring(arguments, backend, refresh=refresh, total=total) as (book, limits, say, step):
        say(latency.heading())
        for dtype in arguments.dtype:
            for record in latency.measure_latency(backend, limits, widths, dtype, rows):
                step(f"{dtype} {record['K']} rows")
                book.add(record, limits)
                say(latency.line(record))


def _bench_paper(arguments: argparse.Namespace, backend: Backend) -> None:
    figures = ALL_FIGURES if "all" in arguments.paper else arguments.paper
    counts = dict.fromkeys(figures, 0)
    with _measuring(arguments, backend, refresh=True) as (book, limits, say, step):
        for figure, record in record_figures(figures, backend, limits, budget_s=arguments.budget):
            step(figure)
            counts[figure] += 1
            book.add(record, limits)
        for figure, count in counts.items():
            say(f"{figure:14} {count:5d} kernels timed")


@contextlib.contextmanager
def _measuring(
    arguments: argparse.Namespace, backend: Backend, *, refresh: bool, total: int | None = None
) -> Iterator[tuple[records.Book, Ceilings, Callable[[str], None], Callable[[str], None]]]:
    """Yield ``(book, ceilings, say, step)``; the book is written as it grows, and drawn at the end."""
    book = records.Book(arguments.json, records.environment(backend))
    with _kept(book), _progress(total) as (say, step):
        step("ceilings")
        yield book, ceilings(backend, refresh=refresh), say, step
    outputs: dict[str, Callable[[], None]] = {"--json": book.write}
    if arguments.plot:
        outputs["--plot"] = lambda: draw(book.document(), arguments.plot)
    write_all(outputs)


@contextlib.contextmanager
def _kept(book: records.Book | tables.Ledger) -> Iterator[None]:
    """Write the records of a run that does not reach its end."""
    try:
        yield
    except BaseException:
        book.write()
        raise


# Tuning


def _tune(arguments: argparse.Namespace) -> None:
    if arguments.results and not arguments.ship:
        raise OptionError("--from names results to ship; say where with --ship.")
    if arguments.ship:
        check_output("--ship", arguments.ship / "table.json")
    outputs: dict[str, Callable[[], None]] = {}
    if arguments.results:
        documents = [records.read(file) for file in _result_files(arguments.results)]
    else:
        is_folder = arguments.json and arguments.tables
        _check_json(arguments, arguments.json / "table.json" if is_folder else arguments.json)
        book = _tune_sparse(arguments) if arguments.matrix else _tune_dense(arguments)
        documents, outputs["--json"] = book.documents(), book.write
    if arguments.ship:
        outputs["--ship"] = lambda: _ship(arguments.ship, documents)
    write_all(outputs)


def _ship(folder: Path, documents: Sequence[records.Record]) -> None:
    for file in tuning.ship(folder, documents):
        print(file)


def _tune_sparse(arguments: argparse.Namespace) -> records.Book:
    """Tune sparse products."""
    backend = backend_for(arguments.device)
    backend.check_tunable()
    known = sparse.GPU_TABLE.matrices
    matrices = known if arguments.matrix == ["all"] else tuple(arguments.matrix)
    table = sparse.Table(matrices, arguments.widths, arguments.dtype, ())
    matrix_of = sparse.open_matrices(table, backend)
    limits = ceilings(backend, refresh=True)
    book = records.Book(arguments.json, records.environment(backend))
    how = {"budget_s": arguments.budget, "first": arguments.first, "limit_s": arguments.limit}
    with _kept(book), _progress(len(matrices) * len(table.dtypes) * len(table.widths)) as (say, step):
        say(sparse_tuning.heading())
        for record, line in sparse_tuning.tune_matrices(
            matrices, table.dtypes, table.widths, matrix_of, backend, limits, **how
        ):
            step(record["matrix"])
            book.add(record, limits)
            say(line)
    return book


def _tune_dense(arguments: argparse.Namespace) -> tables.Ledger:
    """Tune dense products."""
    backend = backend_for(arguments.device)
    backend.check_tunable()
    todo = list(_problems_to_tune(arguments))
    ledger = tables.Ledger(arguments.json, records.environment(backend), resume=arguments.resume)
    with _kept(ledger), _progress(len(todo)) as (say, step):
        say(tuning.heading())
        for tuned in tuning.tune_all(ledger.left(todo), backend, limit_s=arguments.limit, say=say):
            step(f"{tuned.problem.operation} {tuned.problem.dtype}")
            ledger.add(tuned)
            say(tuned.line())
    return ledger


def _problems_to_tune(arguments: argparse.Namespace) -> Iterator[tuning.Todo]:
    if arguments.tables:
        yield from tables.todo(list(tables.TABLES) if "all" in arguments.tables else arguments.tables)
        return
    second = arguments.by or arguments.widths
    every = arguments.grid or arguments.by
    shapes = [(M, N) for M in arguments.widths for N in second if every or M == N]
    choose = {"first": arguments.first, "sample": arguments.sample, "families": arguments.families}
    for problem in tuning.problems(
        arguments.op, arguments.dtype, shapes, ld=arguments.ld, beta=arguments.beta
    ):
        yield tuning.Todo(problem, arguments.budget, choose)


# Explanations and pictures


def _explain(arguments: argparse.Namespace) -> None:
    if len(arguments.widths) > 2:
        raise OptionError(f"--widths: got {len(arguments.widths)} widths; give M, or M,N.")
    M, N = arguments.widths[0], arguments.widths[-1]
    if arguments.operation == "apply":
        S = as_operator(open_matrix(arguments.matrix), device=arguments.device)
        X = BlockVector.empty(S.shape[1], M, arguments.dtype, device=arguments.device)
        print(explain("apply", S, X))
        return
    A = BlockVector.empty(arguments.rows, M, arguments.dtype, device=arguments.device)
    if arguments.operation == "dot":
        print(explain("dot", A, A.like(N)))
    else:
        print(explain("combine", A, array_namespace(A.array).empty((M, N), arguments.dtype)))


def _plot(arguments: argparse.Namespace) -> None:
    files = _result_files(arguments.results)
    if arguments.output and len(files) != 1:
        raise OptionError(f"--output: names one picture but there are {len(files)} results; leave it out.")
    if arguments.output:
        check_picture("--output", arguments.output)

    def plot(file: Path) -> None:
        picture = arguments.output or file.with_suffix(".svg")
        draw(records.read(file), picture)
        print(picture)

    write_all({str(file): functools.partial(plot, file) for file in files})


def _result_files(paths: Sequence[Path]) -> list[Path]:
    """List the results that the paths name: files, and all JSON files in folders."""
    files = []
    for path in paths:
        found = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not found:
            raise OptionError(f"{path}: there are no .json files in this folder.")
        files += found
    return files


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "info": _info,
    "bench": _bench,
    "tune": _tune,
    "explain": _explain,
    "plot": _plot,
}

if __name__ == "__main__":
    sys.exit(main())
