"""Tables of recorded dense products: their problems, and the number of configurations to measure.

If the model of a family orders its configurations well, few are measured, otherwise more. Budgets in seconds
are for one H200 with 16 CPU cores; compilation dominates the time of tuning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..kernels.tuning.winners import representative
from .records import Book, Record, read
from .tuning import Todo, Tuned, problem_of, problems

__all__ = ["TABLES", "Ledger", "todo"]

DOUBLE, COMPLEX, SINGLE, SINGLE_COMPLEX = "float64", "complex128", "float32", "complex64"
BOTH = (DOUBLE, COMPLEX)

Shapes = Sequence[tuple[int, int]]

EQUAL: Shapes = [(width, width) for width in range(1, 65)]
SOME = (1, 2, 3, 4, 7, 8, 13, 16, 31, 32, 48, 64)
FEW: Shapes = [(width, width) for width in SOME]
PAIRS: Shapes = [(M, N) for M in SOME for N in SOME if M != N]
WIDE: Shapes = [(M, N) for M in (96, 128, 192, 256, 512) for N in (1, 2, 4, 8, 16)]


def _todo(
    operations: str, dtypes: Sequence[str], shapes: Shapes, first: int, sample: int = 0, **more: Any
) -> Iterator[Todo]:
    """Yield problems, each with its number of first and of sampled configurations to measure."""
    families = more.pop("families", "")
    choose = {"first": first, "sample": sample, "families": families}
    for problem in problems(operations.split(), dtypes, shapes, **more):
        yield Todo(problem, 0.007 * (first + sample), choose)


def _equal() -> Iterator[Todo]:
    """Yield equal widths in double precision."""
    yield from _todo("dot", [DOUBLE], EQUAL, 3, 1)
    yield from _todo("combine", [DOUBLE], EQUAL, 5, 1)
    yield from _todo("dot", [COMPLEX], EQUAL, 5, 1)
    yield from _todo("combine", [COMPLEX], EQUAL, 5, 1)


def _single() -> Iterator[Todo]:
    """Yield equal widths in single precision."""
    for dtype in (SINGLE, SINGLE_COMPLEX):
        yield from _todo("dot", [dtype], EQUAL, 4)
        yield from _todo("combine", [dtype], EQUAL, 4)


def _gram() -> Iterator[Todo]:
    yield from _todo("gram", BOTH, EQUAL, 3)
    yield from _todo("gram", (SINGLE, SINGLE_COMPLEX), FEW, 3)


def _rectangular() -> Iterator[Todo]:
    """Yield pairs of some widths that differ."""
    yield from _todo("dot", BOTH, PAIRS, 3)
    yield from _todo("combine", BOTH, PAIRS, 3)


def _wide() -> Iterator[Todo]:
    """Yield products of a basis with a block, in both directions."""
    yield from _todo("dot", BOTH, WIDE, 4, 1)
    yield from _todo("combine", BOTH, WIDE, 4, 1)


def _update() -> Iterator[Todo]:
    """Yield products with beta != 0, and in place."""
    yield from _todo("combine", BOTH, FEW, 4, 1, beta=True)
    yield from _todo("inplace", BOTH, FEW, 4, 1)


def _views() -> Iterator[Todo]:
    """Yield columns of wider blocks at odd offsets."""
    for ld in (64, 61):
        yield from _todo("dot gram combine", BOTH, [(8, 8), (13, 13)], 10, 2, ld=ld)


def _fma() -> Iterator[Todo]:
    """Yield narrow products with multiply-adds only."""
    narrow = [(width, width) for width in range(1, 21)]
    yield from _todo("dot combine", [DOUBLE], narrow, 5, 1, families="fma")


TABLES: dict[str, Callable[[], Iterator[Todo]]] = {
    "equal": _equal,
    "update": _update,
    "wide": _wide,
    "views": _views,
    "fma": _fma,
    "gram": _gram,
    "rectangular": _rectangular,
    "single": _single,
}


def todo(names: Sequence[str]) -> Iterator[Todo]:
    """Yield the problems of some tables, one table after the other."""
    for name in names:
        for each in TABLES[name]():
            yield dataclasses.replace(each, table=name)


class Ledger:
    """Tuned problems of a run, written to one file per table as they arrive.

    Parameters
    ----------
    place : Path, optional
        The file, or for tables the folder of their files; without it nothing is written.
    resume : bool
        Keep the records of these files and do not measure their problems again.
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
        for book in self._books.values():
            book.write()

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
