"""Results on record: the form of a document, and what tells one machine from another."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import blockvec
from blockvec.backends import backend_for
from blockvec.errors import FormatError
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import SpmmvProblem, TsmttsmProblem
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks import records as results

LIMITS = Ceilings(40.0, 20.0, 50.0, {"float32": 400.0, "float64": 200.0})
HOST = backend_for("cpu")


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, 0.125, 10)


def test_an_environment_says_all_that_a_measurement_depends_on() -> None:
    found = results.environment(HOST)
    assert list(found) == [
        *("device", "cores", "driver", "cuda", "nvrtc", "cupy", "numpy", "scipy", "python", "blockvec"),
        *("commit", "date"),
    ]
    assert found["numpy"] == np.__version__
    assert found["blockvec"] == blockvec.__version__
    assert found["cores"] == blockvec.options().threads
    assert (found["cuda"], found["cupy"]) == ("", "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert re.fullmatch(r"([0-9a-f]{4,40}\+?)?", found["commit"])


@pytest.mark.parametrize("is_own", [True, False])
def test_the_commit_is_that_of_the_tree_and_not_of_a_repository_around_it(
    is_own: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "tree" / "blockvec" / "bench" / "records.py"
    file.parent.mkdir(parents=True)
    file.touch()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path / ("tree" if is_own else "")]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(results, "__file__", str(file))
    monkeypatch.delenv("BLOCKVEC_COMMIT", raising=False)
    assert re.fullmatch(r"[0-9a-f]{4,40}" if is_own else "", results.environment(HOST)["commit"])
    file.write_text("changed")
    assert results.environment(HOST)["commit"].endswith("+" if is_own else "")
    monkeypatch.setenv("BLOCKVEC_COMMIT", "abc1234")
    assert results.environment(HOST)["commit"] == "abc1234"


def test_a_document_comes_back_as_it_was_written(tmp_path: Path) -> None:
    problem = TsmttsmProblem(1000, 4, 4, "float64", "float64", 4, 4)
    record = results.kernel_record(problem, "panels", timing(1e-6), LIMITS, {"numpy": timing(2e-6)})
    path = tmp_path / "host-2core" / "kernels.json"
    environment = results.environment(HOST)
    results.write(path, environment, LIMITS, [record, record])
    found = results.read(path)
    assert found == results.document(environment, LIMITS, [record, record])
    assert found["ceilings"] == {
        **{"read_gb_s": 40.0, "write_gb_s": 20.0, "copy_gb_s": 50.0},
        **{"fp32_gflop_s": 400.0, "fp64_gflop_s": 200.0},
    }
    assert sum("tsmttsm" in line for line in path.read_text().splitlines()) == 2  # a line a record


def test_a_record_holds_extents_time_fraction_and_peers() -> None:
    problem = TsmttsmProblem(10**6, 8, 8, "float64", "float64", 8, 8)
    record = results.kernel_record(
        problem, "mma", timing(6.4e-3), LIMITS, {"cublas": timing(0.01)}, config="stages 4"
    )
    assert record == {
        **{"operation": "tsmttsm", "dtype": "float64", "M": 8, "N": 8, "K": 10**6, "lda": 8, "ldb": 8},
        **{"family": "mma", "config": "stages 4", "time_s": 6.4e-3, "spread": 0.125, "fraction": 0.5},
        "peers": {"cublas": 0.01},
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"environment": {},\n "ceilings": oops}', "results.json:2: this is no JSON"),
        (b"[1, 2]", "results.json: these are no results"),
        (b'{"environment": {}, "ceilings": {}, "records": {}}', "results.json: these are no results"),
        (b"\xff\xfe\x00", "results.json: this is no text"),
    ],
)
def test_what_is_no_document_is_refused_with_path_and_reason(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        results.read(path)


def test_a_fused_sparse_product_says_what_it_does_and_both_fractions() -> None:
    limits = dataclasses.replace(LIMITS, l2_gb_s=100.0)
    plain = SpmmvProblem(900, 900, 5000, 4, "float64", "float64", 4, 4)
    fused = dataclasses.replace(plain, beta="general", shift="scalar", dots=("xy", "yy"))
    record = results.kernel_record(plain, "k", timing(1e-6), limits, {})
    assert record["fraction_gather"] == pytest.approx(5000 * 4 * 8 / 100e9 / 1e-6, abs=1e-4)
    assert not record.keys() & {"beta", "shift", "dots", "gram", "chain", "alpha"}
    record = results.kernel_record(fused, "k", timing(1e-6), LIMITS, {})
    assert {key: record[key] for key in ("beta", "shift", "dots")} == {
        "beta": "general",
        "shift": "scalar",
        "dots": ["xy", "yy"],
    }
    assert "fraction_gather" not in record
    assert results.ceilings_record(limits)["l2_gb_s"] == 100.0
    mixed = dataclasses.replace(LIMITS, mixed_gb_s=((1 / 17, 4321.123),))
    assert results.ceilings_record(mixed)["mixed_gb_s"] == [[0.0588, 4321.12]]
