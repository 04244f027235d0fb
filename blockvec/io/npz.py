"""Sparse matrices of ``scipy.sparse.save_npz``, with a check of all indices, which SciPy trusts."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import scipy.sparse

from ..errors import FormatError
from ..system.memory import check_readable

SIGNATURE = b"PK"
_COPIES = 4  # copies of the stored arrays, at most, while they are read and converted


def read(file: Path) -> scipy.sparse.csr_array:
    """Read a sparse matrix of any of SciPy's formats; a broken file raises a `FormatError`."""
    try:
        with zipfile.ZipFile(file) as archive:
            stored_bytes = sum(part.file_size for part in archive.infolist())
        check_readable(f"{file}: its arrays", _COPIES * stored_bytes)
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


def _rows(stored: Any) -> scipy.sparse.csr_array:
    """Convert to rows after a check of all indices."""
    if stored.format in ("csr", "csc", "bsr"):
        stored.check_format(full_check=True)  # skips the check of the order if the last entry is 0
        if (stored.indptr[1:] < stored.indptr[:-1]).any():
            raise ValueError
    # SciPy converts to coordinates by NumPy, and checks those.
    return scipy.sparse.csr_array(stored if stored.format == "csr" else stored.tocoo())
