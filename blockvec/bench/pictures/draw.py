"""Drawing a picture of recorded results: selects the picture by the kind of the records, and saves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ...system.files import check_picture, write_picture
from ..paper import pictures as paper
from ..records import Record
from . import accuracy, eigsh, jacobi_davidson, latency, orthogonality, products, sparse

Paint = Callable[[Any, Sequence[Record]], None]

SALT = "blockvec"  # seed of the ids in an SVG, so that equal results give equal files


def draw(document: Record, path: str | Path) -> None:
    """Draw the picture of a document's records as .svg, .png or .pdf.

    Raises
    ------
    OptionError
        Without matplotlib, for a file that cannot be written, or for records that have no picture.
    """
    check_picture("picture", path)
    import matplotlib

    path = Path(path)
    picture = next((picture for picture in _pictures(document) if picture[1]), None)
    if picture is None:
        raise OptionError(f"{path.name}: these results hold no records that there is a picture for.")
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


def _pictures(document: Record) -> tuple[tuple[Paint, list[Record]], ...]:
    """List painters with the records that each can draw; the first that has records is to be used."""
    records = document["records"]

    def of(operation: str) -> list[Record]:
        return [r for r in records if r.get("operation") == operation]

    solves = of("eigsh")
    of_corrections = [r for r in solves if r.get("table") in jacobi_davidson.TABLES]
    kernels = [r for r in records if "fraction" in r and "M" in r]
    return (
        (partial(paper.paint, ceilings=document["ceilings"]), [r for r in records if "figure" in r]),
        (accuracy.paint, of("accuracy")),
        (orthogonality.paint_loss, of("orthogonality")),
        (orthogonality.paint_times, of("orthogonalize")),
        (latency.paint, [r for r in kernels if "replay_s" in r]),
        (jacobi_davidson.paint, of_corrections if of_corrections == solves else []),
        (eigsh.paint_times, solves if all({"peers", "which"} <= r.keys() for r in solves) else []),
        (eigsh.paint_block_sizes, of("eigsh_blocks")),
        (sparse.paint, kernels if all(r.get("matrix") for r in kernels) else []),
        (products.paint_maps, kernels if any(r["M"] != r["N"] for r in kernels) else []),
        (products.paint_width_curves, kernels),
    )
