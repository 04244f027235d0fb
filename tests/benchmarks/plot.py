"""Draw pictures of recorded results, also of tables that only these benchmarks write.

python -m tests.benchmarks.plot docs/results     # again, those that there are
python -m tests.benchmarks.plot docs/results/host-2core/spmmv.json
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.pictures import (
    accuracy,
    eigsh,
    jacobi_davidson,
    orthogonality,
    paper,
    processes,
)
from tests.benchmarks.pictures.draw import Paint, draw_files, of_products
from tests.benchmarks.records import Record


def of_tables(document: Record) -> Iterator[tuple[Paint, list[Record]]]:
    """Yield painters with the records that each can draw; the first that has records is to be used."""
    records = document["records"]

    def of(operation: str) -> list[Record]:
        return [r for r in records if r.get("operation") == operation]

    solves = of("eigsh")
    of_corrections = [r for r in solves if r.get("table") in jacobi_davidson.TABLES]
    of_paper = [r for r in records if "figure" in r]
    yield functools.partial(paper.paint, ceilings=document["ceilings"]), of_paper
    yield accuracy.paint, of("accuracy")
    yield processes.paint_host, of("processes")
    yield processes.paint_scaling, records if all("efficiency" in r for r in records) else []
    yield orthogonality.paint_loss, of("orthogonality")
    yield jacobi_davidson.paint, of_corrections if of_corrections == solves else []
    yield eigsh.paint_times, solves if all({"peers", "which"} <= r.keys() for r in solves) else []
    yield eigsh.paint_block_sizes, of("eigsh_blocks")
    yield from of_products(document)


def with_pictures(results: Path) -> list[Path]:
    """List the files of a folder that there are pictures of; a file stands for itself."""
    if not results.is_dir():
        return [results]
    return sorted(picture.with_suffix(".json") for picture in results.rglob("*.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, help="JSON files, or folders of some with pictures")
    given = parser.parse_args().results
    sys.exit(draw_files([file for path in given for file in with_pictures(path)], pictures=of_tables))
