"""Sparse matrices of ``scipy.sparse.save_npz``, with bounds on memory and checks of all indices.

NumPy allocates what an array's header claims, and SciPy converts formats by native code that trusts the
indices.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse

from ..errors import FormatError
from ..system.memory import check_readable

SIGNATURE = b"PK"
_COPIES = 4  # of the stored arrays, at most, while they are read and converted


def read(file: Path) -> scipy.sparse.csr_array:
    """Read a sparse matrix of any of SciPy's formats; a broken file raises a `FormatError`."""
    try:
        check_readable(f"{file}: its arrays", _COPIES * _stored_bytes(file))
        stored = scipy.sparse.load_npz(file)
        if stored.ndim != 2 or stored.dtype.kind not in "biufc":
            raise FormatError(
                f"{file}: found an array of shape {stored.shape} and type {stored.dtype}, expected a matrix "
                "of numbers."
            )
        check_readable(f"{file}: {stored.shape[0]} rows", 16 * stored.shape[0])
        return _rows(stored)
    except FormatError:
        raise
    except Exception as error:  # zipfile, NumPy, and SciPy raise almost any
        # Not the error's text: NumPy's may advise to load the file in an unsafe way.
        raise FormatError(
            f"{file}: found no sparse matrix of scipy.sparse.save_npz, or a damaged one "
            f"({type(error).__name__}); write it again."
        ) from None


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file: shape, whether column-major, and type."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    return read[version](stream)


def _stored_bytes(file: Path) -> int:
    """Add up the sizes of the arrays, and refuse headers that claim more than the file contains."""
    total = 0
    with zipfile.ZipFile(file) as archive:
        for part in archive.infolist():
            with archive.open(part) as stream:
                shape, _, dtype = npy_header(stream)
            if dtype.hasobject or math.prod(shape) * dtype.itemsize > part.file_size:
                raise ValueError
            total += part.file_size
    return total


def _rows(stored: Any) -> scipy.sparse.csr_array:
    """Convert to rows after a check of all indices."""
    if stored.format in ("csr", "csc", "bsr"):
        stored.check_format(full_check=True)  # skips the check of the order if the last entry is 0
        if (stored.indptr[1:] < stored.indptr[:-1]).any():
            raise ValueError
    # SciPy converts to coordinates by NumPy, and checks those.
    return scipy.sparse.csr_array(stored if stored.format == "csr" else stored.tocoo())
