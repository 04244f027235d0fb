"""The paper's figures: what they compare, and their pictures, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockvec.backends import backend_for
from blockvec.errors import OptionError
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks.paper_figures import record_figures
from tests.benchmarks.paper_points import FIGURES as COMPARED
from tests.benchmarks.paper_points import Point, points
from tests.benchmarks.pictures.draw import draw
from tests.benchmarks.plot import of_tables

SOME = {name: points([name], H200) for name in COMPARED if name != "roofline"}


@pytest.mark.parametrize("figure", SOME)
def test_every_kernel_that_is_compared_is_valid_or_without_a_reduction(figure: str) -> None:
    for point in SOME[figure]:
        refusal = FAMILIES[point.kernel].refuse(point.problem, point.config, H200)
        assert refusal is None or point.setting.get("reduction") == "none", point
        assert all(getattr(point.config, name) == value for name, value in point.setting.items())


def test_figures_compare_all_that_the_paper_compares() -> None:
    def settings(figure: str, *keys: str) -> set[tuple[Any, ...]]:
        return {tuple(point.setting[key] for key in keys) for point in SOME[figure]}

    assert settings("permutations", "leapfrog", "interleaved") == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert len(settings("tiles", "tm", "tn")) > 60
    assert settings("reductions", "reduction") == {("partials",), ("blocks",), ("threads",), ("none",)}
    assert settings("combinations", "spread") == {(1,), (2,), (4,), (8,), (16,)}
    assert settings("combinations", "coefficients") == {("registers",), ("shared",), ("cache",)}
    assert settings("combinations", "unroll") == {(1,), (2,), (3,), (4,)}
    assert all(point.config.stages == 0 for name in SOME if name != "reductions" for point in SOME[name])


def test_a_figure_that_is_not_known_is_refused() -> None:
    with pytest.raises(OptionError, match="give some of roofline"):
        points(["speedups"], H200)


def test_a_cpu_has_no_such_kernels() -> None:
    with pytest.raises(OptionError, match="give --device gpu"):
        list(record_figures(["tiles"], backend_for("cpu"), Ceilings(1.0, 1.0, 1.0), budget_s=1.0))


def record(point: Point) -> dict[str, Any]:
    p = point.problem
    sizes = {"operation": p.operation, "dtype": p.dtype, "M": p.M, "N": p.N, "K": p.K}
    timed = {"time_s": 1e-9 * p.K * (1 + p.M % 5), "fraction": 0.5, "peers": {"cublas": 1e-9 * p.K}}
    return {"figure": point.figure, **sizes, "family": point.kernel, **timed, **point.setting}


def test_every_figure_has_a_picture_and_equal_records_equal_ones(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = [record(point) for name in SOME for point in SOME[name]]
    for width in (4, 8):
        for family in ("tsmttsm_mma", "tsmttsm_fma"):
            sizes = {"operation": "tsmttsm", "dtype": "float64", "M": width, "N": width, "K": 1000}
            # Not every library is run at every width.
            peers = {"cublas": 2e-3} if width == 4 else {"cublas_splitk": 2e-3}
            timed = {"time_s": 1e-3, "fraction": 0.9, "peers": peers}
            records.append({"figure": "roofline", **sizes, "family": family, **timed})
    for warps in (0, 4, 8):
        for unroll in (1, 4, 16):
            stream = {"operation": "read", "unroll": unroll, "warps": warps, "bandwidth_gb_s": 100.0 * warps}
            records.append({"figure": "occupancy", **stream})
    document = {
        "environment": {"device": "NVIDIA H200", "cores": 0, "date": "2026-11-21"},
        "ceilings": {"read_gb_s": 4600.0, "copy_gb_s": 4200.0},
        "records": records,
    }
    for name in ("first.svg", "second.svg"):
        draw(document, tmp_path / name, of_tables)
    first = (tmp_path / "first.svg").read_bytes()
    assert first == (tmp_path / "second.svg").read_bytes()
    draw(document, tmp_path / "look.png", of_tables)
