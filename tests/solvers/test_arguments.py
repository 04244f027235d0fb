"""Arguments of a caller: as they enter a solve, and what is refused in a sentence that names the argument."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from blockvec.errors import BreakdownError, DeviceError, DTypeError, OptionError, ShapeError
from solvers import JacobiDavidsonOptions, count_eigenvalues, eigsh
from solvers.iterations.correction import REMOVED

GRID = models.model("laplace2d:n=30")
CHAIN = models.model("laplace1d:n=9")
ELSEWHERE = as_operator(CHAIN)
ELSEWHERE.__class__ = type("Elsewhere", (type(ELSEWHERE),), {"device": "cuda:0"})
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


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("kind", KINDS, ids=("0-d array", "scalar", "float32"))
def test_numbers_of_numpy_are_numbers_of_python(name: str, kind: Callable[[Any], Any]) -> None:
    asked: dict[str, Any] = {"which": "SA", "method": "lanczos", **NUMBERS}
    number = kind(NUMBERS[name]) if not (name == "rng" and kind is KINDS[2]) else np.int32(1)
    expected = eigsh(GRID, **asked)
    found = eigsh(GRID, **asked | {name: number})
    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]


@pytest.mark.parametrize(
    "dtype", [">f8", ">f4", ">c16", ">c8", "float16", "longdouble", "clongdouble", ">i4", "bool"]
)
def test_matrices_of_other_element_types_are_converted_as_scipy_does(dtype: str) -> None:
    dense, native = GRID[:200, :200].toarray(), np.dtype(dtype).newbyteorder("=")
    A, M, v0 = dense.astype(dtype), np.eye(200).astype(dtype), np.arange(1, 201).astype(dtype)
    like = native if native.char in "fdFD" else np.dtype("D" if native.kind == "c" else "d")
    expected, found = (eigsh(given, 3, which="SA", rng=0) for given in (A.astype(like), A))
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]
    values = [eigsh(dense, 3, M=mass, sigma=0.1, rng=0)[0] for mass in (M, M.astype(like))]
    assert np.allclose(*values, rtol=1e-10)
    counts = [count_eigenvalues(given, 0.0, 1.0).value for given in (A, A.astype(like))]
    assert counts[0] == counts[1]
    if native.kind != "c":
        values = [eigsh(dense, 3, which="SA", v0=start)[0] for start in (v0, None)]
        assert np.allclose(*values, atol=1e-12)
    operator = as_operator(A)
    assert operator.dtype == like
    assert np.allclose((operator @ np.eye(200, 2, dtype=like)).array, A.astype(like)[:, :2])


INSIDE: dict[str, Any] = {"interval": (1.0, 2.0), "k": None, "which": "LM"}
NOT_INSIDE = {"sigma": 1.0, "which": "SA", "Minv": lambda X: X, "maxiter": 3, "mode": "cayley"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preconditioner": np.eye(9), "method": "lanczos"}, "preconditioner: method 'lanczos' takes none"),
        ({"jd_options": JacobiDavidsonOptions(), "method": "dense"}, "jd_options: method 'dense' takes none"),
        ({"preconditioner": 3}, "preconditioner: got 3; give a matrix"),
        ({"method": "jd", "sigma": 1.0, "OPinv": np.eye(9)}, "OPinv: Jacobi-Davidson applies no inverse"),
        ({"method": "jd", "sigma": 1.0, "mode": "cayley"}, "mode: got 'cayley'"),
        ({"method": "jd", "sigma": 1.0}, "which: got 'SA' with sigma"),
        ({"method": "jd", "sigma": np.inf, "which": "LM"}, "sigma: got inf; give a finite number"),
        ({"method": "magic"}, "method: got 'magic'; give one of 'auto', 'lanczos', 'filter', 'jd', 'dense'"),
        ({"which": "XX"}, "which: got 'XX'; give one of 'LA', 'SA', 'LM', 'BE', 'SM'"),
        ({"k": 0}, "k: got 0; give an integer from 1 to 9"),
        ({"k": 10}, "k: got 10; give an integer from 1 to 9"),
        ({"k": 2.5}, "k: got 2.5; give an integer"),
        ({"tol": -1}, "tol: got -1"),
        ({"tol": np.nan}, "tol: got nan"),
        ({"maxiter": 0}, "maxiter: got 0"),
        ({"ncv": 3, "block_size": 2}, "ncv: got 3; k = 3 and block_size = 2 need at least 5"),
        ({"block_size": 0}, "block_size: got 0"),
        ({"norm": 0}, "norm: got 0; give a positive number"),
        ({"time_limit": -1}, "time_limit: got -1"),
        ({"convergence": "loose"}, "convergence: got 'loose'"),
        ({"on_unconverged": "shrug"}, "on_unconverged: got 'shrug'"),
        ({"verify": "maybe"}, "verify: got 'maybe'"),
        ({"v0": np.zeros(9)}, "v0 is zero"),
        ({"v0": np.full(9, np.nan)}, "v0 holds NaN or Inf"),
        ({"method": "dense", "checkpoint": "dense.npz"}, "checkpoint: not available with method='dense'"),
        ({"sigma": "x"}, "sigma: got 'x'; give a real number"),
        ({"sigma": 1j}, "sigma: got 1j; give a real number"),
        ({"sigma": np.nan}, "sigma: got nan; give a finite number"),
        ({"tol": "x"}, "tol: got 'x'; give a real number"),
        ({"norm": "x"}, "norm: got 'x'; give a real number"),
        ({"time_limit": "x"}, "time_limit: got 'x'; give a real number"),
        ({"callback": 3}, "callback: got 3; give a function"),
        ({"rng": "x"}, "rng: got 'x'; give None, an integer of at least 0, or a Generator"),
        ({"k": "3"}, "k: got '3'; give an integer"),
        ({"ncv": 2.5}, "ncv: got 2.5; give an integer"),
        ({"block_size": "x"}, "block_size: got 'x'; give an integer"),
        ({"maxiter": 1.5}, "maxiter: got 1.5; give an integer"),
        ({"which": None}, "which: got None; give one of"),
        ({"v0": "x"}, "v0: got a str"),
        ({"v0": np.ones((9, 1, 1))}, "v0: got 3 dimensions"),
        ({"v0": np.full(9, np.inf)}, "v0 holds NaN or Inf"),
        ({"orthogonal_to": np.full(9, np.nan)}, "orthogonal_to holds NaN or Inf"),
        ({"preconditioner": np.eye(3)}, "preconditioner has shape (3, 3) but A has (9, 9)"),
        ({"M": np.eye(3)}, "M is 3 x 3 but A is 9 x 9"),
        ({"M": "x"}, "M is a str"),
        ({"M": np.diag([np.nan, *[1.0] * 8])}, "M holds NaN or Inf"),
        ({"A": "x"}, "A is a str"),
        ({"A": None}, "A is a NoneType"),
        ({"A": np.ones(9)}, "A has 1 dimensions"),
        ({"A": np.full((9, 9), np.nan)}, "A returned NaN or Inf"),
        ({"A": sp.csr_array(np.diag([np.inf, *[1.0] * 8]))}, "A returned NaN or Inf"),
        ({"A": lambda X: X}, "A is a function; give shape="),
        ({"v0": np.ones(8)}, "v0 has 8 rows but A is 9 x 9"),
        ({"v0": np.ones(9, complex)}, "v0 is complex but A is real"),
        ({"orthogonal_to": np.eye(9)}, "orthogonal_to has 9 columns for 9 rows"),
        ({"A": sp.csr_array((9, 8))}, "A is 9 x 8"),
        *(
            ({"A": lambda X, Y=Y: Y, "shape": (625, 625)}, "returned shape")
            for Y in (np.ones((5, 2)), "x", None)
        ),
        # around a shift
        ({"Minv": np.eye(9)}, "Minv: is the inverse of M"),
        ({"OPinv": np.eye(9)}, "OPinv: is the inverse of A - sigma M; give sigma"),
        ({"mode": "buckling", "M": np.eye(9)}, "mode: got 'buckling', a transformation"),
        ({"mode": "magic"}, "mode: got 'magic'"),
        ({"sigma": 1.5, "which": "SM", "OPinv": np.eye(9)}, "OPinv: 'SM' with sigma"),
        ({"sigma": 1.5, "which": "SM", "method": "jd"}, "which: got 'SM' with sigma"),
        ({"sigma": 0.0, "which": "LM", "M": np.eye(9), "mode": "buckling"}, "sigma: got 0"),
        ({"sigma": 0.0, "which": "LM", "mode": "cayley"}, "sigma: got 0"),
        ({"sigma": 1.05, "which": "LM", "OPinv": np.eye(3)}, "OPinv has shape (3, 3) but A has (9, 9)"),
        ({"sigma": 1.05, "which": "LM", "OPinv": "x"}, "OPinv: got 'x'; give a linear operator"),
        # in an interval
        *(
            ({"interval": ends, "k": None, "which": "LM"}, "interval: got")
            for ends in ((2.0, 1.0), (np.nan, 1.0), 3.0, (np.inf, np.inf))
        ),
        *(
            (INSIDE | {name: value}, f"{name}: all eigenvalues in the interval")
            for name, value in NOT_INSIDE.items()
        ),
        (INSIDE | {"method": "jd"}, "method: got 'jd' with an interval"),
        # numbers of NumPy that are none, and objects
        *(
            ({name: value}, f"{name}: got")
            for name, value in {"k": np.float32(2.5), "ncv": np.array([30]), "sigma": np.ones(2)}.items()
        ),
        ({"A": np.eye(9).astype(object)}, "A.astype('float64')"),
        # of other devices
        ({"device": "elsewhere"}, "is not known; give 'cpu', 'gpu' or 'cuda:0'"),
        ({"device": np.ones(2)}, "is not known; give 'cpu', 'gpu' or 'cuda:0'"),
        ({"preconditioner": ELSEWHERE}, "preconditioner is on cuda:0 but A is on cpu"),
        ({"A": ELSEWHERE, "sigma": 1.0, "method": "lanczos", "which": "LM"}, "A: is on cuda:0, where a fac"),
        ({"A": ELSEWHERE, "M": np.eye(9)}, "cuda:0"),
        ({"A": np.triu(np.ones((9, 9)))}, "A is not Hermitian"),
        # of Jacobi-Davidson
        ({"jd": {"correction": "magic"}}, "correction: got 'magic'"),
        ({"jd": {"inner_steps": 0}}, "inner_steps: got 0"),
        ({"jd": {"min_basis": 2}}, "min_basis: got 2"),
        *(({"jd": {name: 1}}, f"{name}: no longer an option") for name in REMOVED),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_an_option_that_cannot_be_used_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    def call(jd: Any = None, **arguments: Any) -> None:
        more = {} if jd is None else {"jd_options": JacobiDavidsonOptions(**jd), "method": "jd"}
        eigsh(**{"A": CHAIN, "k": 3, "which": "SA", **arguments, **more})

    with pytest.raises((OptionError, ShapeError, DTypeError, DeviceError, BreakdownError)) as caught:
        call(**options)
    assert message in str(caught.value)
    assert "no longer" not in message or re.search(r"; (give|vectors are) .*\.$", str(caught.value))


def test_a_matrix_that_is_not_hermitian_is_refused(real_matrix: Callable[[str], Any]) -> None:
    with pytest.raises(OptionError, match="A is not Hermitian"):
        eigsh(real_matrix("qc324"), 3)
    lopsided = sp.csr_array(np.triu(np.ones((30, 30))))
    with pytest.raises(OptionError, match="A is not Hermitian"):
        eigsh(lopsided, 3)
    eigsh(lopsided, 3, check_hermitian=False, on_unconverged="return")  # asked for: no check, no promise


def test_too_much_memory_is_an_error_before_it_is_taken() -> None:
    n = 10**10

    def never(X: np.ndarray) -> np.ndarray:
        raise AssertionError("applied")

    with pytest.raises(
        OptionError, match=r"the call needs .* GB on cpu for a basis of ncv = 64 .* lower ncv or k"
    ):
        eigsh(never, 6, shape=(n, n), check_hermitian=False)


CALLS = """
from typing import Any, assert_type
from blockvec import eigsh
from solvers import EigenResult

def call(A: Any, flag: bool) -> None:
    assert_type(eigsh(A, 4, return_info=True, tol=1e-6), EigenResult)
    assert_type(eigsh(A, 3, A, 0.5, "LM", rng=0), tuple[Any, Any])
    assert_type(eigsh(A, return_eigenvectors=False), Any)
    assert_type(eigsh(A, return_info=flag), Any)
    eigsh(A, metod="lanczos")  # type: ignore[call-overload]
    eigsh(A, method="lanzcos")  # type: ignore[call-overload]
"""


@pytest.mark.slow
def test_a_type_checker_knows_what_eigsh_returns_and_refuses_misspelt_options(
    tmp_path: Path, root: Path
) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "calls.py")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
