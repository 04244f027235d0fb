"""Matrices by name: the path of a file or the description of a model."""

from __future__ import annotations

import os
from typing import Any

import scipy.sparse
from numpy.typing import NDArray

from . import models
from .io import read_matrix


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
        If the model's description is wrong.

    Examples
    --------
    >>> from blockvec import open_matrix
    >>> open_matrix("laplace1d:n=5").nnz
    13
    """
    if isinstance(spec, str) and not os.path.exists(spec):
        name, colon, _ = spec.partition(":")
        if colon or name.strip().lower() in models.available():
            return models.model(spec)
        raise FileNotFoundError(
            f"{spec}: there is no such file, and no model of that name; give the path of a matrix "
            f"file, or one of the models {', '.join(models.available())} with its parameters, such as "
            "laplace3d:n=64."
        )
    return read_matrix(spec)
