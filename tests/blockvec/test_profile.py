"""Profiles and the ceilings they are measured against."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import blockvec
from blockvec.backends import backend_for
from blockvec.kernels.records import load, store
from blockvec.kernels.roofline import Ceilings

profile = importlib.import_module("blockvec.operations.profile")
MEASURED = Ceilings(30.0, 20.0, 40.0, {"float64": 100.0, "float32": 200.0}, mixed_gb_s=((0.2, 35.0),))
WHOLE = {
    "read_gb_s": 1.0,
    "write_gb_s": 1.0,
    "copy_gb_s": 1.0,
    "gflop_s": {},
    "l2_gb_s": 0.0,
    "mixed_gb_s": [],
}
HOST = backend_for("cpu")


@pytest.fixture
def measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """An empty cache, an empty memory, and a list that grows when ceilings are measured."""
    counted: list[int] = []

    def measure(probes: object, *_: object) -> Ceilings:
        counted.append(1)
        return MEASURED

    monkeypatch.setattr(profile, "measure_ceilings", measure)
    monkeypatch.setattr(type(HOST), "ceiling_probes", lambda self: ())
    before = dict(profile.known_ceilings)
    profile.known_ceilings.clear()
    with blockvec.option_context(cache_dir=tmp_path):
        yield counted
    profile.known_ceilings.clear()
    profile.known_ceilings.update(before)


def record_path(folder: Path) -> Path:
    return folder / "ceilings" / HOST.device.fingerprint


def forget() -> None:
    profile.known_ceilings.clear()


def test_ceilings_are_measured_once_and_then_remembered(measurements: list[int], tmp_path: Path) -> None:
    assert profile.ceilings(HOST) == MEASURED
    assert profile.ceilings(HOST) == MEASURED
    forget()
    assert profile.ceilings(HOST) == MEASURED  # from disk, as another process would
    assert len(measurements) == 1


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"ceilings": None},
        {"ceilings": {"read_gb_s": 1.0}},
        {"ceilings": {name: rate for name, rate in WHOLE.items() if name != "l2_gb_s"}},
        {"ceilings": {name: rate for name, rate in WHOLE.items() if name != "mixed_gb_s"}},
    ],
)
def test_a_record_of_another_version_is_measured_again_and_replaced(
    measurements: list[int], tmp_path: Path, record: dict[str, object]
) -> None:
    path = record_path(tmp_path)
    store(path, path.name, record)
    assert profile.ceilings(HOST) == MEASURED
    assert len(measurements) == 1
    stored = load(path, path.name)
    assert stored is not None
    assert stored[0]["ceilings"]["read_gb_s"] == 30.0


def test_the_time_of_a_function_does_not_include_the_work_recorded_inside(measurements: list[int]) -> None:
    V = blockvec.BlockVector.random(1000, 2, rng=0)

    @blockvec.Profile.timed("outer part", lambda: ("float64", 1000, 0))
    def outer() -> None:
        time.sleep(0.02)
        inner()
        V.gram()

    @blockvec.Profile.timed("inner part")
    def inner() -> None:
        time.sleep(0.05)

    outer()  # outside of a profile nothing is recorded
    with blockvec.profile() as p:
        outer()
    rows = {row["operation"]: row for row in p.rows()}
    assert rows["gram"]["part"] == "outer part"
    assert rows["inner"]["time_s"] >= 0.05
    assert rows["inner"]["fraction"] == 0
    assert 0.02 <= rows["outer"]["time_s"] <= p.time_s - rows["inner"]["time_s"]
    limit_s = 8000 / MEASURED.read_gb_s * 1e-9
    assert rows["outer"]["fraction"] == pytest.approx(limit_s / rows["outer"]["time_s"])


@pytest.mark.parametrize("method", ["lanczos", "filter", "jd"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_parts_add_up_to_the_time_of_the_block(measurements: list[int], dtype: str, method: str) -> None:
    A = blockvec.models.model("laplace3d:n=10").astype(dtype)
    with blockvec.profile() as p:
        blockvec.eigsh(A, 4, which="SA", method=method, rng=0)
    *parts, total = p.parts()
    times_s = {part["part"]: part["time_s"] for part in parts}
    assert times_s.keys() >= {"products", "orthogonalisation", "Rayleigh-Ritz", "rest"}
    assert min(times_s.values()) > 0
    assert (total["part"], total["time_s"]) == ("total", p.time_s)
    assert sum(times_s.values()) == pytest.approx(p.time_s)
    assert all(part["fraction"] > 0 for part in parts if part["part"] in ("products", "orthogonalisation"))


def test_a_profile_changes_no_bits(measurements: list[int]) -> None:
    A = blockvec.models.model("laplace2d:n=30")
    options = {"k": 3, "which": "SA", "method": "lanczos", "rng": 0}
    w, X = blockvec.eigsh(A, **options)
    with blockvec.profile():
        again, Y = blockvec.eigsh(A, **options)
    np.testing.assert_array_equal(w, again)
    np.testing.assert_array_equal(X, Y)
