"""Winners on record: one for all problems of a kind, the user's before the shipped, broken ones ignored."""

from __future__ import annotations

import dataclasses
import json
import random
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from blockvec.kernels import device, families
from blockvec.kernels.compile import compile_source
from blockvec.kernels.device import DeviceInfo, host_device
from blockvec.kernels.problem import SpmmvProblem, StreamProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.tuning import winners
from blockvec.kernels.tuning.winners import Winner, find, representative, store

H200 = dataclasses.replace(device.H200, architecture="sm_90a")  # for which nothing ships
D8 = TsmttsmProblem(1 << 24, 8, 8, "float64", "float64", 8, 8)
D8C = TsmmProblem(1 << 24, 8, 8, "float64", "float64", 8, 8)
SELL = families.SPARSE_FAMILIES["spmmv_sell"]
CSR_CONFIG = families.CSR.choose(SpmmvProblem(10**6, 10**6, 10**7, 8, "float64", "float64", 8, 8), H200)
CONFIG = families.FAMILIES["tsmttsm_mma"].choose(D8, H200)
WINNER = Winner("tsmttsm_mma", CONFIG, D8.K, 4.7e-4, 0.97, "")
OTHER = dataclasses.replace(H200, name="another GPU", multiprocessors=100)


def other(**changes: Any) -> TsmttsmProblem:
    return dataclasses.replace(D8, **changes)


@pytest.mark.parametrize(
    "problem",
    [other(K=D8.K // 2), other(alpha="general"), other(beta="one"), other(K=(1 << 24) + 1)],
    ids=str,
)
def test_rows_and_factors_share_a_record(problem: TsmttsmProblem, tmp_path: Path) -> None:
    assert store(D8, WINNER, H200, tmp_path)
    found = find(problem, H200, tmp_path)
    assert found is not None
    assert (found.kernel, found.config, found.time_s) == ("tsmttsm_mma", CONFIG, 4.7e-4)
    assert "NVIDIA H200" in found.origin


@pytest.mark.parametrize(
    "problem",
    [other(M=7, lda=7), other(lda=64), other(align_a=8), other(same=True), other(K=1000), D8C],
    ids=str,
)
def test_other_widths_layouts_and_small_problems_do_not(problem: Any, tmp_path: Path) -> None:
    assert store(D8, WINNER, H200, tmp_path)
    assert find(problem, H200, tmp_path) is None


def test_views_share_a_record_whatever_their_pitch(tmp_path: Path) -> None:
    view = other(lda=64, ldb=61, align_a=8, align_b=8)
    config = families.FAMILIES["tsmttsm_mma"].choose(view, H200)
    assert store(view, dataclasses.replace(WINNER, config=config), H200, tmp_path)
    assert find(dataclasses.replace(view, lda=128, ldb=20), H200, tmp_path) is not None


def test_a_products_update_is_not_a_plain_one_but_every_beta_is_alike() -> None:
    plain, one, general = (
        representative(dataclasses.replace(D8C, beta=b)) for b in ("zero", "one", "general")
    )
    assert one == general != plain
    assert representative(dataclasses.replace(D8C, inplace=True)) != plain


def sparse(width: int = 8, rows: int = 10**7, **changes: Any) -> SpmmvProblem:
    plain = SpmmvProblem(rows, rows, 7 * rows, width, "float64", "float64", width, width)
    return dataclasses.replace(plain, **changes)


def test_sparse_products_share_a_record_where_matrices_are_alike(tmp_path: Path) -> None:
    config = families.CSR.choose(sparse(), H200)
    assert store(sparse(), Winner("spmmv_csr", config, 10**7, 1e-3, 0.8, ""), H200, tmp_path)
    alike = [
        sparse(rows=10**6),
        sparse(nnz=68 * 10**6),
    ]
    for problem in alike:
        found = find(problem, H200, tmp_path)
        assert found is not None
        assert found.config == config
    crowded = sparse(dots=("xx", "xy", "yy"), beta="general", alpha="general", shift="column")
    assert families.CSR.refuse(crowded, config, H200)
    assert find(crowded, H200, tmp_path) is None, "registers leave no room for what is fused"
    roomy = dataclasses.replace(config, blocks=2)
    assert store(sparse(), Winner("spmmv_csr", roomy, 10**7, 1e-3, 0.8, ""), H200, tmp_path)
    assert find(crowded, H200, tmp_path) is not None
    others = [sparse(7), sparse(nnz=27 * 10**7), sparse(pattern="planes"), sparse(index_bytes=8)]
    others += [sparse(ldx=9), sparse(align_y=8), sparse(dtype_x="complex128"), sparse(rows=1000)]
    assert [find(problem, H200, tmp_path) for problem in others] == [None] * len(others)


def test_products_with_sums_have_records_of_their_own_and_else_that_of_the_plain_one(tmp_path: Path) -> None:
    plain, gram = sparse(), sparse(gram=("xy", "yy"))
    roomy = dataclasses.replace(families.CSR.choose(plain, H200), blocks=4)
    own = families.CSR.choose(gram, H200)
    assert store(plain, Winner("spmmv_csr", roomy, 10**7, 1e-3, 0.8, ""), H200, tmp_path)
    found = find(gram, H200, tmp_path)
    assert found is not None
    assert found.config == roomy
    assert store(gram, Winner("spmmv_csr", own, 10**7, 1e-3, 0.8, ""), H200, tmp_path)
    for problem in (gram, sparse(gram=("yy",), shift="scalar")):
        found = find(problem, H200, tmp_path)
        assert found is not None
        assert found.config == own
    rectangle = sparse(gram=("yy",), n_cols=10**6)
    assert representative(rectangle) == representative(rectangle.plain)


def test_a_winner_configures_its_own_family_and_leaves_the_other_to_its_model(tmp_path: Path) -> None:
    problem = sparse(2)
    config = dataclasses.replace(SELL.choose(problem, H200), sigma=1024)
    assert store(problem, Winner("spmmv_sell", config, 10**7, 1e-4, 0.9, ""), H200, tmp_path)
    found, origin = winners.configure_sparse(SELL, problem, H200, tmp_path)
    assert found == config
    assert "tuned" in origin
    in_rows = families.CSR.choose(problem, H200), "the model's choice"
    assert winners.configure_sparse(families.CSR, problem, H200, tmp_path) == in_rows
    assert winners.configure_sparse(SELL, problem, H200, None) == (
        SELL.choose(problem, H200),
        "the model's choice",
    )
    with_dots = sparse(2, dots=("xy",))
    assert find(with_dots, H200, tmp_path) is not None, "of the plain product"
    assert SELL.supports(with_dots, H200) is not None
    assert winners.configure_sparse(families.CSR, with_dots, H200, tmp_path)[1] == "the model's choice"


def test_records_belong_to_a_device(tmp_path: Path) -> None:
    assert store(D8, WINNER, H200, tmp_path)
    assert find(D8, OTHER, tmp_path) is None
    assert find(D8, host_device(2), tmp_path) is None
    assert representative(StreamProblem("axpby", 1 << 30, 8, "float64", 2, 1)) is None


def test_a_device_that_refuses_a_configuration_is_spared_it(tmp_path: Path) -> None:
    small = DeviceInfo("cuda", "small", 10, "sm_90", "", 1 << 20, 8 << 10, 8 << 10, 65536, 2048)
    assert store(D8, WINNER, small, tmp_path)
    assert find(D8, small, tmp_path) is None


def test_a_vendors_kernel_can_win(tmp_path: Path) -> None:
    assert store(D8, dataclasses.replace(WINNER, kernel="cublas", config=None), H200, tmp_path)
    found = find(D8, H200, tmp_path)
    assert found is not None
    assert (found.kernel, found.config) == ("cublas", None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: "{half a rec",
        lambda record: json.dumps(record | {"kernel": "unheard_of"}),
        lambda record: json.dumps(record | {"config": record["config"] | {"colour": 3}}),
        lambda record: json.dumps(record | {"config": {}}),
        lambda record: json.dumps(record | {"config": None}),
        lambda record: json.dumps(record | {"time_s": "soon"}),
        lambda record: json.dumps(record | {"time_s": float("nan")}),
        lambda record: json.dumps(record | {"time_s": 10**400}),
        lambda record: json.dumps(record | {"rows": float("inf")}),
        lambda record: json.dumps(record | {"rows": -1}),
        lambda record: json.dumps(record | {"fraction": 0}),
        lambda record: json.dumps(record | {"kernel": ["tsmttsm_mma"]}),
        lambda record: json.dumps(record | {"kernel": "spmmv_csr", "config": dataclasses.asdict(CSR_CONFIG)}),
        lambda record: json.dumps(record | {"config": record["config"] | {"blocks": 0}}),
        lambda record: json.dumps(record | {"config": record["config"] | {"blocks": True}}),
        lambda record: json.dumps(record | {"config": record["config"] | {"stages": -1}}),
        lambda record: json.dumps(record | {"config": record["config"] | {"gapless": "yes"}}),
        lambda record: json.dumps(record | {"config": record["config"] | {"rows": 10**30}}),
        lambda record: json.dumps(record | {"config": record["config"] | {"rows": [8]}}),
        lambda record: '{"config":' * 100_000,
        lambda record: json.dumps({"problem": record["problem"]}),
        lambda record: json.dumps(record | {"problem": record["problem"] | {"M": 9}}),
        lambda record: "[]",
    ],
)
def test_what_cannot_be_read_counts_as_missing(damage: Any, tmp_path: Path) -> None:
    assert store(D8, WINNER, H200, tmp_path)
    (path,) = (tmp_path / "tuned").rglob("*.json")
    stored = json.loads(path.read_text())
    del stored["sha256"]  # as in a record of an earlier version
    path.write_text(damage(stored))
    assert find(D8, H200, tmp_path) is None
    assert store(D8, WINNER, H200, tmp_path)
    assert find(D8, H200, tmp_path) is not None


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("in the way")
    assert not store(D8, WINNER, H200, tmp_path)
    assert find(D8, H200, tmp_path) is None


def test_a_record_of_a_table_reads_back(tmp_path: Path) -> None:
    key = representative(D8)
    assert key is not None
    assert store(D8, dataclasses.replace(WINNER, kernel="cublas", config=None), H200, tmp_path)
    (path,) = (tmp_path / "tuned").rglob("*.json")
    path.write_text(json.dumps(WINNER.record(key)))
    found = find(D8, H200, tmp_path)
    assert found is not None
    assert dataclasses.replace(found, origin="") == WINNER


def test_every_shipped_winner_is_valid_on_the_device_it_was_measured_on() -> None:
    assert not winners.shipped(H200.architecture)
    for problem, winner in winners.shipped(device.H200.architecture).items():
        assert 0 < winner.fraction < 1.5  # a Gram matrix' flops are counted in full, and half are enough
        sized = dataclasses.replace(problem, **_sizes(problem, winner.rows))
        assert representative(sized) == problem
        assert winners._find(problem, device.H200, Path("nowhere")) == winner
        if winner.config is not None:
            assert families.CONFIGURED[winner.kernel].refuse(sized, winner.config, device.H200) is None


def test_shipped_winners_compile_without_spills() -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    shipped = [
        (dataclasses.replace(problem, **_sizes(problem, winner.rows)), winner)
        for problem, winner in winners.shipped(device.H200.architecture).items()
        if winner.kernel in families.FAMILIES
    ]
    for problem, winner in random.Random(1).sample(shipped, 6):  # tuning lets none that spills win
        source = families.FAMILIES[winner.kernel].source(problem, winner.config, device.H200)
        resources = compile_source(source, device.H200.architecture).resources
        assert resources.spill_bytes == resources.stack_bytes == 0, (problem, winner)


def _sizes(problem: Any, rows: int) -> dict[str, int]:
    if isinstance(problem, SpmmvProblem):
        pitches = {name: getattr(problem, name) or problem.width + 1 for name in ("ldx", "ldy")}
        return {"n_rows": rows, "n_cols": rows, "nnz": problem.nnz * rows} | pitches
    return {
        "K": rows,
        "lda": problem.lda or problem.M + 1,
        "ldb": problem.ldb or max(problem.M, problem.N) + 1,
    }


def test_records_of_unknown_families_are_refused() -> None:
    problem = dataclasses.replace(sparse(), width=16, ldx=16, ldy=16, pattern="planes")
    config = families.SPARSE_FAMILIES["spmmv_planes"].choose(problem, H200)
    found = Winner("spmmv_planes", config, 10**7, 1e-3, 0.8, "").record(problem)
    assert winners.refusal("spmmv", found, H200) is None
    assert "spmmv_marsh" in str(winners.refusal("spmmv", found | {"kernel": "spmmv_marsh"}, H200))


def test_the_package_could_run_all_of_its_sparse_winners() -> None:
    shipped = resources.files("blockvec.kernels") / "tuned" / "sm_90" / "spmmv.json"
    records = json.loads(shipped.read_text())["records"]
    assert records
    assert all(winners.refusal("spmmv", record, H200) is None for record in records)
