"""Choices that are installed with the package: of the current models, for devices that they hold for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import blockvec
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES, SPARSE_FAMILIES
from blockvec.kernels.problem import SpmmvProblem, TsmttsmProblem
from blockvec.kernels.tuning import choices
from blockvec.kernels.tuning.installed_choices import (
    KEY_DIGITS,
    InstalledChoices,
    installed_choices,
    models,
    pack,
)

OTHERS = {f"{number**3:0{KEY_DIGITS}x}": {"rows": number % 5, "name": "x"} for number in range(1, 2000)}


def test_a_file_returns_what_was_packed() -> None:
    content = pack(H200, OTHERS)
    assert content == pack(H200, dict(reversed(OTHERS.items())))
    found = InstalledChoices(content, H200)
    assert len(found) == len(OTHERS)
    assert {key: found.get(key) for key in OTHERS} == OTHERS
    for missing in (0, 2, 2000**3, 2**64 - 1):
        assert found.get(f"{missing:0{KEY_DIGITS}x}") is None
    assert len(content) < 10 * len(OTHERS) + 1000


@pytest.mark.parametrize(
    ("change", "is_usable"),
    [
        ({"name": "NVIDIA H100 80GB HBM3", "driver": "CUDA 12.4", "l2_bytes": 50 << 20}, True),
        ({"multiprocessors": 114}, False),
        ({"architecture": "sm_100"}, False),
        ({"shared_bytes_per_block": 100 << 10}, False),
        ({"registers_per_multiprocessor": 32768}, False),
        ({"threads_per_multiprocessor": 1536}, False),
    ],
)
def test_choices_hold_for_devices_of_equal_multiprocessors(change: dict[str, Any], is_usable: bool) -> None:
    other = dataclasses.replace(H200, **change)
    assert len(InstalledChoices(pack(H200, OTHERS), other)) == is_usable * len(OTHERS)


def test_choices_of_other_models_do_not_count() -> None:
    content = pack(H200, OTHERS).replace(models().encode(), b"0" * 64)
    assert len(InstalledChoices(content, H200)) == 0


def test_an_installed_choice_spares_the_model_and_invalid_ones_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, problem = FAMILIES["tsmttsm_mma"], TsmttsmProblem(1 << 16, 8, 8, "float64", "float64", 8, 8)
    with blockvec.option_context(cache_dir=tmp_path / "model"):
        monkeypatch.setattr(choices, "installed_choices", lambda device: None)
        chosen = choices.choose(family, problem, H200)
        ((key, record),) = choices.made_choices(H200).items()
    asked = []
    predicted = family.model.choose
    monkeypatch.setattr(family.model, "choose", lambda *given: asked.append(given) or predicted(*given))
    for number, changed in enumerate(({}, {"rows": 1 << 40}, {"unknown": 1})):
        installed = InstalledChoices(pack(H200, {key: {**record, **changed}}), H200)
        monkeypatch.setattr(choices, "installed_choices", lambda device, found=installed: found)
        with blockvec.option_context(cache_dir=tmp_path / str(number)):
            assert choices.choose(family, problem, H200) == chosen
            assert len(choices.made_choices(H200)) == len(asked) == (number > 0)
        asked.clear()


def test_sparse_products_share_a_choice_whatever_their_longest_row_is() -> None:
    family = SPARSE_FAMILIES["spmmv_csr"]
    problem = SpmmvProblem(10_000, 10_000, 70_000, 4, "float64", "float64", 4, 4)
    rows = [dataclasses.replace(problem, longest=longest) for longest in (7, 9, 5000)]
    assert len({family.alike(row) for row in rows}) == 1
    assert len({family.choose(row, H200) for row in rows}) == 1


def test_the_package_contains_choices_of_the_current_models() -> None:
    """If this fails after a change of models: run ``make prebuilt``."""
    found = installed_choices(H200)
    assert found is not None
    assert len(found) > 1000, "run make prebuilt"


def test_all_modules_that_choices_depend_on_are_hashed() -> None:
    from tests.test_project import ROOT, imports

    kernels = ROOT / "blockvec" / "kernels"
    from blockvec.kernels.tuning.installed_choices import _MODULES

    pending = [*kernels.glob("dense/*.py"), *kernels.glob("sparse/*.py"), kernels / "families.py"]
    seen = set()
    while pending:
        path = pending.pop()
        for name, _ in imports(path):
            parts = name.split(".")
            if parts[:2] != ["blockvec", "kernels"] or len(parts) < 3:
                continue
            module = kernels / f"{parts[2]}.py"
            if module.exists() and module.stem not in seen:
                seen.add(module.stem)
                pending.append(module)
    text_alone = {"source", "cache"}  # of the sources of kernels, and of records
    assert seen - text_alone <= set(_MODULES)
