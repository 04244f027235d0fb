"""Rows split over processes: the model beside the recorded times, and the pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.pictures.draw import draw
from tests.benchmarks.plot import of_tables
from tests.benchmarks.records import read
from tests.benchmarks.scaling_model import efficiency, grid, predicted_s

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SCALING, HOST = RESULTS / "h200-x2" / "scaling.json", RESULTS / "host-2core" / "processes.json"


def test_the_model_predicts_the_recorded_products_and_sums() -> None:
    measured = [r for r in read(SCALING)["records"] if predicted_s(r) and r.get("fused") != "dots"]
    assert len(measured) == 20
    for record in measured:
        assert predicted_s(record) == pytest.approx(record["time_s"], rel=0.09), record["row"]


def test_bricks_scale_at_least_as_well_as_slabs() -> None:
    assert [grid(parts) for parts in (1, 2, 8, 16, 64)] == [
        *((1, 1, 1), (1, 1, 2), (2, 2, 2), (2, 2, 4), (4, 4, 4))
    ]
    for n in (400, 1000):
        assert efficiency(n, 1, bricks=True) == 1
        values = [(efficiency(n, gpus, bricks=b) for b in (False, True)) for gpus in (2, 4, 8, 16, 32, 64)]
        assert all(0 < slabs <= bricks < 1 for slabs, bricks in values)


@pytest.mark.parametrize(("results", "text"), [(SCALING, "by the model"), (HOST, "waiting")])
def test_recorded_results_have_pictures(results: Path, text: str, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(read(results), tmp_path / "picture.svg", of_tables)
    assert text in (tmp_path / "picture.svg").read_text()
