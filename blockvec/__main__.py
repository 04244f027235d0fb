"""The command ``blockvec``: device limits, benchmarks, tuning, choice of kernels, pictures of results."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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
from .bench import info, records, sparse, sparse_tuning, tuning
from .bench.case import Case
from .bench.command_line import GPU_MATRIX, HOST_MATRIX, QUICK_MATRIX, QUICK_WIDTHS, WIDTHS, parser
from .bench.pictures.draw import draw, draw_files
from .bench.precompile import compile_ahead, sources
from .dispatch import accepts
from .errors import OptionError
from .matrices import open_matrix
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
    backend = backend_for(arguments.device)
    if backend.device.kind == "cuda" and not arguments.sparse:
        problems = (c.problem for c in _dense_cases(arguments, backend) if accepts(c.problem, backend))
        compile_ahead(sources(problems, backend), backend)
    cases = _cases(arguments, backend)
    book = records.Book(arguments.json, records.environment(backend))
    with _kept(book), _progress(None) as (say, step):
        step("ceilings")
        limits = ceilings(backend, refresh=not arguments.quick)
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
    outputs: dict[str, Callable[[], None]] = {"--json": book.write}
    if arguments.plot:
        outputs["--plot"] = lambda: draw(book.document(), arguments.plot)
    write_all(outputs)


def _check_json(arguments: argparse.Namespace, path: str | Path | None) -> None:
    """Refuse a file that cannot be written or is read, before anything is measured."""
    if path is not None:
        check_output("--json", path)
        check_apart({**{f"--matrix {name}": name for name in arguments.matrix or ()}, "--json": path})


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


@contextlib.contextmanager
def _kept(book: records.Book) -> Iterator[None]:
    """Write the records of a run that does not reach its end."""
    try:
        yield
    except BaseException:
        book.write()
        raise


# Tuning


def _tune(arguments: argparse.Namespace) -> None:
    _check_json(arguments, arguments.json)
    book = _tune_sparse(arguments) if arguments.matrix else _tune_dense(arguments)
    write_all({"--json": book.write})


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


def _tune_dense(arguments: argparse.Namespace) -> records.Book:
    """Tune dense products."""
    backend = backend_for(arguments.device)
    backend.check_tunable()
    second = arguments.by or arguments.widths
    every = arguments.grid or arguments.by
    shapes = [(M, N) for M in arguments.widths for N in second if every or M == N]
    layout = {"ld": arguments.ld, "beta": arguments.beta}
    problems = tuning.problems(arguments.op, arguments.dtype, shapes, **layout)
    todo = [tuning.Todo(problem, arguments.budget, {"first": arguments.first}) for problem in problems]
    book = records.Book(arguments.json, records.environment(backend))
    with _kept(book), _progress(len(todo)) as (say, step):
        say(tuning.heading())
        for tuned in tuning.tune_all(todo, backend, limit_s=arguments.limit, say=say):
            step(f"{tuned.problem.operation} {tuned.problem.dtype}")
            book.add(tuned.record(), tuned.ceilings)
            say(tuned.line())
    return book


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
    draw_files(arguments.results, arguments.output)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "info": _info,
    "bench": _bench,
    "tune": _tune,
    "explain": _explain,
    "plot": _plot,
}

if __name__ == "__main__":
    sys.exit(main())
