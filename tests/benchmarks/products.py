"""Record benchmarks of dense operations, or of a table of sparse products, and draw them.

python -m tests.benchmarks.products bench --op dot,combine --device gpu --json FILE [--plot FILE]
python -m tests.benchmarks.products sparse --device gpu --json FILE [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blockvec.__main__ import DTYPES, QUICK_WIDTHS, WIDTHS, count, parse_widths, some_of
from blockvec.backends import Backend, backend_for
from blockvec.bench import Case, Measured, heading, measure_case
from blockvec.operations.profile import ceilings
from tests.benchmarks import dense_products
from tests.benchmarks.dense_products import Sizes
from tests.benchmarks.harness import recorded
from tests.benchmarks.pictures.draw import draw
from tests.benchmarks.records import Record, document, environment, kernel_record
from tests.benchmarks.sparse_products import GPU_TABLE, HOST_TABLE, OPERATIONS, QUICK_TABLE, sparse_cases

__all__ = ["record_of"]


def record_of(measured: Measured) -> Record:
    """Create the record of a measurement."""
    case = measured.case
    timings = (measured.ours, measured.ceilings, measured.peers)
    return kernel_record(case.problem, case.kernel, *timings, config=case.config, matrix=case.matrix or None)


def _sparse(arguments: argparse.Namespace, backend: Backend) -> Iterator[Case]:
    table = QUICK_TABLE if arguments.quick else HOST_TABLE if backend.name == "cpu" else GPU_TABLE
    if arguments.matrix:
        table = dataclasses.replace(table, matrices=tuple(arguments.matrix))
    return sparse_cases(OPERATIONS, table, backend, Sizes(quick=arguments.quick))


def dense_cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Create the cases that the arguments ask for."""
    widths = arguments.widths or (QUICK_WIDTHS if arguments.quick else WIDTHS)
    shapes = [(N, N) for N in widths]
    if arguments.grid or arguments.basis:
        shapes = [(M, N) for M in arguments.basis or widths for N in widths]
    sizes = Sizes(arguments.rows, arguments.bytes, arguments.quick, arguments.ld)
    return dense_products.make_cases(
        arguments.op, arguments.dtype, shapes, device=arguments.device, sizes=sizes
    )


def parse_bytes(text: str) -> int:
    """Parse a number of bytes such as 32M."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    unit = text[-1:].upper()
    return count(text[:-1]) * units[unit] if unit in units else count(text)


def parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("what", choices=("bench", "sparse"))
    add("--json", type=Path)
    add("--plot", type=Path)
    add("--op", **some_of(dense_products.OPERATIONS, ("dot", "combine"), "OPS"))
    add("--dtype", **some_of(DTYPES, ("float64", "complex128"), "TYPES"))
    add("--widths", type=parse_widths, metavar="W", help="columns (default 1,2,3,4,7,8,13,16,31,32,64)")
    add("--grid", action="store_true", help="dot and combine over all pairs of widths, not only equal ones")
    add("--basis", type=parse_widths, metavar="W", help="columns of a basis; --widths are of the blocks")
    add("--ld", type=count, help="views with this leading dimension, from the second column on")
    add("--device", default="cpu", help="cpu (default), gpu or cuda:1")
    add("--rows", type=count, metavar="N", help="rows of a block")
    add("--bytes", type=parse_bytes, metavar="B", help="bytes of a block, such as 32M, instead of --rows")
    add("--matrix", action="append", help="model or file of a sparse product, may be given again")
    add("--seconds", type=float, metavar="S", help="begin no further measurement after S seconds")
    add("--quick", action="store_true", help="small blocks, few widths, few runs: to try it out")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results and draw them."""
    arguments: Any = parser().parse_args(given)
    backend = backend_for(arguments.device)
    limits = ceilings(backend, refresh=not arguments.quick)
    print(heading(backend, limits))
    deadline = time.monotonic() + (math.inf if arguments.seconds is None else arguments.seconds)

    def rows() -> Iterator[Record]:
        for case in _sparse(arguments, backend) if arguments.what == "sparse" else dense_cases(arguments):
            if time.monotonic() > deadline:
                break
            measured = measure_case(case, backend, limits, quick=arguments.quick)
            print(measured.line(), flush=True)
            yield record_of(measured)

    records = recorded(rows(), arguments.json, arguments.device, line=None)
    if arguments.plot:
        draw(document(environment(backend), limits, records), arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
