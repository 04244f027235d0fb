"""Choices of the models are kept on disk, and made again where they cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import blockvec
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import TsmttsmProblem
from blockvec.kernels.tuning.choices import choose, save_choices

FAMILY = FAMILIES["tsmttsm_mma"]
PROBLEM = TsmttsmProblem(10**6, 8, 8, "float64", "float64", 8, 8, 256, 256, True)

LATER = """
import sys
from pathlib import Path
import blockvec
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import TsmttsmProblem
from blockvec.kernels.tuning.choices import choose
family, asked = FAMILIES["tsmttsm_mma"], []
predicted = family.model.choose
family.model.choose = lambda *given: asked.append(given) or predicted(*given)
problem = TsmttsmProblem(10**6, 8, 8, "float64", "float64", 8, 8, 256, 256, True)
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
