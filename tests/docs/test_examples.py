"""The examples of the gallery: each runs as the notebook that its page offers, and its numbers are right."""

from __future__ import annotations

import ast
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special

from blockvec.models import spectra

plt = pytest.importorskip("matplotlib.pyplot", reason="the examples draw: pip install 'blockvec[examples]'")
converter = pytest.importorskip("sphinx_gallery.notebook", reason="notebooks: pip install 'blockvec[docs]'")

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SCRIPTS = {path.stem: path for path in sorted(EXAMPLES.rglob("*.py"))}
OPTIONAL = {"pyamg", "skfem", "sklearn", "torch"}

Run = Callable[[str], SimpleNamespace]


def cells(script: Path, folder: Path) -> list[dict[str, str]]:
    """Convert an example to a notebook, as the build of the documentation does, and read its cells."""
    copy = Path(shutil.copy(script, folder))
    converter.python_to_jupyter_cli([str(copy)])
    notebook = json.loads(copy.with_suffix(".ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [{"type": cell["cell_type"], "text": "".join(cell["source"])} for cell in notebook["cells"]]


def code(script: Path, folder: Path) -> list[str]:
    return [cell["text"] for cell in cells(script, folder) if cell["type"] == "code"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the cells of an example's notebook in order and return their names; pictures stay in memory."""

    def run_cells(name: str) -> SimpleNamespace:
        names: dict[str, object] = {}
        for cell in code(SCRIPTS[name], tmp_path):
            try:
                exec(compile(cell, f"{name}.ipynb", "exec"), names)
            except ModuleNotFoundError as error:
                if error.name not in OPTIONAL:
                    raise
                pytest.skip(f"{error.name} is not installed: pip install 'blockvec[examples]'")
        assert plt.get_fignums(), f"{name} draws no picture"
        plt.close("all")
        return SimpleNamespace(**names)

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    logging.getLogger("skfem").setLevel(logging.WARNING)
    return run_cells


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_notebook_has_the_title_and_exactly_the_code_of_its_script(script: Path, tmp_path: Path) -> None:
    source = script.read_text(encoding="utf-8")
    title = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
    assert cells(script, tmp_path)[0]["text"].strip().startswith(f"# {title}\n")
    whole = ast.parse(source)
    statements = ast.Module(whole.body[1:], [])
    assert ast.dump(ast.parse("\n".join(code(script, tmp_path)))) == ast.dump(statements)


def test_every_example_is_run_by_a_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert not [name for name in SCRIPTS if f'run("{name}")' not in tests]


@pytest.mark.slow
def test_the_frequencies_of_a_drum_are_zeros_of_bessel_functions(run: Run) -> None:
    drum = run("drum")
    zeros = [np.repeat(scipy.special.jn_zeros(m, 4), 1 if m == 0 else 2) for m in range(8)]
    exact = np.sort(np.concatenate(zeros))[:12] ** 2
    np.testing.assert_allclose(drum.result.eigenvalues, exact, rtol=3e-4)  # the error of the elements
    modes = drum.result.eigenvectors
    np.testing.assert_allclose(modes.T @ (drum.M @ modes), np.eye(12), atol=1e-12)


@pytest.mark.slow
def test_a_free_plate_has_three_rigid_motions_and_the_frequencies_of_leissa(run: Run) -> None:
    plate = run("plate")
    assert np.count_nonzero(plate.w < 1e-6) == 3
    # Leissa, J. Sound Vib. 31 (1973) 257, Poisson's ratio 0.3: upper bounds, by a Ritz method, within 1.1 %.
    bounds = np.array([13.489, 19.789, 24.432, 35.024, 35.024, 61.526])
    ratio = plate.frequencies[3:9] / bounds
    assert np.all((ratio > 0.989) & (ratio < 1))


@pytest.mark.slow
def test_multigrid_saves_products_and_leaves_the_eigenvalues(run: Run) -> None:
    box = run("multigrid")
    exact = spectra.laplace_eigenvalues((20, 20, 20))[:10]
    for result in (box.plain, box.preconditioned):
        np.testing.assert_allclose(result.eigenvalues, exact, atol=1e-9)
    assert box.preconditioned.info["operator_columns"] < box.plain.info["operator_columns"] / 4


def test_graphene_has_its_density_of_states_and_a_zero_mode_on_one_sublattice(run: Run) -> None:
    sheet = run("graphene")
    exact = spectra.graphene_eigenvalues(sheet.nx, sheet.ny)
    for low, high in ((-3.1, 3.1), (-0.5, 0.5), (0.5, 1.5), (1.5, 3.1)):
        inside = (sheet.energies > low) & (sheet.energies < high)
        weight = -np.trapezoid(sheet.density[inside], sheet.energies[inside])  # energies descend
        assert weight == pytest.approx(np.mean((exact > low) & (exact < high)), abs=0.01)
    np.testing.assert_allclose(sheet.w, -sheet.w[::-1], atol=1e-9)
    assert abs(sheet.w[2]) < 1e-9
    same = (sheet.x + sheet.y) % 2 == (20 + 20) % 2
    assert np.linalg.norm(sheet.zero_mode[same]) < 1e-8  # nothing on the sublattice of the missing atom
