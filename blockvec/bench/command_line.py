"""Argument parser of the command ``blockvec``."""

from __future__ import annotations

import argparse
import math
import reprlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..system.commands import Parser
from . import dense, sparse

EPILOG = """\
exit codes: 0 done, 2 arguments or files that cannot be used, 130 interrupted.
"""

MAX_WIDTH = 10_000
WIDTHS = (1, 2, 3, 4, 7, 8, 13, 16, 31, 32, 64)
QUICK_WIDTHS = (1, 3, 8)
OPERATIONS = (*dense.OPERATIONS, *sparse.OPERATIONS)
DTYPES = ("float32", "float64", "complex64", "complex128")
HOST_MATRIX, GPU_MATRIX, QUICK_MATRIX = "laplace3d:n=64", "laplace3d:n=160", "laplace3d:n=16"


def parser() -> argparse.ArgumentParser:
    """Create the parser of all commands."""
    root = Parser(
        prog="blockvec",
        description="Block-vector operations at the hardware limit: devices, benchmarks, tuning.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"blockvec {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, add_arguments) in _COMMANDS.items():
        add_arguments(commands.add_parser(name, help=text))
    return root


def _add_info(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--measure", action="store_true", help="measure the ceilings again")


def _add_bench(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--op", **_some_of(OPERATIONS, ("dot", "combine", "apply"), "OPS"))
    add("--dtype", **_some_of(DTYPES, ("float64", "complex128"), "TYPES"))
    add("--widths", type=parse_widths, metavar="W", help="columns (default 1,2,3,4,7,8,13,16,31,32,64)")
    add("--grid", action="store_true", help="dot and combine over all pairs of widths, not only equal ones")
    add("--basis", type=parse_widths, metavar="W", help="columns of a basis; --widths are of the blocks")
    add(
        "--ld", type=_count, metavar="LD", help="views with this leading dimension, from the second column on"
    )
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), gpu or cuda:1")
    size = command.add_mutually_exclusive_group()
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
    add("--json", metavar="FILE", help="write the results to this file")
    add("--plot", metavar="FILE", help="draw them into this file (.svg, .png, .pdf)")
    add("--quick", action="store_true", help="small blocks, few widths, few runs: to try it out")


def _add_tune(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--op", **_some_of(("dot", "gram", "combine", "inplace"), ("dot", "gram", "combine"), "OPS"))
    add("--dtype", **_some_of(DTYPES, ("float64", "complex128"), "TYPES"))
    add("--widths", type=parse_widths, default=WIDTHS, metavar="W", help="columns, such as 1,2,8 or 1-64")
    pairs = command.add_mutually_exclusive_group()
    pairs.add_argument("--grid", action="store_true", help="all pairs of widths, not only equal ones")
    pairs.add_argument("--by", type=parse_widths, metavar="W", help="pairs of a width and one of these")
    add("--ld", type=_count, metavar="LD", help="views with this leading dimension, at odd column offsets")
    add("--beta", action="store_true", help="products that are added to the output (beta != 0)")
    add(
        "--matrix",
        action="append",
        metavar="MATRIX",
        help="instead, products of this sparse model or file, may be repeated; all: those of bench --sparse",
    )
    add("--device", default="gpu", metavar="DEVICE", help="gpu (default) or cuda:1")
    add("--budget", type=float, default=5.0, metavar="S", help="seconds of measuring per problem (default 5)")
    add("--first", type=_count, default=10, metavar="N", help="the N best by the models (default 10)")
    add("--limit", type=float, default=math.inf, metavar="S", help="begin no further problem after S seconds")
    add("--json", type=Path, metavar="FILE", help="write every measurement to this file, as it arrives")


def _add_explain(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("operation", choices=("dot", "combine", "apply"))
    add("--rows", type=_count, default=1_000_000, metavar="N", help="rows of the block (default 1000000)")
    columns = "columns of both operands (default 8)"
    add("--widths", type=parse_widths, default=(8,), metavar="M[,N]", help=columns)
    add("--dtype", choices=DTYPES, default="float64", help="default float64")
    add("--device", default="cpu", metavar="DEVICE", help="cpu (default), gpu or cuda:1")
    add("--matrix", default=HOST_MATRIX, metavar="MATRIX", help=f"for apply (default {HOST_MATRIX})")


def _add_plot(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("results", nargs="+", type=Path, metavar="RESULTS", help="JSON files, or folders that hold some")
    output = "picture of a single file (default: beside it, .svg)"
    add("-o", "--output", type=Path, metavar="FILE", help=output)


def _some_of(known: Sequence[str], default: tuple[str, ...], metavar: str) -> dict[str, Any]:
    """Describe an option whose value is a list of names."""
    text = f"some of {','.join(known)} (default {','.join(default)})"
    return {"type": _names(*known), "default": default, "metavar": metavar, "help": text}


def _names(*known: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse


def parse_widths(text: str) -> tuple[int, ...]:
    """Parse a list of numbers and ranges: ``1,2,8`` or ``1-64``."""
    widths: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        widths += range(_count(low, MAX_WIDTH), _count(high or low, MAX_WIDTH) + 1)
    return tuple(widths)


def _count(text: str, most: int = 10**18) -> int:
    if not (text.isdecimal() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is no integer from 1 to {most}")
    return int(text)


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if unit not in _UNITS:
        units = ", ".join(filter(None, _UNITS))
        raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is no number of bytes, or of {units}")
    return _count(number) * _UNITS[unit]


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "info": ("devices, libraries and measured ceilings", _add_info),
    "bench": ("time the operations beside NumPy or cuBLAS", _add_bench),
    "tune": ("find and store the fastest kernels for products on a GPU", _add_tune),
    "explain": ("which kernel runs, and why", _add_explain),
    "plot": ("draw pictures of recorded results", _add_plot),
}
