"""The examples of the gallery: each runs as the notebook that its page offers, and its numbers are right."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
import scipy.special

from blockvec import eigsh
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
                package = (error.name or "").partition(".")[0]
                if package not in OPTIONAL:
                    raise
                pytest.skip(f"{package} is not installed: pip install 'blockvec[examples]'")
        assert plt.get_fignums(), f"{name} draws no picture"
        plt.close("all")
        return SimpleNamespace(**names)

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
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


def test_the_modes_of_a_bridge_from_files_are_those_of_lapack(run: Run) -> None:
    bridge = run("bridge")
    exact = scipy.linalg.eigh(bridge.K.toarray(), bridge.M.toarray(), eigvals_only=True)
    np.testing.assert_allclose(bridge.w, exact[:6], rtol=1e-9)
    assert bridge.M.diagonal().sum() == pytest.approx(  # the bars' mass, less that of the fixed motions
        2 * bridge.mass_density * bridge.area * bridge.length.sum(),
        rel=0.03,
    )


def test_graphene_has_its_density_of_states_and_a_zero_mode_on_one_sublattice(run: Run) -> None:
    sheet = run("graphene")
    exact, values = spectra.graphene_eigenvalues(160, 160), sheet.density(sheet.energies)
    for low, high in ((-3.1, 3.1), (-0.5, 0.5), (0.5, 1.5), (1.5, 3.1)):
        inside = (sheet.energies > low) & (sheet.energies < high)
        weight = np.trapezoid(values[inside], sheet.energies[inside])
        assert weight == pytest.approx(np.mean((exact > low) & (exact < high)), abs=0.01)
    near, far = sheet.local(0.0)
    assert near > 5 * far
    np.testing.assert_allclose(sheet.w, -sheet.w[::-1], atol=1e-9)
    assert abs(sheet.w[2]) < 1e-9
    same = (sheet.x + sheet.y) % 2 == (20 + 20) % 2
    assert np.linalg.norm(sheet.zero_mode[same]) < 1e-8  # nothing on the sublattice of the missing atom


@pytest.mark.slow
def test_measurements_of_a_field_tell_less_and_less(run: Run) -> None:
    field = run("entropy")
    sign, exact = np.linalg.slogdet(field.Q.toarray())
    assert (sign, field.before.sign, field.before.method) == (1, 1, "factors")
    assert field.before.value == pytest.approx(exact, rel=1e-12)
    assert abs(field.estimate.value - exact) < 4 * field.estimate.error
    gains = np.diff(field.information) / np.diff(field.counts)
    assert (np.diff(gains) < 0).all()


@pytest.mark.slow
def test_the_spin_chain_has_the_levels_of_free_fermions_and_the_degeneracy_of_two_patterns(run: Run) -> None:
    chain = run("spin_chain")
    for sites, levels in chain.levels.items():
        exact = spectra.xx_chain_eigenvalues(sites, sites // 2)[:4]
        np.testing.assert_allclose(levels[0], exact, atol=1e-8)
        splitting, gap = levels[-1][1] - levels[-1][0], levels[-1][2] - levels[-1][0]
        assert splitting < 0.1 * gap
    heisenberg = chain.levels[8][list(chain.deltas).index(1.0)][0]
    assert heisenberg == pytest.approx(-3.651093408937176, abs=1e-8)  # ring of eight spins


@pytest.mark.slow
def test_states_of_the_anderson_model_shrink_from_a_third_of_the_crystal_to_few_sites(run: Run) -> None:
    crystal = run("anderson")
    for X in crystal.states:
        np.testing.assert_allclose(X.T @ X, np.eye(16), atol=1e-12)
    mean = crystal.participation.mean(axis=1)
    assert np.all(np.diff(mean) < 0)
    assert mean[0] == pytest.approx(crystal.n**3 / 3, rel=0.05)
    assert mean[-1] < 20
    nearest = scipy.sparse.linalg.eigsh(crystal.A, 16, sigma=0, return_eigenvectors=False)
    np.testing.assert_allclose(crystal.energies, np.sort(nearest), atol=1e-9)


@pytest.mark.slow
def test_the_butterfly_has_the_spectra_of_harper_and_its_lattice_a_state_at_the_edge(run: Run) -> None:
    butterfly = run("butterfly")
    for p, energies in zip(butterfly.fluxes, butterfly.energies, strict=True):
        exact = spectra.hofstadter_eigenvalues(butterfly.nx, butterfly.ny, p, butterfly.nx)
        np.testing.assert_allclose(energies, exact, atol=1e-12)
    assert butterfly.on_edge[5:-5, 5:-5].sum() < 0.01


@pytest.mark.slow
def test_the_energies_of_a_billiard_are_as_dense_as_weyl_says(run: Run) -> None:
    stadium = run("billiard")
    area, perimeter = np.pi + 4, 2 * np.pi + 4
    count = [area * E / (4 * np.pi) - perimeter * np.sqrt(E) / (4 * np.pi) for E in stadium.E[[0, -1]]]
    assert count[1] - count[0] == pytest.approx(39, abs=4)  # the fluctuations of a chaotic spectrum are small
    R = stadium.A @ stadium.X - stadium.X * stadium.E
    assert np.linalg.norm(R, axis=0).max() < 1e-10 * 8 * stadium.points**2


@pytest.mark.slow
def test_the_fiedler_vector_cuts_few_edges(run: Run) -> None:
    graph = run("partition")
    exact = np.sort(scipy.sparse.linalg.eigsh(graph.L, 4, sigma=-0.01, return_eigenvectors=False))
    assert exact[1] > 1e-6  # the graph is connected
    np.testing.assert_allclose(graph.w, exact[1:4], atol=1e-6)
    least = graph.w[0] * graph.n / 4  # no cut into halves has fewer edges
    assert least <= graph.is_cut.sum() < 0.01 * len(graph.edges)
    assert graph.half.sum() == graph.n // 2


@pytest.mark.slow
def test_clusters_of_digits_agree_with_the_labels(run: Run) -> None:
    images = run("digits")
    exact = scipy.sparse.linalg.eigsh(images.L, 10, sigma=-0.01, return_eigenvectors=False)
    np.testing.assert_allclose(images.w, np.sort(exact), atol=1e-7)
    assert images.score > 0.7


@pytest.mark.slow
def test_principal_components_are_singular_values_of_the_centred_matrix(run: Run) -> None:
    genes = run("pca")
    dense = genes.G.toarray()
    exact = np.linalg.svd(dense - dense.mean(axis=0), compute_uv=False)[:4] ** 2
    np.testing.assert_allclose(genes.s[::-1] ** 2, exact, rtol=1e-8)
    centres = np.array([rows.mean(axis=0) for rows in np.split(genes.scores[:450, :2], 3)])
    distances = np.linalg.norm(genes.scores[:450, None, :2] - centres, axis=2)
    assert np.array_equal(distances.argmin(axis=1), np.repeat(range(3), 150))


@pytest.mark.slow
def test_training_ends_at_the_edge_of_stability_with_the_eigenvalues_of_the_dense_hessian(run: Run) -> None:
    network = run("hessian")
    largest = np.array(network.sharpness)[-20:, 1]
    assert largest.mean() == pytest.approx(2 / network.rate, rel=0.05)
    dense = network.hessian(network.p)(np.eye(network.p.size))
    np.testing.assert_allclose(dense, dense.T, atol=1e-13)
    np.testing.assert_allclose(network.w, np.linalg.eigvalsh(dense)[-2:], rtol=1e-4)
    if hasattr(network, "w_torch"):
        np.testing.assert_allclose(network.w_torch, network.w, rtol=1e-3)


@pytest.mark.slow
def test_the_lobpcg_of_the_tutorial_reaches_the_eigenvalues_that_eigsh_computes(run: Run) -> None:
    tutorial = run("lobpcg")
    exact = eigsh(tutorial.A, k=8, which="SA", return_eigenvectors=False, rng=1)
    np.testing.assert_allclose(tutorial.values, exact, atol=1e-12)
    assert tutorial.history[-1].max() < 1e-12
    assert tutorial.plain[-1].max() < 0.1 * tutorial.plain[0].max()


@pytest.mark.slow
def test_documents_of_a_topic_are_neighbours_among_singular_vectors(run: Run) -> None:
    corpus = run("topics")
    exact = np.linalg.svd(corpus.A.toarray(), compute_uv=False)[:12]
    np.testing.assert_allclose(corpus.s[::-1], exact, rtol=1e-12)
    rows = corpus.u[:, -4:] * corpus.s[-4:]
    centres = np.array([rows[corpus.topic == number].mean(axis=0) for number in range(4)])
    nearest = np.linalg.norm(rows[:, None, :] - centres, axis=2).argmin(axis=1)
    assert (nearest == corpus.topic).mean() > 0.99


def test_a_packet_keeps_its_norm_and_a_part_of_it_passes_each_wall(run: Run) -> None:
    walls = run("tunnelling")
    np.testing.assert_allclose(walls.norms, 1, rtol=1e-12)
    assert all(0.02 < share < 0.5 for share in walls.through)
    before = sum(film[1][:, 84:].sum() for film in walls.films)
    assert before < sum(walls.through)
    for film in walls.films:  # the walls and the packet are the same seen from above and from below
        np.testing.assert_allclose(film[-1][10], film[-1][86], atol=2e-4)
