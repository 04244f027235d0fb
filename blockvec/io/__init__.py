"""Reading matrices; reading and writing blocks."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from ..errors import DTypeError, FormatError, ShapeError
from ..system.files import replaced
from ..system.memory import check_readable

_DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "complex64", "complex128"))
_ZIP = b"PK"
_NPZ_COPIES = 4  # copies of the stored arrays, at most, while they are read and converted


def read_matrix(path: str | os.PathLike[str]) -> scipy.sparse.csr_array | NDArray[Any]:
    """Read a matrix from a file of Matrix Market (gzipped or not), SciPy (.npz) or PETSc (binary AIJ).

    Symmetric, Hermitian and skew-symmetric files of Matrix Market contain one triangle and are expanded to
    all elements, duplicate elements are summed, integers are converted to float64, and elements of a pattern
    have the value 1. Of several objects in a file of PETSc the first is read; it may have indices of 32 or
    64 bits and real or complex values.

    Parameters
    ----------
    path : str or path
        The file. Its format and its compression are detected from its content.

    Returns
    -------
    csr_array, shape (n_rows, n_cols), or array for a Matrix Market file in array format
        float64 or complex128, from SciPy also float32 or complex64; canonical form with 32-bit indices where
        they fit, or row-major.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    FormatError
        If it has none of these formats, is broken or truncated, or does not fit in the available memory.

    References
    ----------
    R. F. Boisvert, R. Pozo, K. Remington, "The Matrix Market exchange formats", NISTIR 5935 (1996).
    """
    from . import matrixmarket, petsc

    file = existing(path)
    with file.open("rb") as stream:
        head = stream.read(8)
    matrix: Any
    if head.startswith(_ZIP):
        matrix = _read_npz(file)
    elif head.startswith(petsc.SIGNATURES):
        matrix = petsc.read(file)
    else:
        matrix = matrixmarket.read(file)
    if matrix.dtype not in _DTYPES:
        matrix = matrix.astype(np.complex128 if matrix.dtype.kind == "c" else np.float64)
    if isinstance(matrix, np.ndarray):
        return np.ascontiguousarray(matrix)
    rows = scipy.sparse.csr_array(matrix)
    rows.sum_duplicates()
    return rows


def _read_npz(file: Path) -> scipy.sparse.csr_array:
    """Read a matrix of ``scipy.sparse.save_npz``, with a check of all indices, which SciPy trusts."""
    try:
        with zipfile.ZipFile(file) as archive:
            stored_bytes = sum(part.file_size for part in archive.infolist())
        check_readable(f"{file}: its arrays", _NPZ_COPIES * stored_bytes)
        stored: Any = scipy.sparse.load_npz(file)
        if stored.ndim != 2 or stored.dtype.kind not in "biufc":
            raise FormatError(
                f"{file}: found an array of shape {stored.shape} and type {stored.dtype}, expected a matrix "
                "of numbers."
            )
        check_readable(f"{file}: {stored.shape[0]} rows", 16 * stored.shape[0])
        if stored.format in ("csr", "csc", "bsr"):
            stored.check_format(full_check=True)  # skips the check of the order if the last entry is 0
            if (stored.indptr[1:] < stored.indptr[:-1]).any():
                raise ValueError
        # SciPy converts to coordinates by NumPy, and checks those.
        return scipy.sparse.csr_array(stored if stored.format == "csr" else stored.tocoo())
    except FormatError:
        raise
    except Exception as error:  # zipfile, NumPy, and SciPy raise almost any
        # Not the error's text: NumPy's may advise to load the file in an unsafe way.
        raise FormatError(
            f"{file}: found no sparse matrix of scipy.sparse.save_npz, or a damaged one "
            f"({type(error).__name__}); write it again."
        ) from None


def existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file; refuse others."""
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(
            f"{file}: there is no such file (in {file.absolute().parent}); check the path."
        )
    if not file.is_file():  # it is read more than once
        raise FormatError(f"{file}: this is no regular file; give the path of one.")
    return file


def save_block(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype[Any], panels: Iterable[NDArray[Any]]
) -> None:
    """Write a block that is given in panels of rows to an .npy file atomically."""
    descr = np.lib.format.dtype_to_descr(dtype)
    with replaced(path) as stream:
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for panel in panels:
            if panel.size:
                stream.write(np.ascontiguousarray(panel).data)


def mapped_block(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Map a block in an .npy file, row-major or not, for reading.

    A file that is broken or truncated raises a `FormatError`, an array of another kind than blocks a
    `ShapeError` or `DTypeError`.
    """
    file = existing(path)
    try:
        block = np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # NumPy evaluates the header as Python: its tokenizer and parser may fail, too
        raise FormatError(f"{file}: this is no .npy file, or truncated or broken ({error}).") from None
    if block.ndim != 2:
        raise ShapeError(
            f"{file}: the shape is {block.shape}; a block has two dimensions (array[:, None] is one column)."
        )
    if block.dtype not in _DTYPES:
        names = ", ".join(known.name for known in _DTYPES)
        raise DTypeError(
            f"{file}: the type is {block.dtype}; a block is one of {names}: convert it with astype first."
        )
    return np.asarray(block)
