"""Numbers of NumPy and other libraries as numbers of Python."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """Convert a scalar of NumPy, or an array without dimensions, to Python's type; keep anything else.

    >>> import numpy as np
    >>> plain(np.int64(3)), plain(np.array(0.5)), plain("SA")
    (3, 0.5, 'SA')
    """
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value
