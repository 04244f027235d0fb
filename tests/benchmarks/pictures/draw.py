"""Drawing pictures of recorded results: selects the picture by the kind of the records, and saves it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from blockvec.errors import OptionError
from blockvec.system.commands import write_all
from blockvec.system.files import check_picture, write_picture
from tests.benchmarks.pictures import products, sparse
from tests.benchmarks.records import NoResultsError, Record, read

Paint = Callable[[Any, Sequence[Record]], None]
Pictures = Callable[[Record], Iterator[tuple[Paint, list[Record]]]]

SALT = "blockvec"  # seed of the ids in an SVG, so that equal results give equal files
COLOURS = 64  # of a picture that is stored as pixels: no line looks different


class NoPictureError(OptionError):
    """Error for results that there is no picture for."""


def of_products(document: Record) -> Iterator[tuple[Paint, list[Record]]]:
    """Yield painters of products with the records that each can draw."""
    kernels = [r for r in document["records"] if r.get("operation") in products.NAMES and "fraction" in r]
    yield sparse.paint, kernels if all(r.get("matrix") for r in kernels) else []
    yield products.paint_maps, kernels if any(r["M"] != r["N"] for r in kernels) else []
    yield products.paint_width_curves, kernels


def draw(document: Record, path: str | Path, pictures: Pictures = of_products) -> None:
    """Draw the picture of a document's records as .svg, .png or .pdf.

    `pictures` yields painters with the records that each can draw; the first that has records is used.

    Raises
    ------
    NoPictureError
        For records that have no picture.
    OptionError
        Without matplotlib, or for a file that cannot be written.
    """
    check_picture("picture", path)
    import matplotlib

    path = Path(path)
    picture = next((picture for picture in pictures(document) if picture[1]), None)
    if picture is None:
        raise NoPictureError(f"{path.name}: these results hold no records that there is a picture for.")
    with matplotlib.rc_context({"svg.hashsalt": SALT, "font.size": 9, "axes.axisbelow": True}):
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        paint, records = picture
        paint(figure, records)
        environment = document["environment"]
        cores = f", {environment['cores']} cores" if environment.get("cores") else ""
        title = f"{environment.get('device', '')}{cores}, {environment.get('date', '')}"
        figure.suptitle(title, fontsize=10)
        write_picture(figure, path)
        if path.suffix.lower() == ".png":
            _with_few_colours(path)


def _with_few_colours(path: Path) -> None:
    """Store a picture with a palette: a third of the bytes of an SVG, and the versions of all add up."""
    from PIL import Image  # matplotlib needs it

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def draw_files(paths: Sequence[Path], output: Path | None = None, pictures: Pictures = of_products) -> None:
    """Draw results in files, and in all JSON files of folders; print the names of the pictures.

    A picture is beside its results, or, of a single file, in `output`. Files of a folder that there is no
    picture for are named.
    """
    found = {path: sorted(path.rglob("*.json")) if path.is_dir() else [path] for path in paths}
    for path, files in found.items():
        if not files:
            raise OptionError(f"{path}: there are no .json files in this folder.")
    count = sum(map(len, found.values()))
    if output and count != 1:
        raise OptionError(f"--output: names one picture but there are {count} results; leave it out.")
    if output:
        check_picture("--output", output)

    def plot(file: Path, *, is_named: bool) -> None:
        picture = output or file.with_suffix(".png")
        try:
            draw(read(file), picture, pictures)
        except (NoPictureError, NoResultsError):
            if is_named:
                raise
            print(f"{file}: no picture")
        else:
            print(picture)

    write_all(
        {
            str(file): functools.partial(plot, file, is_named=file == path)
            for path, files in found.items()
            for file in files
        }
    )
