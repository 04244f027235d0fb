"""`replace` and `replace_eigsh`: which names they replace, what they pass on, and that they restore names."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from blockvec.errors import OptionError, ShapeError
from blockvec.models import model, spectra
from solvers import eigsh, expm_multiply, replace, replace_eigsh

THEIRS = spla.eigsh
ARPACK = importlib.import_module("scipy.sparse.linalg._eigen.arpack")


def is_ours(function: Any) -> bool:
    return bool(function.__module__.startswith("solvers."))


def module(name: str, monkeypatch: pytest.MonkeyPatch, **members: Any) -> ModuleType:
    """Register a module as one that was imported earlier."""
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_a_call_through_scipy_is_computed_by_blockvec() -> None:
    with replace_eigsh():
        assert spla.eigsh is spla._eigen.eigsh is ARPACK.eigsh
        assert is_ours(spla.eigsh)
        assert spla.eigsh.__name__ == THEIRS.__name__
        w = spla.eigsh(model("laplace3d:n=12"), 4, which="SA")[0]
    np.testing.assert_allclose(w, spectra.laplace_eigenvalues((12, 12, 12))[:4])  # the second is triple
    assert spla.eigsh is spla._eigen.eigsh is ARPACK.eigsh is THEIRS


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_inner_context_restores_what_the_outer_one_had_set(error: type[BaseException]) -> None:
    A = model("laplace2d:n=20")
    with replace_eigsh() as outer:
        ours = spla.eigsh
        with replace_eigsh() as inner:
            assert spla.eigsh is not ours
            spla.eigsh(A, 2)
        assert spla.eigsh is ours
        with pytest.raises(error, match="from the program"), replace_eigsh():
            raise error("from the program")
        assert spla.eigsh is ours
    assert spla.eigsh is THEIRS
    assert (outer[0].calls, inner[0].calls) == (0, 1)


def test_a_copy_of_the_name_is_replaced_only_in_modules_that_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = (module(name, monkeypatch, eigsh=THEIRS) for name in ("one", "other"))
    with replace_eigsh():
        assert one.eigsh is other.eigsh is THEIRS
    with replace_eigsh("one", other):
        assert one.eigsh is other.eigsh is spla.eigsh
    assert one.eigsh is other.eigsh is THEIRS
    with replace_eigsh("one", "one"):
        assert is_ours(one.eigsh)
    assert one.eigsh is THEIRS


@pytest.mark.parametrize(
    ("call", "name", "error", "message"),
    [
        (replace_eigsh, "numpy.linalg", OptionError, r"numpy\.linalg has none of the functions eigsh"),
        (replace_eigsh, "no_such_program", ModuleNotFoundError, "no_such_program"),
        (replace, "numpy", OptionError, "'scipy.sparse.linalg', 'cupyx.scipy.sparse.linalg', 'sklearn'"),
    ],
)
def test_a_module_without_the_name_is_refused_before_anything_is_replaced(
    call: Any, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call("scipy.sparse.linalg", name).__enter__()
    assert spla.eigsh is ARPACK.eigsh is THEIRS


def test_cupys_name_is_replaced_too_where_cupy_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module("cupy", monkeypatch)
    for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.sparse"):
        module(name, monkeypatch, __path__=[])
    A = sp.diags_array(np.arange(1.0, 31.0)).tocsr()
    cupys = module("cupyx.scipy.sparse.linalg", monkeypatch, eigsh=print)
    with replace_eigsh():
        assert cupys.eigsh.__wrapped__ is eigsh
        with replace_eigsh():
            # CuPy's values are ascending, SciPy's are not.
            ours, theirs = (f(A, 2, which="SA", return_eigenvectors=False) for f in (cupys.eigsh, spla.eigsh))
    np.testing.assert_allclose(ours, [1, 2])
    np.testing.assert_allclose(theirs, [2, 1])
    assert cupys.eigsh is print


def test_copies_under_any_name_are_found_in_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    from sklearn.decomposition import PCA, TruncatedSVD
    from sklearn.linear_model import Ridge

    X = np.random.default_rng(0).standard_normal((60, 12)) * np.geomspace(100, 1, 12)
    y = X.sum(axis=1)
    models = [PCA(3, svd_solver="arpack", random_state=0), PCA(3, svd_solver="randomized", random_state=0)]
    models.append(TruncatedSVD(3, random_state=0))
    expected = [made.fit(X).singular_values_ for made in models]
    line = Ridge(solver="sparse_cg", tol=1e-10).fit(X, y).coef_
    with replace("sklearn") as replaced:
        assert spla.svds.__module__.startswith("scipy")
        for made, values in zip(models, expected, strict=True):
            np.testing.assert_allclose(made.fit(X).singular_values_, values, rtol=1e-6)
        np.testing.assert_allclose(Ridge(solver="sparse_cg", tol=1e-10).fit(X, y).coef_, line)
    calls = {function.name.rpartition(".")[2]: function.calls for function in replaced}
    assert calls == {"svds": 1, "_randomized_svd": 2, "cg": 1, "eigsh": 0, "lobpcg": 0}
    assert "sklearn.linear_model._ridge._sparse_linalg_cg" in [place for f in replaced for place in f.places]


def test_what_blockvec_does_not_take_is_counted_and_passed_on() -> None:
    A = np.eye(4) + np.diag(range(4))
    with replace("scipy.sparse.linalg") as replaced:
        with pytest.raises(ValueError, match="`k` must be an integer satisfying"):
            spla.svds(A, k=4, solver="arpack")
        spla.svds(A, k=4, solver="propack")
        spla.expm_multiply(A.astype(object), np.ones(4))
    counts = {f.name.rpartition(".")[2]: (f.calls, f.passed_on) for f in replaced}
    assert counts["svds"] == (1, 1)
    assert counts["expm_multiply"] == (0, 1)


@pytest.mark.parametrize("name", ["eigsh", "svds"])
def test_an_error_of_the_computation_is_not_passed_on(name: str) -> None:
    A, products = model("laplace1d:n=2000"), list[int]()

    def product(x: Any) -> Any:
        products.append(1)
        if len(products) > 4:
            raise ShapeError("in the middle")
        return A @ x

    operator = spla.LinearOperator(A.shape, product, product, product, float, product)
    with replace("scipy.sparse.linalg") as replaced, pytest.raises(ShapeError, match="in the middle"):
        getattr(spla, name)(operator, 4)
    assert len(products) == 5
    assert not any(function.passed_on for function in replaced)


@pytest.mark.parametrize(
    ("which", "sigma"),
    [
        *((which, None) for which in ("LM", "SM", "LA", "SA", "BE")),
        *((which, 50.3) for which in ("LM", "LA", "SA", "BE")),
    ],
)
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("least", [1.0, -40.8])
def test_values_come_in_scipys_order(which: str, sigma: float | None, vectors: bool, least: float) -> None:
    A = sp.diags_array(np.arange(least, least + 100)).tocsr()

    def values() -> Any:
        result = spla.eigsh(A, 4, None, sigma, which, return_eigenvectors=vectors)
        return result[0] if vectors else result

    expected = values()
    with replace_eigsh():
        np.testing.assert_allclose(values(), expected)


def test_systems_and_exponentials_are_replaced_and_others_input_goes_to_the_original() -> None:
    A = sp.csr_array(model("laplace2d:n=8"))
    B = np.random.default_rng(0).standard_normal((64, 1))
    names = ("cg", "minres", "gmres")
    expected = {name: getattr(spla, name)(A, B, rtol=1e-10)[0] for name in names}
    with replace("scipy.sparse.linalg"):
        for name in names:
            function = getattr(spla, name)
            found, info = function(A, B, rtol=1e-10)
            assert (found.shape, info) == ((64,), 0)
            np.testing.assert_allclose(found, expected[name], atol=1e-7)
            many, _ = function(A, np.c_[B, B], rtol=1e-10)
            assert many.shape == (64, 2)
        assert spla.expm_multiply is not expm_multiply
        psi = spla.expm_multiply(-1j * A, B[:, 0])
        assert spla.lobpcg.__module__.startswith("solvers")
        with pytest.raises(AttributeError, match="str"):  # as in SciPy
            spla.expm_multiply(A.toarray().astype(object), "no array")
    np.testing.assert_allclose(psi, expm_multiply(-1j * A, B[:, 0]), atol=1e-12)
