"""`replace_eigsh`: blockvec's `eigsh` under SciPy's and CuPy's names, for programs that cannot be edited."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

from scipy.sparse.linalg import eigsh as scipy_eigsh

from blockvec.errors import OptionError

from .eigsh import eigsh

SCIPY = ("scipy.sparse.linalg", "scipy.sparse.linalg._eigen", "scipy.sparse.linalg._eigen.arpack")
CUPY = ("cupyx.scipy.sparse.linalg",)
SCIPY_ARGUMENTS = signature(scipy_eigsh).parameters.keys()


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


@contextmanager
def replace_eigsh(*modules: str | ModuleType) -> Iterator[None]:
    """Replace `eigsh` in the modules of SciPy and CuPy by blockvec's until the context ends.

    This changes the attribute `eigsh` of `scipy.sparse.linalg`, and of `cupyx.scipy.sparse.linalg` if CuPy is
    imported already, for programs that cannot be edited; others import `blockvec.eigsh`. In SciPy's place the
    function also follows SciPy's order of results (without vectors, values for "SA" and "SM" are descending)
    and its limits: calls with k >= n are passed on to SciPy, which computes all pairs of a dense matrix by
    LAPACK, with a warning, and raises TypeError for others. At the end of the context, also after an
    exception, every attribute has its previous value. Contexts can be nested.

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
    names = SCIPY + CUPY if "cupy" in sys.modules else SCIPY
    places: list[Any] = [importlib.import_module(m) if isinstance(m, str) else m for m in (*names, *modules)]
    for place in places:
        if not hasattr(place, "eigsh"):
            raise OptionError(
                f"replace_eigsh: the module {place.__name__} has no attribute 'eigsh' to replace; "
                "give the module that contains the line 'from scipy.sparse.linalg import eigsh'."
            )
    with ExitStack() as previous:
        for place in places:
            previous.callback(setattr, place, "eigsh", place.eigsh)
            is_scipys = place.eigsh in (scipy_eigsh, eigsh_in_scipy_order)
            place.eigsh = eigsh_in_scipy_order if is_scipys else eigsh
        yield
