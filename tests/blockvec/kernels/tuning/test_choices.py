"""Choices of the models are kept on disk, and made again where they cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockvec
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES, SPARSE_FAMILIES
from blockvec.kernels.problem import SpmmvProblem, SweepProblem, TsmmProblem, TsmttsmProblem, in_class
from blockvec.kernels.tuning.choices import choose, save_choices

FAMILY = FAMILIES["tsmttsm_mma"]
PROBLEM = TsmttsmProblem(1 << 20, 8, 8, "float64", "float64", 8, 8, 256, 256, True)

LATER = """
import sys
from pathlib import Path
import blockvec
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES, SPARSE_FAMILIES
from blockvec.kernels.problem import TsmttsmProblem
from blockvec.kernels.tuning.choices import choose
family, asked = FAMILIES["tsmttsm_mma"], []
predicted = family.model.choose
family.model.choose = lambda *given: asked.append(given) or predicted(*given)
problem = TsmttsmProblem(1 << 20, 8, 8, "float64", "float64", 8, 8, 256, 256, True)
with blockvec.option_context(cache_dir=Path(sys.argv[1])):
    print(choose(family, problem, H200), len(asked))
"""


def choose_later(folder: Path) -> str:
    """Choose in another process; return the configuration and how often the model was asked."""
    command = [sys.executable, "-c", LATER, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Store a choice; return its file."""
    with blockvec.option_context(cache_dir=tmp_path):
        assert choose(FAMILY, PROBLEM, H200) == FAMILY.choose(PROBLEM, H200)
        save_choices(H200)
    (file,) = (tmp_path / "choices").iterdir()
    return file


def test_a_later_process_takes_what_the_model_chose(stored: Path) -> None:
    assert choose_later(stored.parent.parent) == f"{FAMILY.choose(PROBLEM, H200)} 0"


@pytest.mark.parametrize("damage", ["models", "fields", "values", "zero", "type", "text", "deep"])
def test_choices_that_cannot_be_used_are_made_again(stored: Path, damage: str) -> None:
    record = json.loads(stored.read_text())
    del record["sha256"]
    ((key, config),) = record["choices"].items()
    match damage:
        case "models":
            record["models"] = "others"
        case "fields":
            del config["rows"]
        case "values":
            config["rows"] = 1 << 40
        case "zero":
            config["blocks"] = 0
        case "type":
            config["stages"] = "4"
    texts = {"text": "[]", "deep": '{"choices":' * 100_000}
    stored.write_text(texts.get(damage) or json.dumps(record | {"choices": {key: config}}))
    assert choose_later(stored.parent.parent) == f"{FAMILY.choose(PROBLEM, H200)} 1"


def test_nothing_is_written_where_nothing_is_new(stored: Path) -> None:
    stored.unlink()
    with blockvec.option_context(cache_dir=stored.parent.parent):
        choose(FAMILY, PROBLEM, H200)
        save_choices(H200)
    assert not stored.exists()


@pytest.mark.parametrize(("rows", "near"), [(0, 12), (10_000, 12), (20_000, 16), (10**5, 16), (10**9, 20)])
def test_numbers_of_rows_share_the_choice_for_one_of_three(rows: int, near: int) -> None:
    exact = replace(PROBLEM, K=1 << near)
    assert in_class(replace(PROBLEM, K=rows)) == exact
    with blockvec.option_context(cache_dir=Path("nowhere")):
        assert choose(FAMILY, replace(PROBLEM, K=rows), H200) == FAMILY.choose(exact, H200)


@pytest.mark.parametrize(
    "name", ["tsmttsm_mma", "tsmttsm_fma", "tsmm_mma", "tsmm_fma", "sweep_mma", "tsmm_sweep"]
)
@pytest.mark.parametrize("width", [2, 16])
def test_pitches_share_a_choice_whatever_their_length(name: str, width: int) -> None:
    family: Any = FAMILIES[name]
    for pitch in (40, 68, 208):
        if family.problem_type is SweepProblem:
            dtypes = ("float64",) * 3
            problem: Any = SweepProblem("update_gram", 1 << 16, 32, width, *dtypes, pitch, width)
        elif family.problem_type is TsmmProblem:
            problem = TsmmProblem(1 << 16, 32, width, "float64", "float64", pitch, width, beta="one")
        else:
            problem = TsmttsmProblem(1 << 16, 32, width, "float64", "float64", pitch, width)
        if family.supports(problem, H200) is None:
            alike = family.alike(problem)
            assert family.alike(alike) == alike == family.alike(replace(problem, **{_pitch(problem): 48}))
            assert family.choose(alike, H200) == family.choose(problem, H200)


def _pitch(problem: Any) -> str:
    return "ldw" if isinstance(problem, SweepProblem) else "lda"


@pytest.mark.parametrize(("lda", "width"), [(32, 16), (48, 16), (32, 32)])
def test_products_in_place_keep_one_pitch(lda: int, width: int) -> None:
    problem = TsmmProblem(1 << 16, 32, width, "float64", "float64", lda, lda, inplace=True)
    alike = FAMILIES["tsmm_mma"].alike(problem)
    assert alike.lda == alike.ldb
    assert (alike.lda == 32) == (lda == 32)


def test_a_sparse_matrix_of_another_number_of_rows_has_as_many_entries_per_row() -> None:
    problem = SpmmvProblem(10_000, 20_000, 70_000, 4, "float64", "float64", 4, 4, longest=9)
    assert in_class(problem) == replace(problem, n_rows=4096, n_cols=8192, nnz=28672)


@pytest.mark.parametrize("average", [0.2, 1.0, 4.4, 6.94, 9.98, 10.5, 25.0, 27.0, 95.5, 300.5])
@pytest.mark.parametrize("name", ["spmmv_csr", "spmmv_sell"])
def test_sparse_matrices_of_nearly_as_many_entries_per_row_share_kernels(name: str, average: float) -> None:
    rows, family = 50_000, SPARSE_FAMILIES[name]
    problem = SpmmvProblem(rows, rows, round(rows * average), 4, "float64", "float64", 4, 4, longest=400)
    alike = in_class(problem)
    assert alike.nnz / alike.n_rows >= average * (1 - 1e-6)
    assert alike.nnz / alike.n_rows <= max(1.51 * average, 1)
    assert in_class(alike) == alike
    with blockvec.option_context(cache_dir=Path("nowhere")):
        config = choose(family, problem, H200)
    assert family.refuse(problem, config, H200) is None
