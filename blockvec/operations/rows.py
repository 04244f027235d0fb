"""Functions of rows of numbers, one per column of a block: one kernel each on a GPU, NumPy on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..backends import Array, backend_of
from ..errors import ShapeError


class RowFunction:
    """A function of rows of numbers, such as norms of columns, that is one kernel on a GPU.

    Iterations compute factors per column from norms and inner products. An array library takes one kernel per
    operation for that, which it compiles at the first use; here all operations are one kernel.

    Parameters
    ----------
    function : callable
        ``function(xp, *rows)`` returns a tuple of rows, element by element. It may use ``+ - * /``, squares,
        ``<=`` and ``>``, ``& | ~`` of masks, and `sqrt`, `log`, `cos`, `abs`, `maximum` and `where` of `xp`,
        with numbers that are the same in all calls. On a GPU `xp` and `rows` stand for the generated code:
        the function is called once per combination of types, and the kernel computes in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import RowFunction
    >>> inverse = RowFunction(lambda xp, x: (xp.where(x > 0, 1 / xp.maximum(x, 1e-300), 0.0),))
    >>> norms, factors = np.array([4.0, 0.0]), np.empty(2)
    >>> inverse(norms, out=(factors,))
    >>> factors.tolist()
    [0.25, 0.0]
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., tuple[Any, ...]]) -> None:
        self._function = function

    def __call__(self, *rows: Array, out: Sequence[Array]) -> None:
        """Write the results for rows of one device to the rows in `out`, which may be among the given ones.

        Rows have float32, float64 or bool elements; they may have gaps, as the real parts of complex ones.

        Raises
        ------
        ShapeError
            If rows have different lengths.
        """
        shape = out[0].shape
        if any(row.shape != shape for row in (*rows, *out)):
            shapes = ", ".join(str(tuple(row.shape)) for row in (*rows, *out))
            raise ShapeError(f"RowFunction: rows have shapes {shapes}; they must agree.")
        backend_of(out[0]).evaluate(self._function, rows, out)
