"""Model matrices against closed-form spectra and against independent constructions."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from blockvec import eigsh, models
from blockvec.errors import OptionError
from blockvec.models import definition, spectra
from blockvec.models.many_body import Sector
from blockvec.operators import row_generator
from solvers.runtime import processes
from tests.pretended_gpu import pretended_gpu

SMALL = [
    "laplace1d:n=7",
    "laplace1d:n=7,periodic=true",
    "laplace2d:nx=4,ny=3",
    "laplace2d:nx=2,ny=1,periodic=true",
    "laplace3d:n=3",
    "laplace3d:nx=4,ny=3,nz=2,periodic=true",
    "stencil27:nx=4,ny=3,nz=2",
    "stencil27:n=2,periodic=true",
    "anderson:n=3,disorder=4",
    "anderson:n=5,disorder=1,dim=1,periodic=false",
    "graphene:nx=6,ny=4,disorder=0.3,seed=5",
    "graphene:nx=5,ny=3,periodic=no",
    "hofstadter:nx=6,ny=4",
    "hofstadter:nx=5,ny=4,p=2,q=7,periodic=false",
    "xxz:sites=8,up=3,delta=0.5",
    "xxz:sites=6,up=3,delta=0,periodic=false",
    "hubbard:sites=5,up=2,down=3,U=3",
    "hubbard:sites=4,up=2,down=1,U=-2,periodic=false",
    "banded:n=40,bandwidth=7,elements=5,seed=3",
    "banded:n=3,bandwidth=9,elements=2",
    "rmat:scale=5,edges=3,seed=2",
    "rmat:scale=4,edges=2,laplacian=true",
]
RINGS_OF_TWO = ["graphene:nx=2,ny=2,disorder=1", "hofstadter:nx=2,ny=1,q=1", "xxz:sites=2,up=1"]


def assert_same_spectrum(matrix: scipy.sparse.csr_array, expected: np.ndarray) -> None:
    """LAPACK's eigenvalues err by a small multiple of n u ||A||."""
    assert matrix.shape == (expected.size, expected.size)
    scale = max(np.abs(expected).max(), 1.0)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(matrix.toarray()), expected, rtol=0, atol=1e-14 * expected.size * scale
    )


# What every model promises


@pytest.mark.parametrize("spec", SMALL)
def test_every_model_is_hermitian_canonical_and_has_small_indices(spec: str) -> None:
    A = models.model(spec)
    assert isinstance(A, scipy.sparse.csr_array)
    assert abs(A - A.conj().T).max() == 0
    assert A.indices.dtype == A.indptr.dtype == np.int32
    columns_in_a_row = [A.indices[a:b] for a, b in itertools.pairwise(A.indptr)]
    assert all((np.diff(columns) > 0).all() for columns in columns_in_a_row)
    assert A.has_canonical_format


@pytest.mark.parametrize("spec", SMALL)
def test_any_range_of_rows_equals_that_slice_of_the_matrix(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = models.model(spec)
    monkeypatch.setattr(row_generator, "_PANEL_ROWS", 5)
    generator = models.generator(spec)
    assert generator.shape == whole.shape
    assert generator.dtype == whole.dtype
    n = generator.n_rows
    for start, stop in [(0, n), (0, 0), (n, n), (1, n), (n // 3, 2 * n // 3), (n - 1, n)]:
        part = generator.rows(start, stop)
        assert part.shape == (stop - start, n)
        np.testing.assert_array_equal(part.toarray(), whole.toarray()[start:stop])


LARGE = ["xxz:sites=18,up=9", "stencil27:n=40", "graphene:nx=300,ny=200,disorder=1"]
GPUS = {"pretended": pretended_gpu, "real": contextlib.nullcontext}
ON_GPUS = pytest.mark.parametrize("gpu", ["pretended", pytest.param("real", marks=pytest.mark.gpu)])


@ON_GPUS
@pytest.mark.parametrize("spec", [*SMALL, *RINGS_OF_TWO, *LARGE])
def test_rows_made_on_a_gpu_have_the_bits_of_the_hosts(
    spec: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = models.generator(spec)
    n = generator.n_rows
    with GPUS[gpu]():
        for panel, start, stop in [(n, 0, n), (max(3, n // 2), n // 3, n), (n, n, n)]:
            monkeypatch.setattr(row_generator, "_GPU_PANEL_ROWS", panel)
            made, expected = generator.rows(start, stop, device="gpu"), generator.rows(start, stop)
            assert made.shape == expected.shape
            for name in ("indptr", "indices", "data"):
                array, wanted = getattr(made, name).get(), getattr(expected, name)
                assert array.dtype == wanted.dtype
                assert array.tobytes() == wanted.tobytes()


def test_entries_may_leave_the_array_module_out() -> None:
    def two(start: int, stop: int) -> Any:
        rows = np.arange(start, stop)
        yield row_generator.Entry(rows, np.ones(len(rows)))

    def three(start: int, stop: int, xp: Any) -> Any:
        rows = xp.arange(start, stop)
        yield row_generator.Entry(rows, xp.ones(len(rows)))

    found = [models.RowGenerator(9, entries).matrix().toarray() for entries in (two, three)]
    assert np.array_equal(*found)


@ON_GPUS
@pytest.mark.parametrize("spec", ["laplace2d:nx=40,ny=30", "xxz:sites=12,up=5"])
def test_a_solve_on_a_gpu_makes_no_rows_on_the_host(
    spec: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = models.generator(spec)
    expected = eigsh(generator, k=4, which="SA", rng=0, return_eigenvectors=False)
    monkeypatch.setattr(row_generator, "_PANEL_ROWS", 0)  # an error
    with GPUS[gpu]():
        w = eigsh(generator, k=4, which="SA", rng=0, device="gpu", return_eigenvectors=False)
    np.testing.assert_allclose(w.get(), expected, rtol=0, atol=1e-12)


def test_a_long_chain_on_a_gpu_has_no_rows_unless_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = models.generator("xxz:sites=12,up=5")
    expected = eigsh(generator, k=4, which="SA", rng=0, return_eigenvectors=False)
    monkeypatch.setattr(processes, "CHAIN_ROWS", 700)
    with pretended_gpu():
        w = eigsh(generator, k=4, which="SM", rng=0, device="gpu", return_eigenvectors=False)
        assert np.abs(w.get()).max() < np.abs(expected).min()
        monkeypatch.setattr(models.RowGenerator, "rows", lambda *_, **__: pytest.fail("rows are made"))
        w = eigsh(generator, k=4, which="SA", rng=0, device="gpu", return_eigenvectors=False)
    np.testing.assert_allclose(w.get(), expected, rtol=0, atol=1e-12)


def test_rows_that_do_not_fit_a_gpu_are_refused() -> None:
    with pretended_gpu(), pytest.raises(OptionError, match=r"take .* GB, but 107 GB of memory are available"):
        models.generator("xxz:sites=40,up=20").rows(0, 10**9, device="gpu")


def test_every_listed_model_has_an_example_that_can_be_built_by_string_and_by_function() -> None:
    for name, text in models.available().items():
        example = text.rpartition("e.g. ")[2]
        assert example.startswith(f"{name}:")
        assert models.generator(example).n_rows >= 1
        function = getattr(models, name)
        assert f"parameters {next(iter(inspect.signature(function).parameters))}" in text
        assert function.__doc__


# What is refused, and how


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("laplac3d:n=4", "there is no model 'laplac3d' (did you mean 'laplace3d'?); there are laplace1d, "),
        ("", "there is no model ''; there are laplace1d, "),
        ("laplace1d", "laplace1d: no value is given for n. Example: laplace1d:n=1000"),
        (
            "laplace1d:m=4",
            "laplace1d: unknown parameter 'm'; it takes n, periodic. Example: laplace1d:n=1000",
        ),
        ("xxz:site=4,up=2", "unknown parameter 'site' (did you mean 'sites'?); it takes sites, up, "),
        ("xxz:sites=4", "xxz: no value is given for up. Example: xxz:sites=20,up=10"),
        (
            "laplace3d:nx=4,ny=3",
            "laplace3d: nz is not given; give n for equal extents, or nx, ny, nz. Example",
        ),
        ("laplace1d:n=4.5", "n='4.5' is not an integer"),
        ("laplace1d:n=4,periodic=maybe", "periodic='maybe' is not true or false"),
        ("anderson:n=4,disorder=inf", "disorder=inf is not a finite number"),
        ("anderson:n=4,disorder=1e309", "disorder=inf is not a finite number"),
        ("hubbard:sites=4,up=2,down=2,U=1e308", "elements exceed the largest float64"),
        ("laplace1d:n=4,N=5", "n is given twice"),
        ("laplace1d:n=0", "n=0; it must be at least 1"),
        ("anderson:n=4,disorder=-1", "disorder=-1.0; it is a width and must not be negative"),
        ("anderson:n=4,disorder=1,dim=4", "dim=4; it must be 1, 2 or 3"),
        ("graphene:nx=3,ny=4", "nx=3, ny=4; a periodic honeycomb needs even extents"),
        ("hofstadter:nx=4,ny=4,q=3", "nx=4, but a torus needs a multiple of the flux's q=3"),
        ("xxz:sites=4,up=5", "up=5; it must be between 0 and sites=4"),
        ("xxz:sites=1,up=1", "sites=1; it must be between 2 and 62"),
        ("rmat:scale=0", "scale=0; it must be between 1 and 40"),
        ("rmat:scale=4,a=0.9", "a=0.9, b=0.19, c=0.19; they are probabilities, of sum at most 1"),
        ("banded:n=9,bandwidth=2,elements=6", "elements=6; a row of the band has room for 5"),
        ("banded:n=10,bandwidth=20,elements=2000000000", "a row of the band has room for 10"),
        ("banded:n=1000000000,bandwidth=1000000000,elements=1000000000", "GB of memory are available"),
        (f"laplace3d:n={'9' * 5000}", "...9999999999999' is not an integer"),
        ("rmat:scale=40", "GB of memory are available"),
        ("laplace3d:n=10000000", "rows are more than 64-bit row numbers can count"),
    ],
)
def test_a_wrong_description_is_refused_with_what_exists_and_an_example(spec: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        models.model(spec)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((f"models.{make}(5)", "got a int; give a string") for make in ("model", "generator", "operator")),
        *(
            (f"models.laplace1d(n={n})", "n has more than 18 digits")
            for n in ("10**18", "-(10**18)", "10**5000")
        ),
        *(
            (f"models.anderson(n=4, disorder={width})", "disorder has more than 18 digits")
            for width in ("10**18", "-(10**18)", "10**5000")
        ),
        ("models.laplace1d(n=4.0)", r"laplace1d: n=4\.0 is not an integer\. Example"),
        ("models.laplace1d(n=True)", "n=True is not an integer"),
        ("models.laplace1d(n=None)", "n=None is not an integer"),
        ("models.laplace1d(4)", "parameters are given by name"),
        (
            "models.model('xxz:sites=50,up=25')",
            "xxz: .* take .* GB, but .* GB of memory are available; choose a smaller",
        ),
        ("models.generator('laplace1d:n=10').rows(5, 11)", "start=5, stop=11 for a matrix of 10 rows"),
    ],
)
def test_functions_refuse_what_strings_refuse(call: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        eval(call, {"models": models})


@pytest.mark.parametrize("size", [18, 4000])
def test_every_size_may_be_huge(size: int) -> None:
    for model in definition.MODELS.values():
        known = model.parse(model.example.partition(":")[2])
        for parameter in model.types:
            arguments = known | model.parse(f"{parameter}={'9' * size}")
            with contextlib.suppress(OptionError):
                assert model.matrix(arguments).shape[0] > 0, (model.name, parameter)


def test_rows_of_a_matrix_beyond_the_memory_can_be_made() -> None:
    generator = models.generator("xxz:sites=50,up=25")
    middle = generator.n_rows // 2
    part = generator.rows(middle, middle + 3)
    assert part.indices.dtype == np.int64
    energy_of_the_ferromagnet = 50 / 4  # every row sums to it: the constant vector is an eigenvector
    np.testing.assert_allclose(part.sum(axis=1), energy_of_the_ferromagnet, rtol=1e-15)


# Closed-form spectra


def closed_forms() -> Iterator[tuple[str, np.ndarray]]:
    """Yield models and their eigenvalues, which LAPACK does not know."""
    for periodic in (False, True):
        ring = f",periodic={periodic}"
        for extents in ((1,), (2,), (9,), (3, 5), (2, 2), (4, 3, 2), (3, 3, 3)):
            names = ("n",) if len(extents) == 1 else ("nx", "ny", "nz")
            sizes = ",".join(f"{name}={n}" for name, n in zip(names, extents, strict=False))
            yield (
                f"laplace{len(extents)}d:{sizes}{ring}",
                spectra.laplace_eigenvalues(extents, periodic=periodic),
            )
        for nx, ny, nz in ((1, 1, 1), (2, 3, 4), (3, 3, 3), (5, 1, 2)):
            values = spectra.stencil27_eigenvalues((nx, ny, nz), periodic=periodic)
            yield f"stencil27:nx={nx},ny={ny},nz={nz}{ring}", values
        for sites in (4, 5, 7):
            for up in range(sites + 1):
                values = spectra.xx_chain_eigenvalues(sites, up, 1.5, periodic=periodic)
                yield f"xxz:sites={sites},up={up},delta=0,j=1.5{ring}", values
        for up, down in ((1, 0), (2, 0), (3, 0), (2, 1), (2, 2), (3, 2), (5, 1)):
            values = spectra.free_electron_eigenvalues(5, up, down, 1.2, periodic=periodic)
            yield f"hubbard:sites=5,up={up},down={down},u=0,t=1.2{ring}", values
    for dim in (1, 2, 3):
        values = 0.5 * (spectra.laplace_eigenvalues([4] * dim, periodic=True) - 2 * dim)
        yield f"anderson:n=4,disorder=0,dim={dim},t=0.5", values
    for nx, ny in ((2, 2), (2, 4), (6, 4), (4, 6), (8, 2)):
        yield f"graphene:nx={nx},ny={ny},t=1.5", spectra.graphene_eigenvalues(nx, ny, 1.5)
    fluxes = (
        (4, 3, 0, 1),
        (4, 3, 0, 5),
        (6, 5, 1, 3),
        (4, 4, 1, 2),
        (2, 3, 2, 4),
        (10, 3, 2, 5),
        (5, 4, -1, 5),
    )
    for nx, ny, p, q in fluxes:
        yield (
            f"hofstadter:nx={nx},ny={ny},p={p},q={q},t=0.5",
            spectra.hofstadter_eigenvalues(nx, ny, p, q, 0.5),
        )
    yield "xxz:sites=9,up=1,delta=0.7,j=-2", spectra.magnon_eigenvalues(9, 0.7, -2.0)


@pytest.mark.parametrize(("spec", "expected"), [pytest.param(*case, id=case[0]) for case in closed_forms()])
def test_models_have_their_closed_form_spectrum(spec: str, expected: np.ndarray) -> None:
    assert_same_spectrum(models.model(spec), expected)


def test_the_laplacian_is_the_kronecker_sum_with_x_fastest() -> None:
    T = {n: scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)) for n in (2, 3, 4)}
    one = {n: scipy.sparse.eye_array(n) for n in T}
    x = functools.reduce(scipy.sparse.kron, [one[2], one[3], T[4]])
    y = functools.reduce(scipy.sparse.kron, [one[2], T[3], one[4]])
    z = functools.reduce(scipy.sparse.kron, [T[2], one[3], one[4]])
    A = models.laplace3d(nx=4, ny=3, nz=2)
    np.testing.assert_array_equal(A.toarray(), (x + y + z).toarray())


# Disorder, random bands and graphs


def test_a_random_number_belongs_to_its_row_whatever_the_range() -> None:
    whole = row_generator.uniform(0, 100, seed=3)
    assert ((whole >= -0.5) & (whole < 0.5)).all()
    assert abs(whole.mean()) < 3 / math.sqrt(12 * 100)
    for start, stop in [(0, 1), (1, 2), (3, 9), (4, 8), (50, 100), (7, 7)]:
        np.testing.assert_array_equal(row_generator.uniform(start, stop, seed=3), whole[start:stop])


def test_random_numbers_never_change_between_versions() -> None:
    np.testing.assert_array_equal(
        row_generator.uniform(0, 3, seed=0), np.random.Generator(np.random.Philox(0)).random(3) - 0.5
    )


@pytest.mark.parametrize("name", ["anderson:n=3,disorder=2", "graphene:nx=4,ny=4,disorder=2"])
def test_a_seed_gives_the_same_matrix_again_and_another_seed_another(name: str) -> None:
    first, again, other = (models.model(f"{name},seed={seed}") for seed in (7, 7, 8))
    np.testing.assert_array_equal(first.toarray(), again.toarray())
    assert (first.diagonal() != other.diagonal()).all()
    assert np.abs(first.diagonal()).max() <= 1.0


def test_a_band_is_as_wide_as_asked_for_and_has_no_seams() -> None:
    n, bandwidth = 3000, 50
    A = models.banded(n=n, bandwidth=bandwidth, elements=24).tocoo()
    distance = np.abs(A.row - A.col)
    assert distance.max() == bandwidth
    assert np.isin(np.arange(bandwidth + 1), distance).all()
    crossings = np.cumsum(np.bincount(np.minimum(A.row, A.col), minlength=n))
    crossings -= np.cumsum(np.bincount(np.maximum(A.row, A.col), minlength=n))
    assert crossings[bandwidth:-bandwidth].min() > 0


@pytest.mark.parametrize("elements", [1, 2, 9])
def test_rows_of_a_band_have_the_elements_asked_for_or_a_few_less(elements: int) -> None:
    counts = np.diff(models.banded(n=20000, bandwidth=999, elements=elements).indptr)
    assert counts.max() == elements
    assert counts.mean() > elements * (1 - elements / 1000) - 0.01


def test_the_laplacian_of_a_graph_annihilates_constants_and_is_semidefinite() -> None:
    A, L = models.rmat(scale=7, seed=5), models.rmat(scale=7, seed=5, laplacian=True)
    assert set(A.data) == {1.0}
    assert not A.diagonal().any()
    np.testing.assert_array_equal(L.toarray(), np.diag(A.sum(axis=1)) - A.toarray())
    assert not (L @ np.ones(128)).any()
    assert np.linalg.eigvalsh(L.toarray())[0] > -1e-12


# Honeycomb


def test_graphene_has_the_structure_of_the_real_file(matrices: Path) -> None:
    path = matrices / "graphene128x64.mtx"
    real = scipy.io.mmread(path, spmatrix=False).tocsr()
    A = models.graphene(nx=128, ny=64, disorder=0.1)
    np.testing.assert_array_equal(A.indptr, real.indptr)
    np.testing.assert_array_equal(A.indices, real.indices)
    hops = A.indices != np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    np.testing.assert_array_equal(A.data[hops], real.data[hops])
    np.testing.assert_allclose(np.abs(A.diagonal()).max(), np.abs(real.diagonal()).max(), rtol=1e-3)


# Sectors of bit patterns


def test_the_largest_sectors_can_be_numbered() -> None:
    sector = Sector(62, 31, "up")
    numbers = np.array([0, 1, 12345678901234567, sector.dimension - 1])
    patterns = sector.patterns(numbers)
    np.testing.assert_array_equal(np.bitwise_count(patterns), 31)
    np.testing.assert_array_equal(sector.numbers(patterns), numbers)


# Spins

S_PLUS = np.array([[0.0, 0.0], [1.0, 0.0]])  # basis: down, up
S_Z = np.diag([-0.5, 0.5])


def on_site(operator: np.ndarray, site: int, sites: int) -> np.ndarray:
    """The operator on one site of a chain; bit 0 of a state is the last factor."""
    factors = [operator if s == site else np.eye(2) for s in reversed(range(sites))]
    return functools.reduce(np.kron, factors)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize(
    ("sites", "delta", "j"), [(2, 1.0, 1.0), (3, 0.3, 2.0), (5, -1.5, -1.0), (6, 1.0, 1.0)]
)
def test_the_xxz_chain_equals_the_spin_operators_restricted_to_the_sector(
    sites: int, delta: float, j: float, periodic: bool
) -> None:
    H = np.zeros((2**sites, 2**sites))
    for i in range(sites if periodic else sites - 1):
        plus, minus = on_site(S_PLUS, i, sites), on_site(S_PLUS.T, (i + 1) % sites, sites)
        zz = on_site(S_Z, i, sites) @ on_site(S_Z, (i + 1) % sites, sites)
        H += j * ((plus @ minus + (plus @ minus).T) / 2 + delta * zz)
    for up in range(sites + 1):
        sector = [pattern for pattern in range(2**sites) if pattern.bit_count() == up]
        A = models.xxz(sites=sites, up=up, delta=delta, j=j, periodic=periodic)
        np.testing.assert_allclose(A.toarray(), H[np.ix_(sector, sector)], rtol=1e-15, atol=1e-15)


# Electrons


def annihilators(modes: int) -> list[np.ndarray]:
    """Fermion operators by Jordan and Wigner, mode 0 the leftmost factor."""
    lower, sign = np.array([[0.0, 1.0], [0.0, 0.0]]), np.diag([1.0, -1.0])  # basis: empty, full
    return [
        functools.reduce(np.kron, [sign] * mode + [lower] + [np.eye(2)] * (modes - mode - 1))
        for mode in range(modes)
    ]


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize(("sites", "u", "t"), [(2, 3.0, 1.0), (3, -2.0, 0.5), (4, 5.0, 1.0)])
def test_the_hubbard_chain_has_the_spectrum_of_the_fermion_operators(
    sites: int, u: float, t: float, periodic: bool
) -> None:
    c = annihilators(2 * sites)
    number = [operator.T @ operator for operator in c]
    H = sum(u * number[i] @ number[sites + i] for i in range(sites))
    for i, spin in itertools.product(range(sites if periodic else sites - 1), (0, sites)):
        hop = c[spin + i].T @ c[spin + (i + 1) % sites]
        H -= t * (hop + hop.T)
    n_up = sum(number[:sites]).diagonal()
    n_down = sum(number[sites:]).diagonal()
    for up, down in itertools.product(range(sites + 1), repeat=2):
        sector = np.flatnonzero((n_up == up) & (n_down == down))
        A = models.hubbard(sites=sites, up=up, down=down, u=u, t=t, periodic=periodic)
        assert_same_spectrum(A, np.linalg.eigvalsh(H[np.ix_(sector, sector)]))
