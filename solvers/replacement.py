"""`replace`: blockvec's functions under the names of other libraries, for programs that cannot be edited."""

from __future__ import annotations

import importlib
import math
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec.errors import DTypeError, OptionError, ShapeError

from .eigsh import eigsh
from .functions.expm import expm_multiply
from .linear.front import cg, gmres, minres
from .locally_optimal import lobpcg
from .singular.triplets import svds

Function = Callable[..., Any]
SCIPY_ARGUMENTS = signature(scipy_eigsh).parameters.keys()
LOBPCG_ROWS = 5  # rows per column, below which SciPy's LOBPCG warns that dense LAPACK answers
# Modules that compute: an error that passes through them is none of arguments.
COMPUTING = "solvers.iterations.", "solvers.orthogonalization.", "solvers.linear.block_cg"
POWER_STEPS = 7, 4  # of scikit-learn's randomized_svd, for less than a tenth of the values and for more


@dataclass
class Replaced:
    """A function of another library that `replace` has replaced.

    Attributes
    ----------
    name : str
        The function, with its module.
    places : list of str
        The names that were replaced.
    calls, passed_on : int
        Number of calls that blockvec answered, and of those that it does not take and the function answered.
    """

    name: str
    places: list[str] = field(default_factory=list)
    calls: int = 0
    passed_on: int = 0


@wraps(eigsh)  # programs read the function's name
def _eigsh(*args: Any, **options: Any) -> Any:
    """Call `eigsh`; without vectors, the most wanted value is the last one, which programs rely on.

    For k >= n SciPy's function answers: dense LAPACK with a warning, or the TypeError that programs expect.
    """
    given = signature(eigsh).bind(*args, **options).arguments
    rows = getattr(given["A"], "shape", (math.inf,))[0]
    if given.keys() <= SCIPY_ARGUMENTS and (given.get("k") or 6) >= rows > 0:
        raise OptionError(f"k: got {given.get('k')} for {rows} rows.")
    result = eigsh(*args, **options)
    is_values_alone = not (given.get("return_eigenvectors", True) or given.get("return_info", False))
    if not is_values_alone or given.get("sigma") is not None:
        return result
    which = given.get("which") or "LM"
    if which in ("LM", "SM"):
        result = result[np.argsort(abs(result), kind="stable")]
    return result[::-1] if which in ("SA", "SM") else result


@wraps(svds)
def _svds(*args: Any, **options: Any) -> Any:
    """Call `svds` within SciPy's limits of arguments, which depend on the algorithm."""
    given = signature(svds).bind(*args, **options).arguments
    k, ncv, v0, solver = (given.get(name) for name in ("k", "ncv", "v0", "solver"))
    k, solver, shape = 6 if k is None else k, solver or "arpack", np.shape(given["A"])
    least, is_iterated = min(shape, default=0), solver in ("arpack", "lobpcg")
    start = shape[:1] if solver == "propack" else (least,)
    if not (
        np.ndim(k) == 0
        and k in range(1, least + (not is_iterated))
        and (v0 is None or (np.shape(v0) == start and np.asarray(v0).dtype.kind in "fc"))
        and (ncv is None or solver != "arpack" or ncv in range(int(k) + 1, least))
    ):
        raise OptionError("svds: the arguments are not within SciPy's limits.")
    if solver == "lobpcg" and least < LOBPCG_ROWS * k:
        warnings.warn(f"The problem size {least} is small for k={k}.", stacklevel=3)
    if isinstance(given.get("random_state"), np.random.RandomState):
        given["random_state"] = np.random.default_rng(given["random_state"])
    if isinstance(given.get("which"), str):
        given["which"] = given["which"].upper()
    return svds(**given)


def _of_vectors(own: Function) -> Function:
    """Make a solver of linear systems that returns a vector for one column, as SciPy's do."""

    @wraps(own)
    def call(A: Any, B: Any, *args: Any, **options: Any) -> Any:
        X, info = own(A, B, *args, **options)
        return (X.ravel() if getattr(B, "ndim", 1) == 2 and X.shape[1] == 1 else X), info

    return call


def _randomized_svd(
    M: Any,
    n_components: int,
    *,
    n_oversamples: int = 10,
    n_iter: Any = "auto",
    power_iteration_normalizer: str = "auto",
    random_state: Any = None,
    **_: Any,  # how that algorithm computes: `svds` transposes and fixes signs on its own
) -> Any:
    """Call `svds` with as many products as scikit-learn's function takes; values are descending."""
    if power_iteration_normalizer != "auto" or getattr(M, "format", "csr") in ("lil", "dok"):
        raise OptionError("randomized_svd: scikit-learn's function normalizes so, or warns of that format.")
    k = min(n_components, *M.shape)
    steps = POWER_STEPS[10 * n_components >= min(M.shape)] if n_iter == "auto" else n_iter
    rng = getattr(random_state, "randint", None)
    u, s, vh = svds(
        M,
        k,
        solver="randomized",
        rng=random_state if rng is None else int(rng(1 << 31)),
        options={"passes": max(steps + 1, 2), "oversampling": n_oversamples},
    )
    return u[:, ::-1], s[::-1], vh[::-1]


CUPY: dict[str, Function] = {
    function.__name__: function for function in (eigsh, svds, lobpcg, cg, minres, gmres)
}
SCIPY = CUPY | {  # these follow SciPy's conventions, too
    **{"eigsh": _eigsh, "svds": _svds, "expm_multiply": expm_multiply},
    **{function.__name__: _of_vectors(function) for function in (cg, minres, gmres)},
}
RANDOMIZED = dict.fromkeys(("_randomized_svd", "randomized_svd"), _randomized_svd)
_LINALG, _CUPYX, _EXTMATH = "scipy.sparse.linalg", "cupyx.scipy.sparse.linalg", "sklearn.utils.extmath"
HOMES = {_LINALG: SCIPY, _CUPYX: CUPY, _EXTMATH: RANDOMIZED}  # the modules that define functions
LIBRARIES = {_LINALG: _LINALG, _CUPYX: _CUPYX, "sklearn": _EXTMATH}
# Packages of scikit-learn whose import leads to all of its modules that call the functions.
CALLERS = ("cluster", "decomposition", "linear_model", "manifold")


def replace(
    *libraries: str, modules: tuple[str | ModuleType, ...] = ()
) -> AbstractContextManager[list[Replaced]]:
    """Replace functions of other libraries by blockvec's, until the context ends.

    In SciPy's place they also follow SciPy's order of results. Calls that blockvec does not take (wrong
    arguments, matrices of objects or of pydata/sparse, more values than SciPy's iterations compute) go to the
    original function, which answers or raises what programs expect; errors of a computation are raised. At
    the end of the context, also after an exception, every attribute has its previous value. Contexts can be
    nested.

    Parameters
    ----------
    *libraries : {"scipy.sparse.linalg", "cupyx.scipy.sparse.linalg", "sklearn"}
        Public modules, whose `eigsh`, `svds`, `lobpcg`, `cg`, `minres`, `gmres`, and SciPy's `expm_multiply`,
        are replaced. "sklearn" is scikit-learn: the copies of SciPy's functions in its modules, and its
        `randomized_svd`.
    modules : tuple of str or module
        Further modules in which these functions are replaced, under any name: those that were imported before
        the context and contain ``from scipy.sparse.linalg import svds``.

    Yields
    ------
    list of Replaced
        One element per function: the names that were replaced, how many calls blockvec has answered, and how
        many it has passed on.

    Raises
    ------
    OptionError
        For an unknown library, or a module that has none of the functions. Nothing has been replaced then.
    ModuleNotFoundError
        If there is no module of a name.

    Notes
    -----
    During the context, all threads of the process call blockvec's functions. Enter and leave it while no
    other thread calls them or enters such a context. A module whose first import is inside the context keeps
    blockvec's functions afterwards.

    Examples
    --------
    >>> import blockvec, scipy.sparse as sp, scipy.sparse.linalg
    >>> A = sp.diags_array([4.0, 3.0, 2.0, 1.0], shape=(6, 4))
    >>> with blockvec.replace("scipy.sparse.linalg") as replaced:
    ...     u, s, vh = scipy.sparse.linalg.svds(A, k=2)  # computed by blockvec
    >>> s.round(6).tolist()
    [3.0, 4.0]
    >>> [(function.name, function.calls) for function in replaced if function.calls]
    [('scipy.sparse.linalg.svds', 1)]
    """
    for library in libraries:
        if not isinstance(library, str) or library not in LIBRARIES:
            known = ", ".join(map(repr, LIBRARIES))
            raise OptionError(f"replace: got {library!r}; give one of {known}.")
    return _replaced(libraries, modules, {*SCIPY, *RANDOMIZED})


def replace_eigsh(*modules: str | ModuleType) -> AbstractContextManager[list[Replaced]]:
    """Replace `eigsh` in the modules of SciPy and CuPy by blockvec's until the context ends.

    This is `replace` for `eigsh` alone, in `scipy.sparse.linalg`, and in `cupyx.scipy.sparse.linalg` if CuPy
    is imported already; without vectors, the most wanted value is the last one, as SciPy's. Calls with
    k >= n are passed on to SciPy, which computes all pairs of a dense matrix by LAPACK, with a warning, and
    raises TypeError for others.

    Parameters
    ----------
    *modules : str or module
        Further modules that have a copy of `eigsh`, as for `replace`, which raises the same errors.

    Yields
    ------
    list of Replaced

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
    return _replaced((_LINALG, _CUPYX) if "cupy" in sys.modules else (_LINALG,), modules, {"eigsh"})


@contextmanager
def _replaced(
    libraries: tuple[str, ...], modules: tuple[str | ModuleType, ...], names: set[str]
) -> Iterator[list[Replaced]]:
    """Replace functions in the modules of libraries and in others, and restore them."""
    if "sklearn" in libraries:
        for caller in CALLERS:
            importlib.import_module(f"sklearn.{caller}")
    replacements: dict[int, tuple[Replaced, Function]] = {}  # by the identity of the original
    for home in dict.fromkeys((*map(LIBRARIES.__getitem__, libraries), _LINALG)):
        defining = vars(importlib.import_module(home))
        defined = HOMES[home].keys() & defining.keys()
        for name in defined & names:
            if f"_{name}" in defined:
                continue  # it calls that one, after checks of arguments
            original, entry = _original(defining[name]), Replaced(f"{home}.{name}")
            replacements[id(original)] = entry, _replacement(HOMES[home][name], original, entry)
    given = [importlib.import_module(each) if isinstance(each, str) else each for each in modules]
    public = [
        module
        for library in libraries
        for name, module in sys.modules.copy().items()
        if f"{name}.".startswith(f"{library}.")
        # SciPy's functions keep calling each other.
        and (name == library or library == "sklearn" or hasattr(module, "__path__"))
    ]
    with ExitStack() as previous:  # also undoes what precedes a module that is refused
        for module in (*public, *given):
            copies = {name: id(_original(value)) for name, value in vars(module).items()}
            found = {name: replacements[copy] for name, copy in copies.items() if copy in replacements}
            if module in given and not found:
                raise OptionError(
                    f"replace: the module {module.__name__} has none of the functions "
                    f"{', '.join(sorted(names))} to replace; give one that contains a line such as 'from "
                    "scipy.sparse.linalg import eigsh'."
                )
            for name, (entry, replacement) in found.items():
                entry.places.append(f"{module.__name__}.{name}")
                previous.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, replacement)
        yield [entry for entry, _ in replacements.values() if entry.places]


def _original(function: Any) -> Any:
    """Return the function that an outer context has replaced by this one, or without such a context this."""
    return vars(function).get("replaces", function) if isinstance(function, FunctionType) else function


def _replacement(own: Function, original: Function, entry: Replaced) -> Function:
    """Make the function that leaves to the original one what blockvec does not take, and counts calls."""
    lock = threading.Lock()

    @wraps(own)
    def call(*args: Any, **options: Any) -> Any:
        A = args[0] if args else options.get("A")
        is_foreign = type(A).__module__.partition(".")[0] == "sparse"  # pydata/sparse
        try:
            if is_foreign or getattr(getattr(A, "dtype", None), "kind", "f") == "O":
                raise DTypeError(f"{own.__name__}: matrices of {type(A).__name__} are not taken.")
            result = own(*args, **options)
        except (OptionError, ShapeError, DTypeError) as error:
            frames = traceback.walk_tb(error.__traceback__)
            if any(frame.f_globals["__name__"].startswith(COMPUTING) for frame, _ in frames):
                raise
            refusal = error
        else:
            with lock:
                entry.calls += 1
            return result
        with lock:
            entry.passed_on += 1
        try:
            return original(*args, **options)
        except Exception as error:
            error.add_note(f"blockvec has passed on this call: {refusal}")
            raise

    vars(call)["replaces"] = original
    return call
