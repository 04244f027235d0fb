"""Record the benchmarks of ``blockvec bench``, or those of a table of sparse products, and draw them.

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

from blockvec.__main__ import cases, parser
from blockvec.backends import Backend, backend_for
from blockvec.bench import Case, Measured, Sizes, heading, measure_case
from blockvec.operations.profile import ceilings
from tests.benchmarks.pictures.draw import draw
from tests.benchmarks.records import Book, Record, environment, kernel_record
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


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results and draw them."""
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("what", choices=("bench", "sparse"))
    own.add_argument("--json", type=Path)
    own.add_argument("--plot", type=Path)
    files, rest = own.parse_known_args(given)
    arguments: Any = parser().parse_args(["bench", *rest])
    backend = backend_for(arguments.device)
    book = Book(files.json, environment(backend))
    limits = ceilings(backend, refresh=not arguments.quick)
    print(heading(backend, limits))
    deadline = time.monotonic() + (math.inf if arguments.seconds is None else arguments.seconds)
    for case in _sparse(arguments, backend) if files.what == "sparse" else cases(arguments):
        if time.monotonic() > deadline:
            break
        measured = measure_case(case, backend, limits, quick=arguments.quick)
        book.add(record_of(measured), limits)
        print(measured.line(), flush=True)
    book.write()
    if files.plot:
        draw(book.document(), files.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
