"""The command ``blockvec``: device limits, benchmarks, choice of kernels."""

from __future__ import annotations

import argparse
import reprlib
import sys
from collections.abc import Sequence
from typing import Any

from . import BlockVector, __version__, as_operator, bench, explain
from .backends import array_namespace, backend_for
from .bench import info
from .errors import OptionError
from .models.catalogue import open_matrix
from .operations.profile import ceilings
from .system.commands import DONE, Parser, guarded

EPILOG = """\
exit codes: 0 done, 2 arguments or files that cannot be used, 130 interrupted.
"""

MAX_WIDTH = 10_000
WIDTHS = (1, 2, 3, 4, 7, 8, 13, 16, 31, 32, 64)
QUICK_WIDTHS = (1, 3, 8)
DTYPES = ("float32", "float64", "complex64", "complex128")
HOST_MATRIX, GPU_MATRIX, QUICK_MATRIX = "laplace3d:n=64", "laplace3d:n=160", "laplace3d:n=16"
GONE = {  # commands of version 0.2
    "tune": "tests/benchmarks/tune.py of the source tree measures kernels",
    "plot": "tests/benchmarks/plot.py of the source tree draws pictures of recorded results",
}
# Options of bench that left.
RECORDED_OPTIONS = ("json", "plot", "sparse", "grid", "basis", "ld", "bytes", "seconds")
RECORDED = "tests/benchmarks/products.py of the source tree has it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in GONE:
        return guarded(f"blockvec {given[0]}", lambda: _refuse(f"this command is gone; {GONE[given[0]]}."))
    arguments = parser().parse_args(argv)
    run = {"info": _info, "bench": _bench, "explain": _explain}[arguments.command]
    return guarded(f"blockvec {arguments.command}", lambda: run(arguments) or DONE)


def _refuse(reason: str) -> int:
    raise OptionError(reason)


def parser() -> argparse.ArgumentParser:
    """Create the parser of all commands."""
    root = Parser(
        prog="blockvec",
        description="Block-vector operations at the hardware limit: devices, benchmarks, kernels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"blockvec {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = commands.add_parser("info", help="devices, libraries and measured ceilings").add_argument
    add("--measure", action="store_true", help="measure the ceilings again")
    _add_bench(commands.add_parser("bench", help="time the operations beside NumPy or cuBLAS"))
    _add_explain(commands.add_parser("explain", help="which kernel runs, and why"))
    return root


def _add_bench(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--op", **some_of(bench.OPERATIONS, ("dot", "combine", "apply"), "OPS"))
    add("--dtype", **some_of(DTYPES, ("float64", "complex128"), "TYPES"))
    add("--widths", type=parse_widths, metavar="W", help="columns (default 1,2,3,4,7,8,13,16,31,32,64)")
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), gpu or cuda:1")
    add("--rows", type=count, metavar="N", help="rows of a block (default: 32 MB of them, on a GPU 2 GB)")
    matrices = f"model or file for apply, again for more (default {HOST_MATRIX}, on a GPU {GPU_MATRIX})"
    add("--matrix", action="append", metavar="MATRIX", help=matrices)
    add("--quick", action="store_true", help="small blocks, few widths, few runs: to try it out")
    for gone in RECORDED_OPTIONS:
        add(f"--{gone}", nargs="?", const=True, help=argparse.SUPPRESS)


def _add_explain(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("operation", choices=("dot", "combine", "apply"))
    add("--rows", type=count, default=1_000_000, metavar="N", help="rows of the block (default 1000000)")
    columns = "columns of both operands (default 8)"
    add("--widths", type=parse_widths, default=(8,), metavar="M[,N]", help=columns)
    add("--dtype", choices=DTYPES, default="float64", help="default float64")
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), gpu or cuda:1")
    add("--matrix", default=HOST_MATRIX, metavar="MATRIX", help=f"for apply (default {HOST_MATRIX})")


def some_of(known: Sequence[str], default: tuple[str, ...], metavar: str) -> dict[str, Any]:
    """Make the keywords of an argument that takes some of the names known."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    text = f"some of {','.join(known)} (default {','.join(default)})"
    return {"type": parse, "default": default, "metavar": metavar, "help": text}


def parse_widths(text: str) -> tuple[int, ...]:
    """Parse a list of numbers and ranges: ``1,2,8`` or ``1-64``."""
    widths: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        widths += range(count(low, MAX_WIDTH), count(high or low, MAX_WIDTH) + 1)
    return tuple(widths)


def count(text: str, most: int = 10**18) -> int:
    """Parse a number of at least 1."""
    if not (text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is no integer from 1 to {most}")
    return int(text)


def _step(what: str) -> None:
    """Tell on a terminal what is done now."""
    if sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)


def _info(arguments: argparse.Namespace) -> None:
    for line in info.describe(measure=arguments.measure, notice=_step):
        print(line, flush=True)


def _bench(arguments: argparse.Namespace) -> None:
    for gone in RECORDED_OPTIONS:
        if getattr(arguments, gone):
            raise OptionError(f"--{gone}: this option is gone; {RECORDED}.")
    quick, backend = arguments.quick, backend_for(arguments.device)
    default = HOST_MATRIX if backend.name == "cpu" else GPU_MATRIX
    todo = bench.make_cases(
        arguments.op,
        arguments.dtype,
        arguments.widths or (QUICK_WIDTHS if quick else WIDTHS),
        backend,
        rows=arguments.rows,
        quick=quick,
        matrices=arguments.matrix or [QUICK_MATRIX if quick else default],
    )
    _step("measuring the ceilings")
    limits = ceilings(backend, refresh=not quick)
    print(bench.heading(backend, limits), flush=True)
    for case in todo:
        print(bench.measure_case(case, backend, limits, quick=quick).line(), flush=True)


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


if __name__ == "__main__":
    sys.exit(main())
