"""Numbers of NumPy and other libraries as numbers of Python."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """Convert a scalar of NumPy, or an array without dimensions, to Python's type; keep anything else.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec.system.scalars import plain
    >>> plain(np.int64(3)), plain(np.array(0.5)), plain(np.bool_(True)), plain("SA")
    (3, 0.5, True, 'SA')
    """
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value
