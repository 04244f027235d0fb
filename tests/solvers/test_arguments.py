"""Numbers, element types and callbacks of a caller, as they enter a solve."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec.errors import DTypeError, OptionError
from blockvec.models import model
from solvers import count_eigenvalues, eigsh

GRID = model("laplace2d:n=30")
# Ways to write a number: each has to lead to the same bits.
KINDS: list[Callable[[Any], Any]] = [
    np.asarray,
    lambda x: np.asarray(x)[()],
    lambda x: np.float32(x) if np.float32(x) == x else x,
]
NUMBERS: dict[str, Any] = {
    "k": 4,
    "ncv": 30,
    "maxiter": 300,
    "tol": 0.0625,
    "rng": 1,
    "block_size": 2,
    "norm": 8.0,
    "time_limit": 64.0,
    "return_eigenvectors": True,
    "check_hermitian": True,
    "progress": False,
}


def true_of_numpy(state: Any) -> Any:
    """Stop at once, with a result of NumPy's type."""
    return state.residuals.max() < np.inf


@pytest.mark.parametrize(
    "options",
    [
        {"which": "SA", "method": "lanczos"},
        {"which": "SA", "method": "filter"},
        {"which": "BE", "method": "lanczos"},
        {"sigma": 0.0, "method": "jd", "k": 2},
        {"sigma": 0.0},  # perhaps solved as an end of the spectrum
        {"sigma": 2.3, "maxiter": 50},
        {"interval": (0.5, 0.6), "k": None},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*let the callback stop later:solvers.ConvergenceWarning")
def test_a_callback_that_returns_true_of_numpy_stops_the_run(options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"k": 6, "rng": 0, "on_unconverged": "return", **options}
    stopped = eigsh(GRID, **asked, callback=true_of_numpy, return_info=True)
    assert stopped.info["stopped"] == "callback"
    known = eigsh(GRID, **asked, callback=lambda state: bool(true_of_numpy(state)), return_info=True)
    assert stopped.eigenvalues.tobytes() == known.eigenvalues.tobytes()
    assert len(stopped.history) == len(known.history)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("kind", KINDS, ids=("0-d array", "scalar", "float32"))
def test_numbers_of_numpy_are_numbers_of_python(name: str, kind: Callable[[Any], Any]) -> None:
    asked: dict[str, Any] = {"which": "SA", "method": "lanczos", **NUMBERS}
    number = kind(NUMBERS[name]) if not (name == "rng" and kind is KINDS[2]) else np.int32(1)
    expected = eigsh(GRID, **asked)
    found = eigsh(GRID, **asked | {name: number})
    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]


def test_numbers_that_are_none_are_still_refused() -> None:
    for name, number in {"k": np.float32(2.5), "ncv": np.array([30]), "sigma": np.array([1.0, 2.0])}.items():
        with pytest.raises(OptionError, match=f"^{name}: got"):
            eigsh(GRID, **{name: number})


@pytest.mark.parametrize(
    "dtype", [">f8", ">f4", ">c16", ">c8", "float16", "longdouble", "clongdouble", ">i4", "bool"]
)
def test_matrices_of_other_element_types_are_converted_as_scipy_does(dtype: str) -> None:
    dense = GRID[:200, :200].toarray()
    A, M = dense.astype(dtype), np.eye(200).astype(dtype)
    native = np.dtype(dtype).newbyteorder("=")
    like = native if native.char in "fdFD" else np.dtype("D" if native.kind == "c" else "d")
    expected = eigsh(A.astype(like), 3, which="SA", rng=0)
    found = eigsh(A, 3, which="SA", rng=0)
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]
    pair, start = eigsh(dense, 3, M=M, sigma=0.1, rng=0), np.arange(1, 201).astype(dtype)
    assert np.allclose(pair[0], eigsh(dense, 3, M=M.astype(like), sigma=0.1, rng=0)[0], rtol=1e-10)
    assert count_eigenvalues(A, 0.0, 1.0).value == count_eigenvalues(A.astype(like), 0.0, 1.0).value
    if native.kind != "c":
        assert np.allclose(
            eigsh(dense, 3, which="SA", v0=start)[0], eigsh(dense, 3, which="SA")[0], atol=1e-12
        )
    operator = blockvec.as_operator(A)
    assert operator.dtype == like
    assert np.allclose((operator @ np.eye(200, 2, dtype=like)).array, A.astype(like)[:, :2])


def test_arrays_of_objects_are_refused_with_a_remedy_that_works() -> None:
    A = GRID[:60, :60].toarray().astype(object)
    with pytest.raises(DTypeError, match=re.escape("A.astype('float64')")):
        eigsh(A, 3)
    assert eigsh(A.astype("float64"), 3)[0].shape == (3,)
