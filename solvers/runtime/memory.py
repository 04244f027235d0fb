"""Free memory of a device, checked before a solver allocates."""

from __future__ import annotations

from blockvec.errors import OptionError
from blockvec.system.memory import available_memory

from ..blocks import Operator

SMALL_BYTES = 1 << 28  # bytes that are taken to be free on a host: asking takes a millisecond


def require_memory(op: Operator, needed_bytes: float, purpose: str, remedy: str) -> None:
    """Refuse to go on if a device has less free memory than a solver needs."""
    if op.device == "cpu" and needed_bytes <= SMALL_BYTES:
        return
    free: int | None
    if op.device == "cpu":
        free = available_memory()
    else:
        import cupy

        with cupy.cuda.Device(int(op.device.partition(":")[2] or 0)):
            free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    if free is not None and needed_bytes > free:
        raise OptionError(
            f"the call needs {needed_bytes / 1e9:.3g} GB on {op.device} for {purpose}, "
            f"{free / 1e9:.3g} GB are free: {remedy}."
        )
