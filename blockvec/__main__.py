"""``blockvec``: what this machine is able to do, how near the operations come, which kernels run and why."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import __version__
from .errors import BlockvecError, OptionError

__all__ = ["main"]

DONE, REFUSED, INTERRUPTED = 0, 2, 130

EPILOG = """\
exit codes: 0 done, 2 arguments or files that cannot be used, 130 interrupted.
"""

WIDTHS = (1, 2, 3, 4, 7, 8, 13, 16, 31, 32, 64)
QUICK_WIDTHS = (1, 3, 8)
DENSE_OPERATIONS = ("dot", "gram", "combine", "update", "inplace", "combine_dot", "update_gram", "axpby")
SPARSE_OPERATIONS = ("apply", "apply_fused", "apply_gram")
OPERATIONS = (*DENSE_OPERATIONS, *SPARSE_OPERATIONS)
TUNED_TABLES = ("equal", "update", "wide", "views", "fma", "gram", "rectangular", "single")
FIGURES = ("roofline", "permutations", "tiles", "occupancy", "reductions", "combinations")
DTYPES = ("float32", "float64", "complex64", "complex128")
HOST_MATRIX, GPU_MATRIX, QUICK_MATRIX = "laplace3d:n=64", "laplace3d:n=160", "laplace3d:n=16"


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough; the last flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (BlockvecError, OSError, MemoryError) as error:
        print(f"blockvec {arguments.command}: {_one_line(error)}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print(f"blockvec {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return DONE


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="blockvec",
        description="Block-vector operations at the hardware's limit: this machine and what it reaches.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"blockvec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_info(commands)
    _add_bench(commands)
    _add_tune(commands)
    _add_explain(commands)
    _add_plot(commands)
    return parser


def _add_info(commands: Any) -> None:
    info = commands.add_parser("info", help="devices, libraries and measured ceilings")
    info.add_argument("--measure", action="store_true", help="measure the ceilings again")
    info.set_defaults(run=_info)


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="time the operations beside NumPy or cuBLAS")
    add = bench.add_argument
    add(
        "--op",
        type=_names(*OPERATIONS),
        default=("dot", "combine", "apply"),
        metavar="OPS",
        help=f"some of {','.join(OPERATIONS)} (default dot,combine,apply)",
    )
    add(
        "--dtype",
        type=_names(*DTYPES),
        default=("float64", "complex128"),
        metavar="TYPES",
        help=f"some of {','.join(DTYPES)} (default float64,complex128)",
    )
    add("--widths", type=_widths, metavar="W", help="columns (default 1,2,3,4,7,8,13,16,31,32,64)")
    add("--grid", action="store_true", help="dot and combine over all pairs of widths, not only equal ones")
    add("--basis", type=_widths, metavar="W", help="columns of a basis that meets blocks of the widths")
    add(
        "--ld", type=_count, metavar="LD", help="views with this leading dimension, from the second column on"
    )
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), gpu or cuda:1")
    size = bench.add_mutually_exclusive_group()
    size.add_argument("--rows", type=_count, metavar="N", help="rows of a block")
    size.add_argument(
        "--bytes", type=_bytes, metavar="B", help="bytes of a block, such as 32M (default: 32M, on a GPU 2G)"
    )
    add(
        "--matrix",
        action="append",
        metavar="MATRIX",
        help=f"model or file for apply, may be given again (default {HOST_MATRIX}, on a GPU {GPU_MATRIX})",
    )
    add("--sparse", action="store_true", help="instead: all of apply over a table of matrices and types")
    add("--seconds", type=float, metavar="S", help="begin no further measurement after S seconds")
    add("--latency", action="store_true", help="instead: A^H B over 1 to 10 million rows, widths 4 and 32")
    add("--json", metavar="FILE", help="write the results to this file")
    add("--plot", metavar="FILE", help="draw them into this file (.svg, .png, .pdf)")
    add(
        "--paper",
        type=_names(*FIGURES, "all"),
        metavar="FIGURES",
        help=f"instead, figures of the paper that the kernels come from: all, or some of {','.join(FIGURES)}",
    )
    add("--budget", type=float, default=180.0, metavar="S", help="seconds for --paper (default 180)")
    add("--quick", action="store_true", help="small blocks, few widths, few runs: to try it out")
    bench.set_defaults(run=_bench)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune", help="find the fastest kernels for products on a GPU and remember them"
    )
    add = tune.add_argument
    add(
        "--op",
        type=_names("dot", "gram", "combine", "inplace"),
        default=("dot", "gram", "combine"),
        metavar="OPS",
        help="some of dot,gram,combine,inplace (default dot,gram,combine)",
    )
    add(
        "--dtype",
        type=_names(*DTYPES),
        default=("float64", "complex128"),
        metavar="TYPES",
        help=f"some of {','.join(DTYPES)} (default float64,complex128)",
    )
    add("--widths", type=_widths, default=WIDTHS, metavar="W", help="columns, such as 1,2,8 or 1-64")
    pairs = tune.add_mutually_exclusive_group()
    pairs.add_argument("--grid", action="store_true", help="all pairs of widths, not only equal ones")
    pairs.add_argument("--by", type=_widths, metavar="W", help="pairs of a width and one of these")
    add("--ld", type=_count, metavar="LD", help="views with this leading dimension, at odd column offsets")
    add("--beta", action="store_true", help="products that are added to what is there")
    add(
        "--matrix",
        action="append",
        metavar="MATRIX",
        help="instead, products of this sparse model or file, may be repeated; all: those of bench --sparse",
    )
    add("--device", default="gpu", metavar="DEVICE", help="gpu (default) or cuda:1")
    add("--budget", type=float, default=5.0, metavar="S", help="seconds of measuring a problem (default 5)")
    add("--first", type=_count, default=10, metavar="N", help="the N best by the models (default 10)")
    add("--sample", type=int, default=0, metavar="N", help="and N drawn from the others (default 0)")
    add("--families", choices=("fma", "mma"), default="", help="multiply-adds or tensor cores alone")
    add(
        "--tables",
        type=_names(*TUNED_TABLES, "all"),
        metavar="TABLES",
        help=f"instead, tables on record: all or some of {','.join(TUNED_TABLES)}; --json names a folder",
    )
    add("--limit", type=float, default=math.inf, metavar="S", help="begin nothing after so many seconds")
    add("--json", type=Path, metavar="FILE", help="write all that was measured to this file, as it comes")
    add("--resume", action="store_true", help="keep what the file of --json holds, and measure the rest")
    add("--ship", type=Path, metavar="DIR", help="put the winners into the tables in this folder")
    add(
        "--from",
        dest="results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="instead of measuring, ship the winners of these results",
    )
    tune.set_defaults(run=_tune)


def _add_explain(commands: Any) -> None:
    explain = commands.add_parser("explain", help="which kernel runs, and why")
    add = explain.add_argument
    add("operation", choices=("dot", "combine", "apply"))
    add("--rows", type=_count, default=1_000_000, metavar="N", help="rows of the block (default 1000000)")
    add("--widths", type=_widths, default=(8,), metavar="M[,N]", help="columns of both operands (default 8)")
    add("--dtype", choices=DTYPES, default="float64", help="default float64")
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), gpu or cuda:1")
    add("--matrix", default=HOST_MATRIX, metavar="MATRIX", help=f"for apply (default {HOST_MATRIX})")
    explain.set_defaults(run=_explain)


def _add_plot(commands: Any) -> None:
    plot = commands.add_parser("plot", help="draw the pictures of results on record")
    add = plot.add_argument
    add("results", nargs="+", type=Path, metavar="RESULTS", help="JSON files, or folders that hold some")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="picture of a single file (default: beside it, .svg)",
    )
    plot.set_defaults(run=_plot)


def _names(*known: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse


def _widths(text: str) -> tuple[int, ...]:
    """Numbers and ranges: ``1,2,8`` or ``1-64``."""
    widths: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        widths += range(_count(low), _count(high or low) + 1)
    return tuple(widths)


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive integer")
    return int(text)


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = units.get(text[-1:].upper(), 1)
    return _count(text[:-1] if unit > 1 else text) * unit


@contextlib.contextmanager
def _progress(total: int | None) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Yield ``(say, step)``: print a line of the result; show what is going on, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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
    from .bench.info import describe

    with _progress(None) as (say, step):
        for line in describe(measure=arguments.measure, notice=step):
            say(line)


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.paper:
        _paper(arguments)
        return
    from . import bench
    from .backends import backend_for
    from .bench.pictures import check_plotting
    from .profile import ceilings

    if arguments.plot:
        check_plotting()
    backend = backend_for(arguments.device)
    if arguments.latency:
        _bench_latency(arguments, backend)
        return
    cases = _cases(arguments, backend)
    with _recording(arguments, backend) as book, _progress(None) as (say, step):
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


def _cases(arguments: argparse.Namespace, backend: Any) -> Iterator[Any]:
    """Return the cases of dense and of sparse operations; matrices may be in the making from now on."""
    from . import bench
    from .bench import sparse

    quick, on_host = arguments.quick, backend.name == "cpu"
    sizes = bench.Sizes(arguments.rows, arguments.bytes, quick, arguments.ld)
    if arguments.sparse:
        table = sparse.QUICK_TABLE if quick else sparse.HOST_TABLE if on_host else sparse.GPU_TABLE
        table = dataclasses.replace(
            table,
            matrices=tuple(arguments.matrix or table.matrices),
            widths=arguments.widths or table.widths,
        )
        return sparse.sparse_cases(SPARSE_OPERATIONS, table, backend, sizes)
    widths = arguments.widths or (QUICK_WIDTHS if quick else WIDTHS)
    shapes = [(M, N) for M in arguments.basis or widths for N in widths]
    if not arguments.grid and not arguments.basis:
        shapes = [(M, N) for M, N in shapes if M == N]
    dense = [name for name in arguments.op if name in DENSE_OPERATIONS]
    cases = bench.make_cases(dense, arguments.dtype, shapes, device=arguments.device, sizes=sizes)
    products = [name for name in arguments.op if name in SPARSE_OPERATIONS]
    if not products:
        return cases
    default = QUICK_MATRIX if quick else HOST_MATRIX if on_host else GPU_MATRIX
    table = sparse.Table(tuple(arguments.matrix or (default,)), widths, arguments.dtype, ())
    return itertools.chain(cases, sparse.sparse_cases(products, table, backend, sizes))


def _bench_latency(arguments: argparse.Namespace, backend: Any) -> None:
    from .bench import latency
    from .profile import ceilings

    rows = tuple(K for K in latency.ROWS if not arguments.quick or K <= 10**4)
    widths = arguments.widths or (4, 32)
    total = len(arguments.dtype) * len(widths) * len(rows)
    with _recording(arguments, backend) as book, _progress(total) as (say, step):
        step("ceilings")
        limits = ceilings(backend, refresh=not arguments.quick)
        say(latency.heading())
        for dtype in arguments.dtype:
            for record in latency.measure_latency(backend, limits, widths, dtype, rows):
                step(f"{dtype} {record['K']} rows")
                book.add(record, limits)
                say(latency.line(record))


def _paper(arguments: argparse.Namespace) -> None:
    from .backends import backend_for
    from .bench.paper import record_figures
    from .bench.pictures import check_plotting
    from .profile import ceilings

    if arguments.plot:
        check_plotting()
    backend = backend_for(arguments.device)
    figures = FIGURES if "all" in arguments.paper else arguments.paper
    counts = dict.fromkeys(figures, 0)
    with _recording(arguments, backend) as book, _progress(None) as (say, step):
        step("ceilings")
        limits = ceilings(backend, refresh=True)
        for figure, record in record_figures(figures, backend, limits, budget_s=arguments.budget):
            step(figure)
            counts[figure] += 1
            book.add(record, limits)
        for figure, count in counts.items():
            say(f"{figure:14} {count:5d} kernels timed")


@contextlib.contextmanager
def _recording(arguments: argparse.Namespace, backend: Any) -> Iterator[Any]:
    """Yield the document of a run, which is written as it grows and drawn at its end, where asked for."""
    from . import results
    from .bench.pictures import draw

    book = results.Book(arguments.json, results.environment(backend))
    try:
        yield book
    finally:
        book.write()
    if arguments.plot:
        draw(book.document(), arguments.plot)


def _tune(arguments: argparse.Namespace) -> None:
    from . import results
    from .bench import tuning

    if arguments.results and not arguments.ship:
        raise OptionError("--from names results to ship; say where with --ship.")
    if arguments.results:
        files = [file for path in arguments.results for file in _result_files(path)]
        documents = [results.read(file) for file in files]
    elif arguments.matrix:
        documents = [_measure_sparse_kernels(arguments)]
    else:
        documents = _measure_kernels(arguments)
    if arguments.ship:
        for file in tuning.ship(arguments.ship, documents):
            print(file)


def _measure_sparse_kernels(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune sparse products, and return what was measured."""
    from . import results
    from .backends import backend_for
    from .bench import sparse, sparse_tuning
    from .profile import ceilings

    backend = backend_for(arguments.device)
    backend.check_tunable()
    known = sparse.GPU_TABLE.matrices
    matrices = known if arguments.matrix == ["all"] else tuple(arguments.matrix)
    table = sparse.Table(matrices, arguments.widths, arguments.dtype, ())
    matrix_of = sparse.open_matrices(table, backend)
    limits = ceilings(backend, refresh=True)
    book = results.Book(arguments.json, results.environment(backend))
    how = {"budget_s": arguments.budget, "first": arguments.first, "limit_s": arguments.limit}
    with _progress(len(matrices) * len(table.dtypes) * len(table.widths)) as (say, step):
        say(sparse_tuning.heading())
        for record, line in sparse_tuning.tune_matrices(
            matrices, table.dtypes, table.widths, matrix_of, backend, limits, **how
        ):
            step(record["matrix"])
            book.add(record, limits)
            say(line)
    book.write()
    return book.document()


def _measure_kernels(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Tune, and return what was measured, a document a table."""
    from . import results
    from .backends import backend_for
    from .bench import tables, tuning

    backend = backend_for(arguments.device)
    backend.check_tunable()
    todo = list(_problems_to_tune(arguments))
    ledger = tables.Ledger(arguments.json, results.environment(backend), resume=arguments.resume)
    with _progress(len(todo)) as (say, step):
        say(tuning.heading())
        try:
            for tuned in tuning.tune_all(ledger.left(todo), backend, limit_s=arguments.limit, say=say):
                step(f"{tuned.problem.operation} {tuned.problem.dtype}")
                ledger.add(tuned)
                say(tuned.line())
        finally:
            ledger.write()
    return ledger.documents()


def _problems_to_tune(arguments: argparse.Namespace) -> Iterator[Any]:
    from .bench import tables, tuning

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


def _explain(arguments: argparse.Namespace) -> None:
    from . import BlockVector, as_operator, explain
    from .backends import array_namespace
    from .io import open_matrix

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
    from . import results
    from .bench.pictures import draw

    files = [file for path in arguments.results for file in _result_files(path)]
    if arguments.output and len(files) != 1:
        raise OptionError(f"--output: names one picture but there are {len(files)} results; leave it out.")
    for file in files:
        picture = arguments.output or file.with_suffix(".svg")
        draw(results.read(file), picture)
        print(picture)


def _result_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.json"))
    if not found:
        raise OptionError(f"{path}: there are no .json files in this folder.")
    return found


if __name__ == "__main__":
    sys.exit(main())
