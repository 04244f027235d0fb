"""Explain which kernel an operation runs, why, and the shortest time that the hardware allows."""

from __future__ import annotations

from typing import Any

from .blocks.blockvector import BlockVector
from .errors import OptionError
from .kernels.problem import Problem
from .kernels.roofline import flops, gather_time, time_limit, traffic
from .operations import products
from .operations.arrays import as_array
from .operations.dispatch import choose
from .operations.profile import ceilings
from .operators.operator import Operator
from .system.frozen import frozen


@frozen
class Explanation:
    """The kernel that runs a problem and the reason for its choice.

    Attributes
    ----------
    problem : Problem
        The description that the choice depends on.
    device : str
        The device that it runs on.
    kernel : str
        The implementation chosen.
    configuration : str
        The kernel's configuration and the origin of that choice; empty if it has none.
    considered : tuple of (str, str)
        Every implementation in order of preference, with the reason for its refusal ("" for those usable).
    bytes_moved, flops : int
        The problem's compulsory traffic in bytes and its floating-point operations.
    time_limit_s : float
        The shortest time in seconds that the measured ceilings allow.
    gather_time_s : float or None
        For a sparse product on a GPU, the time in which L2 delivers one row of X per entry.
    """

    problem: Problem
    device: str
    kernel: str
    configuration: str
    considered: tuple[tuple[str, str], ...]
    bytes_moved: int
    flops: int
    time_limit_s: float
    gather_time_s: float | None = None

    def __str__(self) -> str:
        """Format the explanation as text."""
        lines = [
            f"{self.problem.operation} on {self.device}: {self.kernel}",
            f"  problem   {self.problem}",
            f"  roofline  {self.bytes_moved / 1e6:.3f} MB, {self.flops / 1e6:.3f} Mflop, "
            f"at least {self.time_limit_s * 1e6:.1f} us",
        ]
        if self.gather_time_s is not None:
            lines.append(f"  gathering {self.gather_time_s * 1e6:.1f} us where every row of X comes from L2")
        if self.configuration:
            lines.append(f"  run with  {self.configuration}")
        for name, refusal in self.considered:
            verdict = "chosen" if name == self.kernel else refusal or "usable, not preferred"
            lines.append(f"  {name:20} {verdict}")
        return "\n".join(lines)


def explain(operation: str, left: BlockVector | Operator, right: Any) -> Explanation:
    """Explain which kernel ``left.dot(right)``, ``left.combine(right)`` or ``left.apply(right)`` would run.

    Parameters
    ----------
    operation : {"dot", "combine", "apply"}
        Name of the method.
    left : BlockVector or Operator
        Object that the method would be called on.
    right : BlockVector or array
        Its operand.

    Returns
    -------
    Explanation
        Prints as text. The device's ceilings are measured if they are not known (a few seconds, once).

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
        problem, backend = known
    elif not isinstance(left, BlockVector) or operation not in ("dot", "combine"):
        raise OptionError(
            f"explain: got {operation!r} on a {type(left).__name__}; give 'dot' or 'combine' on a "
            "BlockVector, or 'apply' on an Operator."
        )
    elif operation == "dot":
        problem, backend = products.tsmttsm_problem(left.array, BlockVector(right).array, True), left.backend
    else:
        C = as_array(right)
        out = left.like(C.shape[1], products.result_type(left.array, C)).array
        problem, backend = products.tsmm_problem(left.array, C, out), left.backend
    chosen, limits = choose(problem, backend), ceilings(backend)
    return Explanation(
        problem=problem,
        device=f"{backend.name} ({backend.device.name})",
        kernel=chosen.name,
        configuration=chosen.configuration(),
        considered=tuple((c.name, c.refusal or "") for c in backend.candidates(problem)),
        bytes_moved=traffic(problem).total_bytes,
        flops=flops(problem),
        time_limit_s=time_limit(problem, limits),
        gather_time_s=gather_time(problem, limits),
    )
