"""`replace`: blockvec's functions under the names of other libraries, for programs that cannot be edited."""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse.linalg
from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec.errors import OptionError

from .eigsh import eigsh
from .functions.expm import expm_multiply
from .linear.front import cg, gmres, minres
from .locally_optimal import lobpcg
from .singular.triplets import svds

SCIPY_ARGUMENTS = signature(scipy_eigsh).parameters.keys()
LOBPCG_ROWS = 5  # rows per column, below which SciPy's LOBPCG warns that dense LAPACK answers


@wraps(eigsh)  # programs read the function's name
def eigsh_in_scipy_order(*args: Any, **options: Any) -> Any:
    """Call `eigsh`; without vectors, values for "SA" and "SM" are descending, which programs rely on.

    For k >= n SciPy's function answers: dense LAPACK with a warning, or the TypeError that programs expect.
    """
    given = signature(eigsh).bind(*args, **options).arguments
    rows = getattr(given["A"], "shape", (math.inf,))[0]
    if given.keys() <= SCIPY_ARGUMENTS and (given.get("k") or 6) >= rows > 0:
        return scipy_eigsh(*args, **options)
    result = eigsh(*args, **options)
    is_values_alone = not (given.get("return_eigenvectors", True) or given.get("return_info", False))
    is_descending = is_values_alone and given.get("sigma") is None and given.get("which") in ("SA", "SM")
    return result[::-1] if is_descending else result


@wraps(svds)
def svds_in_scipy_order(*args: Any, **options: Any) -> Any:
    """Call `svds` for arguments that SciPy's function accepts; others raise the exceptions that it raises."""
    given = signature(svds).bind(*args, **options).arguments
    _check_as_scipy(**given)
    if given.get("solver") == "lobpcg" and min(given["A"].shape) < LOBPCG_ROWS * given.get("k", 6):
        rows = min(given["A"].shape)
        warnings.warn(f"The problem size {rows} is small for k={given.get('k', 6)}.", stacklevel=2)
    if isinstance(given.get("random_state"), np.random.RandomState):
        given["random_state"] = np.random.default_rng(given["random_state"])
    given["k"] = int(given.get("k", 6))
    if isinstance(given.get("which"), str):
        given["which"] = given["which"].upper()
    return svds(**given)


def _check_as_scipy(
    A: Any,
    k: Any = 6,
    ncv: Any = None,
    tol: Any = 0,
    which: Any = "LM",
    v0: Any = None,
    maxiter: Any = None,
    return_singular_vectors: Any = True,
    solver: Any = "arpack",
    **others: Any,
) -> None:
    """Raise what SciPy's function raises, with the beginning of its messages, which programs may match."""
    from scipy.sparse.linalg import aslinearoperator

    shape = aslinearoperator(A).shape  # TypeError for what is no matrix
    if not np.issubdtype(np.dtype(getattr(A, "dtype", float) or float), np.number):
        raise ValueError("`A` must be of numeric data type.")
    if not all(shape):
        raise ValueError("`A` must not be empty.")
    names = ("auto", "lanczos", "randomized", "dense", "arpack", "lobpcg", "propack")
    if not isinstance(solver, str) or solver.lower() not in names:
        raise ValueError(f"solver must be one of {set(names)}.")
    most = min(shape) - (solver in ("arpack", "lobpcg"))
    if int(k) != k or not 0 < k <= most:
        raise ValueError(f"`k` must be an integer satisfying `0 < k < min(A.shape)`; got {k!r}.")
    if ncv is not None and solver == "arpack" and (int(ncv) != ncv or not k < ncv < min(shape)):
        raise ValueError(f"`ncv` must be an integer satisfying `k < ncv < min(A.shape)`; got {ncv!r}.")
    if tol < 0 or not np.isfinite(tol):
        raise ValueError("`tol` must be a non-negative floating point value.")
    if str(which).upper() not in ("LM", "SM"):
        raise ValueError(f"`which` must be in ('LM', 'SM'); got {which!r}.")
    if v0 is not None:
        start = np.atleast_1d(v0)
        if start.dtype.kind not in "fc":
            raise ValueError("`v0` must be of floating or complex floating data type.")
        wanted = (shape[0],) if solver == "propack" else (min(shape),)
        if start.shape != wanted:
            raise ValueError(f"`v0` must have shape {wanted}; got {start.shape}.")
    if maxiter is not None and (int(maxiter) != maxiter or maxiter <= 0):
        raise ValueError("`maxiter` must be a positive integer.")
    if return_singular_vectors not in (True, False, "u", "vh"):
        raise ValueError("`return_singular_vectors` must be in (True, False, 'u', 'vh').")


def _or_theirs(own: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that leaves to another one what blockvec does not take: objects, pydata's matrices."""

    @wraps(own)
    def call(A: Any, *args: Any, **options: Any) -> Any:
        kind = getattr(getattr(A, "dtype", None), "kind", "f")
        is_known = kind in "biufc" and type(A).__module__.partition(".")[0] != "sparse"
        return (own if is_known else theirs)(A, *args, **options)

    return call


def _of_vectors(own: Callable[..., Any]) -> Callable[..., Any]:
    """Make a solver of linear systems that returns a vector for one column, as SciPy's do."""

    @wraps(own)
    def call(A: Any, B: Any, *args: Any, **options: Any) -> Any:
        X, info = own(A, B, *args, **options)
        return (X.ravel() if getattr(B, "ndim", 1) == 2 and X.shape[1] == 1 else X), info

    return call


SYSTEMS = "cg", "minres", "gmres"
# What replaces the functions of a library: by name, in SciPy's case what also follows SciPy's conventions.
OWN: Mapping[str, Callable[..., Any]] = {
    **{"eigsh": eigsh, "svds": svds, "lobpcg": lobpcg, "expm_multiply": expm_multiply},
    **{"cg": cg, "minres": minres, "gmres": gmres},
}
THEIRS: Mapping[str, Callable[..., Any]] = {name: getattr(scipy.sparse.linalg, name) for name in OWN}
SCIPY: Mapping[str, Callable[..., Any]] = {
    **{name: _or_theirs(own, THEIRS[name]) for name, own in OWN.items()},
    **{name: _or_theirs(_of_vectors(OWN[name]), THEIRS[name]) for name in SYSTEMS},
    **{"eigsh": eigsh_in_scipy_order, "svds": svds_in_scipy_order},
}
# The modules of a library that have a function's name, first the public one.
_LINALG = "scipy.sparse.linalg"
_EIGEN, _ISOLVE = f"{_LINALG}._eigen", f"{_LINALG}._isolve"
LIBRARIES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    _LINALG: {
        "eigsh": (_LINALG, _EIGEN, f"{_EIGEN}.arpack"),
        "svds": (_LINALG, _EIGEN),
        "lobpcg": (_LINALG, _EIGEN, f"{_EIGEN}.lobpcg"),
        "expm_multiply": (_LINALG,),
        **dict.fromkeys(SYSTEMS, (_LINALG, _ISOLVE)),
    },
    f"cupyx.{_LINALG}": dict.fromkeys(
        ("eigsh", "svds", "lobpcg", "cg", "minres", "gmres"), (f"cupyx.{_LINALG}",)
    ),
}


@contextmanager
def replace(*libraries: str, modules: tuple[str | ModuleType, ...] = ()) -> Iterator[None]:
    """Replace functions of other libraries by blockvec's, until the context ends.

    In SciPy's place they also follow SciPy's order of results, limits of arguments and exceptions for wrong
    ones. At the end of the context, also after an exception, every attribute has its previous value. Contexts
    can be nested.

    Parameters
    ----------
    *libraries : {"scipy.sparse.linalg", "cupyx.scipy.sparse.linalg"}
        Public modules, whose `eigsh`, `svds`, `lobpcg`, `cg`, `minres`, `gmres`, and SciPy's `expm_multiply`,
        are replaced.
    modules : tuple of str or module
        Further modules in which these names are replaced: those that were imported before the context and
        contain ``from scipy.sparse.linalg import svds``.

    Raises
    ------
    OptionError
        For an unknown library, or a module that has none of the names. Nothing has been replaced then.
    ModuleNotFoundError
        If there is no module of a name.

    Notes
    -----
    During the context, all threads of the process call blockvec's functions. Enter and leave it while no
    other thread calls them or enters such a context.

    Examples
    --------
    >>> import blockvec, scipy.sparse as sp, scipy.sparse.linalg
    >>> A = sp.diags_array([4.0, 3.0, 2.0, 1.0], shape=(6, 4))
    >>> with blockvec.replace("scipy.sparse.linalg"):
    ...     u, s, vh = scipy.sparse.linalg.svds(A, k=2)  # computed by blockvec
    >>> s.round(6).tolist()
    [3.0, 4.0]
    """
    for library in libraries:
        if library not in LIBRARIES:
            known = ", ".join(map(repr, LIBRARIES))
            raise OptionError(f"replace: got {library!r}; give one of {known}.")
    places = [
        (importlib.import_module(module), name)
        for library in libraries
        for name, those in LIBRARIES[library].items()
        for module in those
    ]
    for given in modules:
        module = _module(given)
        found = [name for name in OWN if hasattr(module, name)]
        if not found:
            raise OptionError(
                f"replace: the module {module.__name__} has none of the names {', '.join(OWN)}."
            )
        places += [(module, name) for name in found]
    with _replaced(places):
        yield


@contextmanager
def replace_eigsh(*modules: str | ModuleType) -> Iterator[None]:
    """Replace `eigsh` in the modules of SciPy and CuPy by blockvec's until the context ends.

    This changes the attribute `eigsh` of `scipy.sparse.linalg`, and of `cupyx.scipy.sparse.linalg` if CuPy is
    imported already, for programs that cannot be edited; others import `blockvec.eigsh`. In SciPy's place the
    function also follows SciPy's order of results (without vectors, values for "SA" and "SM" are descending)
    and its limits: calls with k >= n are passed on to SciPy, which computes all pairs of a dense matrix by
    LAPACK, with a warning, and raises TypeError for others. At the end of the context, also after an
    exception, every attribute has its previous value. Contexts can be nested. `replace` replaces all
    functions.

    Parameters
    ----------
    *modules : str or module
        Further modules, by name or as objects, whose attribute `eigsh` is replaced: those that were imported
        before the context and contain ``from scipy.sparse.linalg import eigsh``. A module whose first import
        is inside the context keeps blockvec's function afterwards.

    Raises
    ------
    OptionError
        If a module has no attribute `eigsh`. Nothing has been replaced then.
    ModuleNotFoundError
        If there is no module of a name.

    Notes
    -----
    During the context, all threads of the process call blockvec's function. Enter and leave it while no other
    thread computes eigenvalues or enters such a context. The functions `svds` of SciPy and CuPy keep the
    solvers that they were written for.

    Examples
    --------
    >>> import blockvec, scipy.sparse.linalg
    >>> from solvers import replace_eigsh
    >>> A = blockvec.models.model("laplace2d:n=30")
    >>> with replace_eigsh():
    ...     w, V = scipy.sparse.linalg.eigsh(A, k=3, which="SA")  # computed by blockvec
    >>> w.round(6).tolist()
    [0.020523, 0.051201, 0.051201]
    """
    libraries = [name for name in LIBRARIES if name.partition(".")[0] != "cupyx" or "cupy" in sys.modules]
    names = [module for library in libraries for module in LIBRARIES[library]["eigsh"]]
    places = [(_module(module), "eigsh") for module in (*names, *modules)]
    for place, _ in places:
        if not hasattr(place, "eigsh"):
            raise OptionError(
                f"replace_eigsh: the module {place.__name__} has no attribute 'eigsh' to replace; "
                "give the module that contains the line 'from scipy.sparse.linalg import eigsh'."
            )
    with _replaced(places):
        yield


def _module(given: str | ModuleType) -> ModuleType:
    return importlib.import_module(given) if isinstance(given, str) else given


@contextmanager
def _replaced(places: list[tuple[ModuleType, str]]) -> Iterator[None]:
    """Replace attributes of modules, and restore them."""
    with ExitStack() as previous:
        for place, name in places:
            present = getattr(place, name)
            previous.callback(setattr, place, name, present)
            is_scipys = present in (THEIRS[name], SCIPY[name])
            setattr(place, name, (SCIPY if is_scipys else OWN)[name])
        yield
