"""Tell a user which kernel an operation would run, why, and how fast the hardware would allow it to be."""

from __future__ import annotations

from typing import Any

from . import products
from .arrays import as_array
from .blockvector import BlockVector
from .dispatch import Explanation, explain_problem
from .errors import OptionError
from .operators import Operator

__all__ = ["explain"]


def explain(operation: str, left: BlockVector | Operator, right: Any) -> Explanation:
    """Explain ``left.dot(right)``, ``left.combine(right)`` or ``left.apply(right)`` without running it.

    Parameters
    ----------
    operation : {"dot", "combine", "apply"}
        The method's name.
    left : BlockVector or Operator
        What the method would be called on.
    right : BlockVector or array
        Its operand.

    Returns
    -------
    Explanation
        Prints as text; measures the device's ceilings if nobody did (a few seconds, once).

    Raises
    ------
    OptionError
        For another operation, or an operator that is a user's function.

    Examples
    --------
    >>> from blockvec import BlockVector, explain
    >>> V = BlockVector.zeros(1000000, 4)
    >>> explain("dot", V, V).kernel
    'panels'
    """
    if operation == "apply" and isinstance(left, Operator):
        known = left.explain(BlockVector(right))
        if known is None:
            raise OptionError("explain: the operator is a user's function; there is no kernel to choose.")
        return explain_problem(*known)
    if not isinstance(left, BlockVector) or operation not in ("dot", "combine"):
        raise OptionError(
            f"explain: got {operation!r} on a {type(left).__name__}; give 'dot' or 'combine' on a "
            "BlockVector, or 'apply' on an Operator."
        )
    backend = left.backend
    if operation == "dot":
        other = right.array if isinstance(right, BlockVector) else BlockVector(right).array
        return explain_problem(products.tsmttsm_problem(left.array, other, True), backend)
    C = as_array(right)
    out = left.like(C.shape[1], products.result_type(left.array, C)).array
    return explain_problem(products.tsmm_problem(left.array, C, out), backend)
