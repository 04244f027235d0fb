"""Matrices by name: models by their descriptions, also without a matrix, and files by their paths."""

from __future__ import annotations

import math
import os
from typing import Any

import scipy.sparse
from numpy.typing import NDArray

from ..backends import backend_for
from ..errors import OptionError
from ..io import read_matrix
from ..operators.row_generator import RowGenerator
from ..operators.sparse import SparseOperator
from . import lattice, many_body, random_structure  # noqa: F401  each enters its models in the table
from .definition import MODELS, Model, suggestion


def model(spec: str) -> scipy.sparse.csr_array:
    """Create the matrix of a description.

    Parameters
    ----------
    spec : str
        ``"name:parameter=value,parameter=value"``; :func:`available` lists the names. Case is
        ignored.

    Returns
    -------
    csr_array, shape (n, n)
        Hermitian, in canonical form, with 32-bit indices where they fit.

    Raises
    ------
    OptionError
        If there is no such model or parameter, a value is missing or invalid, or the matrix would not fit
        in the available memory.

    Examples
    --------
    >>> from blockvec import models
    >>> A = models.model("xxz:sites=10,up=5")
    >>> A.shape
    (252, 252)
    """
    entry, arguments = _parsed(spec)
    return entry.matrix(arguments)


def generator(spec: str) -> RowGenerator:
    """Create the row generator of a description.

    Parameters
    ----------
    spec : str
        As for :func:`model`.

    Returns
    -------
    RowGenerator
        Creates any range of rows; the whole matrix is formed on request only.

    Raises
    ------
    OptionError
        As for :func:`model`.

    Examples
    --------
    >>> from blockvec import models
    >>> models.generator("xxz:sites=40,up=20")
    RowGenerator(137846528820x137846528820, float64)
    """
    entry, arguments = _parsed(spec)
    return entry.generator(arguments)


def _parsed(spec: str) -> tuple[Model, dict[str, Any]]:
    if not isinstance(spec, str):
        raise OptionError(f"model: got a {type(spec).__name__}; give a string such as 'laplace2d:n=30'.")
    name, _, text = spec.partition(":")
    name = name.strip().lower()
    if name not in MODELS:
        raise OptionError(
            f"model: there is no model {name!r}{suggestion(name, MODELS)}; there are {', '.join(MODELS)}. "
            "Example: laplace3d:n=64"
        )
    entry = MODELS[name]
    return entry, entry.parse(text) if text.strip() else {}


class ChainOperator(SparseOperator):
    """A chain of spins or electrons whose matrix elements are computed in each product; see `operator`.

    `nnz` counts the entries that its matrix would have.
    """

    n_stored = 0
    _is_hermitian = True


def operator(spec: str | RowGenerator, *, device: str = "cpu") -> ChainOperator:
    """Create a chain of spins or electrons as an operator that stores no matrix.

    Products compute the elements of the matrix, so that memory is needed for blocks of vectors alone. They
    are those of ``as_operator(model(spec))`` up to rounding.

    Parameters
    ----------
    spec : str or RowGenerator
        ``"xxz:..."`` or ``"hubbard:..."``, as for :func:`model`, or the generator of its rows; spins of up to
        62, electrons of up to 31 sites.
    device : str, default "cpu"
        ``"cpu"`` or ``"gpu"``: the device of the blocks.

    Returns
    -------
    ChainOperator
        In double precision; its method ``converted`` makes one in single precision.

    Raises
    ------
    OptionError
        As for :func:`model`, and for a model that is no chain of many particles, or a chain too long.

    Examples
    --------
    >>> from blockvec import eigsh, models
    >>> A = models.operator("xxz:sites=14,up=7")
    >>> A
    ChainOperator(3432x3432, float64, cpu)
    >>> w, X = eigsh(A, k=2, which="SA")
    >>> [round(float(value), 6) for value in w]
    [-6.26355, -5.956444]
    """
    make = (spec if isinstance(spec, RowGenerator) else generator(spec)).chain
    if make is None:
        raise OptionError(f"operator: {spec} is stored as a matrix; use model(), or one of xxz and hubbard.")
    chain = make()
    if not (math.isfinite(chain.hop) and math.isfinite(chain.diagonal * chain.sites)):
        raise OptionError(f"{spec}: elements exceed the largest float64; give smaller parameters.")
    return ChainOperator(chain, backend_for(device))


def available() -> dict[str, str]:
    """List the models.

    Returns
    -------
    dict
        Name -> one line with summary, parameters and an example.

    Examples
    --------
    >>> from blockvec import models
    >>> print(models.available()["laplace1d"])
    1-D Laplacian, 3-point stencil; parameters n, periodic=false; e.g. laplace1d:n=1000
    """
    lines = {}
    for entry in MODELS.values():
        values = {name: entry.defaults.get(name) for name in entry.types}
        parameters = (n if value is None else f"{n}={str(value).lower()}" for n, value in values.items())
        lines[entry.name] = f"{entry.summary}; parameters {', '.join(parameters)}; e.g. {entry.example}"
    return lines


def open_matrix(spec: str | os.PathLike[str]) -> scipy.sparse.csr_array | NDArray[Any]:
    """Open a matrix by the path of a file or the description of a model.

    An existing file has precedence. A string with a colon, or with the name of a model, describes a model.
    Anything else is reported as a missing file.

    Parameters
    ----------
    spec : str or path
        Path of a file as for :func:`read_matrix`, or a description as for :func:`blockvec.models.model`.

    Returns
    -------
    csr_array or array, shape (n_rows, n_cols)
        As :func:`read_matrix` or :func:`blockvec.models.model` return it.

    Raises
    ------
    FileNotFoundError
        If there is neither such a file nor such a model.
    FormatError
        If the file is broken.
    OptionError
        If the model's description is wrong, or for anything but text or a path.

    Examples
    --------
    >>> from blockvec import open_matrix
    >>> open_matrix("laplace1d:n=5").nnz
    13
    """
    if isinstance(spec, str) and not os.path.exists(spec):
        name, colon, _ = spec.partition(":")
        if colon or name.strip().lower() in available():
            return model(spec)
        raise FileNotFoundError(
            f"{spec}: there is no such file, and no model of that name; give the path of a matrix "
            f"file, or one of the models {', '.join(available())} with its parameters, such as "
            "laplace3d:n=64."
        )
    if not isinstance(spec, str | os.PathLike):
        raise OptionError(f"open_matrix: got {spec!r}; give a path, or a model such as 'laplace3d:n=64'.")
    return read_matrix(spec)
