"""`replace_eigsh`: blockvec's `eigsh` under SciPy's and CuPy's names, for programs that cannot be edited."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from blockvec.errors import OptionError

from .eigsh import eigsh

SCIPY = ("scipy.sparse.linalg", "scipy.sparse.linalg._eigen", "scipy.sparse.linalg._eigen.arpack")
CUPY = ("cupyx.scipy.sparse.linalg",)


@contextmanager
def replace_eigsh(*modules: str | ModuleType) -> Iterator[None]:
    """Replace `eigsh` in the modules of SciPy and CuPy by blockvec's until the context ends.

    This changes the attribute `eigsh` of `scipy.sparse.linalg`, and of `cupyx.scipy.sparse.linalg` if CuPy is
    imported already. It is meant for programs that cannot be edited; programs of your own import
    `blockvec.eigsh`. At the end of the context, also after an exception, every attribute has its previous
    value. Contexts can be nested.

    Parameters
    ----------
    *modules : str or module
        Further modules, given by their names or as objects, whose attribute `eigsh` is replaced. They are
        needed for modules that were imported before the context and contain
        ``from scipy.sparse.linalg import eigsh``: such a copy of the name is not reached through SciPy.
        Conversely, a module whose first import is inside the context keeps blockvec's function afterwards.

    Raises
    ------
    OptionError
        If a module has no attribute `eigsh`. Nothing has been replaced then.
    ModuleNotFoundError
        If there is no module of a name.

    Notes
    -----
    The modules of a process are shared by its threads: during the context, all threads call blockvec's
    function. Enter and leave the context while no other thread computes eigenvalues or enters such a context.
    The functions `svds` of SciPy and CuPy keep the solvers that they were written for.

    Examples
    --------
    >>> import blockvec, scipy.sparse.linalg
    >>> from solvers import replace_eigsh
    >>> with replace_eigsh():
    ...     print(scipy.sparse.linalg.eigsh is blockvec.eigsh)
    True
    >>> scipy.sparse.linalg.eigsh is blockvec.eigsh
    False
    """
    names = SCIPY + CUPY if "cupy" in sys.modules else SCIPY
    places = [_imported(module) for module in (*names, *modules)]
    for place in places:
        if not hasattr(place, "eigsh"):
            raise OptionError(
                f"replace_eigsh: the module {place.__name__} has no attribute 'eigsh' to replace; "
                "give the module that contains the line 'from scipy.sparse.linalg import eigsh'."
            )
    with ExitStack() as previous:
        for place in places:
            previous.callback(setattr, place, "eigsh", place.eigsh)
            place.eigsh = eigsh
        yield


def _imported(module: str | ModuleType) -> Any:
    return importlib.import_module(module) if isinstance(module, str) else module
