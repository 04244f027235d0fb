"""Tables of recorded dense products: their problems, and the number of configurations to measure.

If the model of a family orders its configurations well, few are measured, otherwise more. Budgets in seconds
are for one H200 with 16 CPU cores; compilation dominates the time of tuning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kernels.tuning.winners import representative
from ..system.commands import write_all
from .records import Book, Record, read
from .tuning import Todo, Tuned, problem_of, problems

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
            budget_s = 0.007 * (part.first + part.sample)
            operations = part.operations.split()
            for problem in problems(operations, part.dtypes, part.shapes, ld=part.ld, beta=part.beta):
                yield Todo(problem, budget_s, choose, table)


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

    def documents(self) -> list[Record]:
        """Return the documents, one per table."""
        return [book.document() for book in self._books.values()]

    def _book(self, table: str) -> Book:
        if table not in self._books:
            file = self._place / f"{table}.json" if self._place and table else self._place
            kept = read(file)["records"] if self._resume and file and file.exists() else []
            self._books[table] = Book(file, self._environment, kept)
        return self._books[table]


def _kind(problem: Any, families: str) -> tuple[Any, ...]:
    return representative(problem), problem.lda, families
