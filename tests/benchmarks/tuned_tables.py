"""Tune the recorded tables of dense products on a GPU, and write the winners that ship with blockvec.

    python -m tests.benchmarks.tuned_tables equal,gram --json docs/results/<device> [--resume]
    python -m tests.benchmarks.tuned_tables --ship docs/results/h200     # into blockvec/kernels/tuned/sm_90

If the model of a family orders its configurations well, few are measured, otherwise more. Budgets in seconds
are for one H200 with 16 CPU cores; compilation dominates the time of tuning.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockvec.backends import backend_for
from blockvec.backends.cuda.tuning.dense import COOL_S, is_hot
from blockvec.bench.records import Book, Record, environment, read
from blockvec.bench.tuning import Todo, Tuned, heading, problems, tune_all
from blockvec.errors import FormatError
from blockvec.kernels.device import H200
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem
from blockvec.kernels.tuning.winners import Winner, refusal, representative
from blockvec.system.commands import write_all
from blockvec.system.files import replaced

SHIPPED = Path(__file__).resolve().parents[2] / "blockvec" / "kernels" / "tuned" / "sm_90"

DOUBLE, COMPLEX, SINGLE, SINGLE_COMPLEX = "float64", "complex128", "float32", "complex64"
BOTH = (DOUBLE, COMPLEX)

SINGLES = (SINGLE, SINGLE_COMPLEX)

Shapes = Sequence[tuple[int, int]]

SOME = (1, 2, 3, 4, 7, 8, 13, 16, 31, 32, 48, 64)
EQUAL: Shapes = [(width, width) for width in range(1, 65)]
NARROW: Shapes = EQUAL[:20]
FEW: Shapes = [(width, width) for width in SOME]
PAIRS: Shapes = [(M, N) for M in SOME for N in SOME if M != N]
WIDE: Shapes = [(M, N) for M in (96, 128, 192, 256, 512) for N in (1, 2, 4, 8, 16)]
VIEWS: Shapes = [(8, 8), (13, 13)]


@dataclass(frozen=True)
class Part:
    """Problems of a table, each with its number of first and of sampled configurations to measure."""

    operations: str
    dtypes: Sequence[str]
    shapes: Shapes
    first: int
    sample: int = 0
    families: str = ""
    ld: int | None = None
    beta: bool = False


TABLES: dict[str, Sequence[Part]] = {
    "equal": [
        Part("dot", [DOUBLE], EQUAL, 3, 1),
        Part("combine", [DOUBLE], EQUAL, 5, 1),
        Part("dot", [COMPLEX], EQUAL, 5, 1),
        Part("combine", [COMPLEX], EQUAL, 5, 1),
    ],
    "update": [Part("combine", BOTH, FEW, 4, 1, beta=True), Part("inplace", BOTH, FEW, 4, 1)],
    "wide": [Part("dot", BOTH, WIDE, 4, 1), Part("combine", BOTH, WIDE, 4, 1)],
    "views": [Part("dot gram combine", BOTH, VIEWS, 10, 2, ld=ld) for ld in (64, 61)],
    "fma": [Part("dot combine", [DOUBLE], NARROW, 5, 1, families="fma")],
    "gram": [Part("gram", BOTH, EQUAL, 3), Part("gram", SINGLES, FEW, 3)],
    "rectangular": [Part("dot", BOTH, PAIRS, 3), Part("combine", BOTH, PAIRS, 3)],
    "single": [Part(name, [dtype], EQUAL, 4) for dtype in SINGLES for name in ("dot", "combine")],
}
"""Update: beta != 0, and in place; wide: a basis and a block; views: columns of wider blocks."""


def todo(names: Sequence[str]) -> Iterator[Todo]:
    """Yield the problems of some tables, one table after the other."""
    for table in names:
        for part in TABLES[table]:
            choose = {"first": part.first, "sample": part.sample, "families": part.families}
            operations = part.operations.split()
            for problem in problems(operations, part.dtypes, part.shapes, ld=part.ld, beta=part.beta):
                each_s = 0.007 + 2 * COOL_S * is_hot(problem)
                yield Todo(problem, each_s * (part.first + part.sample), choose, table)


class Ledger:
    """Tuned problems of a run, written to one file per table as they arrive.

    `place` is the file, or for tables the folder of their files; without it nothing is written. With `resume`
    the records of these files are kept and their problems not measured again.
    """

    def __init__(self, place: Path | None, environment: Record, *, resume: bool = False) -> None:
        self._place, self._environment, self._resume = place, environment, resume
        self._books: dict[str, Book] = {}

    def left(self, todo: Iterable[Todo]) -> Iterator[Todo]:
        """Yield the problems without a record."""
        for each in todo:
            records = self._book(each.table).records
            known = {_kind(problem_of(r), r.get("families", "")) for r in records}
            if _kind(each.problem, each.choose.get("families", "")) not in known:
                yield each

    def add(self, tuned: Tuned) -> None:
        """Append the record of a tuned problem."""
        self._book(tuned.todo.table).add(tuned.record(), tuned.ceilings)

    def write(self) -> None:
        """Write the documents."""
        write_all({table: book.write for table, book in self._books.items()})

    def _book(self, table: str) -> Book:
        if table not in self._books:
            file = self._place / f"{table}.json" if self._place and table else self._place
            kept = read(file)["records"] if self._resume and file and file.exists() else []
            self._books[table] = Book(file, self._environment, kept)
        return self._books[table]


def _kind(problem: Any, families: str) -> tuple[Any, ...]:
    return representative(problem), problem.lda, families


def problem_of(record: dict[str, Any]) -> TsmttsmProblem | TsmmProblem:
    """Return the problem of a record."""
    operation = "inplace" if record.get("inplace") else _OPERATIONS[record["operation"]]
    M, N, ld = record["M"], record["N"], record["lda"]
    beta = record.get("beta", "zero") != "zero"
    (problem,) = problems([operation], [record["dtype"]], [(M, N)], ld=None if ld == M else ld, beta=beta)
    return dataclasses.replace(problem, K=record["K"])


_OPERATIONS = {"tsmttsm": "dot", "gram": "gram", "tsmm": "combine"}


def table_of(environment: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """Format a table for the package: the environment of the measurement, and one line per winner."""
    lines = ",\n".join(json.dumps(record) for record in records)
    return f'{{"environment": {json.dumps(environment)},\n"records": [\n{lines}\n]}}\n'


def ship(folder: Path, documents: Iterable[dict[str, Any]], say: Callable[[str], None] = print) -> list[Path]:
    """Add the winners of results to the tables of the package, ``<folder>/<operation>.json``.

    Winners of other problems that are there already stay. What this version would refuse to run on an H200 is
    left out. Returns the files written.

    Takes documents as `blockvec.bench.records.read` returns them; those without winners are ignored.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    environment: dict[str, Any] = {}
    for document in documents:
        for record in document["records"]:
            if "trials" in record and "families" not in record:
                environment = document["environment"]
                found.setdefault(record["operation"], []).append(_stored(record))
    files = []
    for operation, new in found.items():
        file = folder / f"{operation}.json"
        known = _known(file)
        by_problem = {json.dumps(record["problem"], sort_keys=True): record for record in known + new}
        records = []
        for record in sorted(by_problem.values(), key=_order):
            refused = refusal(operation, record, H200)
            if refused is None:
                records.append(record)
            else:
                shape = {name: record["problem"].get(name) for name in ("dtype_a", "M", "N")}
                say(f"left out: {operation} {shape} {record['kernel']} {record['config']}: {refused}")
        with replaced(file) as stream:
            stream.write(table_of(environment, records).encode())
        files.append(file)
    return files


def _known(file: Path) -> list[dict[str, Any]]:
    """Read the records of a table; none if there is no file."""
    try:
        return list(json.loads(file.read_text(encoding="utf-8"))["records"]) if file.exists() else []
    except (ValueError, KeyError, TypeError):
        raise FormatError(f"{file}: this is no table of winners; give another folder.") from None


def _stored(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a winner to its stored form, under its representative problem."""
    if "stored" in record:
        return dict(record["stored"])
    key = representative(problem_of(record))
    assert key is not None
    winner = Winner(record["family"], None, record["K"], record["time_s"], record["fraction"], "")
    return winner.record(key) | {"config": record["config"] or None}


def _order(record: dict[str, Any]) -> tuple[Any, ...]:
    problem = record["problem"]
    return (
        tuple(problem[name] for name in sorted(problem) if name not in ("M", "N", "width")),
        problem.get("M", 0),
        problem.get("N", 0),
        problem.get("width", 0),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="?", default=",".join(TABLES), help="default: all")
    parser.add_argument("--device", default="gpu")
    parser.add_argument(
        "--limit", type=float, default=math.inf, metavar="S", help="begin none after S seconds"
    )
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write a file per table")
    parser.add_argument("--resume", action="store_true", help="keep the records there, measure the rest")
    parser.add_argument("--ship", nargs="+", type=Path, metavar="RESULTS", help="instead: ship these winners")
    arguments = parser.parse_args()
    if arguments.ship:
        files = [file for path in arguments.ship for file in (sorted(path.rglob("*.json")) or [path])]
        print(*ship(SHIPPED, map(read, files)), sep="\n")
        return 0
    backend = backend_for(arguments.device)
    ledger = Ledger(arguments.json, environment(backend), resume=arguments.resume)
    try:
        print(heading())
        problems = ledger.left(todo(arguments.tables.split(",")))
        for tuned in tune_all(problems, backend, limit_s=arguments.limit):
            ledger.add(tuned)
            print(tuned.line(), flush=True)
    finally:
        ledger.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
