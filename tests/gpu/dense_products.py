"""How the tests of dense families on a GPU draw cases and launch kernels."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from blockvec.kernels import build as compiler
from blockvec.kernels.dense.family import DenseFamily
from blockvec.kernels.device import DeviceInfo
from tests.blocks import bind

TYPES = ("float32", "float64", "complex64", "complex128")


def layout(
    draw_: st.DrawFn, widths: tuple[int, int], rows: tuple[int, int], offsets: tuple[list[int], list[int]]
) -> dict[str, Any]:
    """Draw what cases of all families have: the layout of the tall operands, a configuration and a seed."""
    least, most = rows
    return {
        "K": draw_(st.one_of(st.integers(least, 70), st.integers(71, 5000), st.integers(5001, most))),
        "widths": widths,
        "lds": (
            widths[0] + draw_(st.sampled_from([0, 0, 1, 3, 8])),
            widths[1] + draw_(st.sampled_from([0, 0, 2, 5])),
        ),
        "offsets": tuple(draw_(st.sampled_from(choices)) for choices in offsets),
        "exact": draw_(st.booleans()),
        "config": draw_(st.integers(0, 10**6)),
        "seed": draw_(st.integers(0, 2**32 - 1)),
    }


def configuration(family: DenseFamily[Any, Any], problem: Any, device: DeviceInfo, number: int) -> Any:
    """Return the family's choice, or for every third number a valid configuration of its space."""
    if number % 3:
        return family.choose(problem, device)
    valid = family.configurations(problem, device)
    return valid[number // 3 % len(valid)]


def launch(
    family: DenseFamily[Any, Any],
    problem: Any,
    config: Any,
    device: DeviceInfo,
    operands: tuple[Any, Any, Any],
    factors: tuple[complex, complex],
    workspace: Any,
) -> None:
    """Compile a kernel and launch it."""
    assert family.refuse(problem, config, device) is None
    function = compiler.build(
        family.source(problem, config, device),
        family.kernel_name(problem),
        device.architecture,
        family.shared_bytes(problem, config, device),
    )
    addresses = [operand.data.ptr for operand in operands]
    assert family.workspace_bytes(problem, config, device) <= workspace.nbytes
    bind(family, function, problem, config, device)(*addresses, *factors, workspace.data.ptr)


def launch_with_queue(
    family: DenseFamily[Any, Any],
    problem: Any,
    config: Any,
    device: DeviceInfo,
    operands: tuple[Any, Any, Any],
    factors: tuple[complex, complex] = (1, 0),
    queue: Any = None,
) -> None:
    """Launch a kernel whose workspace is a tile queue; check that it is left as the next launch needs it."""
    import cupy

    if queue is None:
        queue = cupy.zeros(family.workspace_bytes(problem, config, device), cupy.uint8)
    launch(family, problem, config, device, operands, factors, queue)
    if not cupy.cuda.get_current_stream().is_capturing():
        assert not queue.any()
