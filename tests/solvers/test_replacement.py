"""`replace_eigsh`: which names it replaces, and that it restores them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from blockvec.errors import OptionError
from blockvec.models import model, spectra
from solvers import eigsh, expm_multiply, replace, replace_eigsh
from solvers.replacement import eigsh_in_scipy_order as OURS  # noqa: N812

THEIRS = spla.eigsh
ARPACK = importlib.import_module("scipy.sparse.linalg._eigen.arpack")


def module(name: str, monkeypatch: pytest.MonkeyPatch, **members: Any) -> ModuleType:
    """Register a module as one that was imported earlier."""
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_a_call_through_scipy_is_computed_by_blockvec() -> None:
    with replace_eigsh():
        assert spla.eigsh is spla._eigen.eigsh is ARPACK.eigsh is OURS
        assert spla.eigsh.__name__ == THEIRS.__name__
        w = spla.eigsh(model("laplace3d:n=12"), 4, which="SA")[0]
    np.testing.assert_allclose(w, spectra.laplace_eigenvalues((12, 12, 12))[:4])  # the second is triple
    assert spla.eigsh is spla._eigen.eigsh is ARPACK.eigsh is THEIRS


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_passes_through_and_the_names_are_restored(error: type[BaseException]) -> None:
    with pytest.raises(error, match="from the program"), replace_eigsh():
        raise error("from the program")
    assert spla.eigsh is THEIRS


def test_an_inner_context_restores_what_the_outer_one_had_set() -> None:
    with replace_eigsh():
        with replace_eigsh():
            assert spla.eigsh is OURS
        assert spla.eigsh is OURS
    assert spla.eigsh is THEIRS


def test_a_copy_of_the_name_is_replaced_only_in_modules_that_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = (module(name, monkeypatch, eigsh=THEIRS) for name in ("one", "other"))
    with replace_eigsh():
        assert one.eigsh is other.eigsh is THEIRS
    with replace_eigsh("one", other):
        assert one.eigsh is other.eigsh is OURS
    assert one.eigsh is other.eigsh is THEIRS
    with replace_eigsh("one", "one"):
        assert one.eigsh is OURS
    assert one.eigsh is THEIRS


def test_a_module_without_the_name_is_refused_before_anything_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = module("first", monkeypatch, eigsh=THEIRS)
    with pytest.raises(OptionError, match=r"numpy\.linalg has no attribute 'eigsh'"):
        replace_eigsh(first, "numpy.linalg").__enter__()
    with pytest.raises(ModuleNotFoundError, match="no_such_program"):
        replace_eigsh(first, "no_such_program").__enter__()
    assert first.eigsh is spla.eigsh is THEIRS


def test_cupys_name_is_replaced_too_where_cupy_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module("cupy", monkeypatch)
    for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.sparse"):
        module(name, monkeypatch, __path__=[])
    cupys = module("cupyx.scipy.sparse.linalg", monkeypatch, eigsh=print)
    with replace_eigsh():
        assert cupys.eigsh is eigsh
        assert spla.eigsh is OURS
        with replace_eigsh():
            assert cupys.eigsh is eigsh
    assert cupys.eigsh is print


def test_scipys_svds_keeps_the_solver_that_it_was_written_for() -> None:
    A = np.random.default_rng(0).standard_normal((40, 20))
    expected = spla.svds(A, 3, which="SM", rng=0, return_singular_vectors=False)
    with replace_eigsh():
        np.testing.assert_array_equal(
            spla.svds(A, 3, which="SM", rng=0, return_singular_vectors=False), expected
        )


def test_two_calls_with_the_same_start_vector_return_the_same_bits() -> None:
    A, v0 = model("laplace2d:n=25"), np.random.default_rng(0).uniform(-1, 1, 625)
    first, second = (eigsh(A, 3, sigma=-1e-5, v0=v0, tol=1e-4) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize(
    ("which", "sigma"),
    [
        *((which, None) for which in ("LM", "SM", "LA", "SA", "BE")),
        *((which, 50.3) for which in ("LM", "LA", "SA", "BE")),
    ],
)
@pytest.mark.parametrize("vectors", [True, False])
def test_values_come_in_scipys_order(which: str, sigma: float | None, vectors: bool) -> None:
    A = sp.diags_array(np.arange(1.0, 101.0)).tocsr()

    def values() -> Any:
        result = spla.eigsh(A, 4, None, sigma, which, return_eigenvectors=vectors)
        return result[0] if vectors else result

    expected = values()
    with replace_eigsh():
        np.testing.assert_allclose(values(), expected)


def test_limits_are_accepted_as_whole_numbers_of_type_float() -> None:
    w, _ = eigsh(model("laplace1d:n=50"), 2.0, which="SA", maxiter=1e7)
    np.testing.assert_allclose(w, eigsh(model("laplace1d:n=50"), 2, which="SA")[0], rtol=1e-12)


def test_smallest_magnitude_of_a_linear_operator_needs_no_factorisation() -> None:
    A = model("graphene:nx=18,ny=16,disorder=0.4")
    w, V = eigsh(spla.aslinearoperator(A), 4, which="SM", rng=0)
    np.testing.assert_allclose(w, eigsh(A, 4, which="SM")[0], atol=1e-12)
    assert np.linalg.norm(A @ V - V * w) < 1e-11


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
