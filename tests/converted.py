"""What tests of sparse kernels that take a matrix in another form check alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from blockvec.kernels.compile import compile_source
from blockvec.kernels.device import H200, DeviceInfo
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.sparse import csr as spmmv_csr
from blockvec.kernels.sparse.csr_config import register_limit


def assert_summed_up_in_order(p: SpmmvProblem) -> None:
    """Rows are summed up entry after entry by `spmmv_csr`, which runs until the matrix has its form."""
    in_order = spmmv_csr.choose(p, H200, in_order=True)
    assert (in_order.split, in_order.flat) == (1, False)
    assert p.longest <= in_order.long_row


def assert_compiles_without_spills(
    family: Any,
    registers: Callable[[SpmmvProblem, Any], int],
    p: SpmmvProblem,
    device: DeviceInfo,
    draw: random.Random,
    others: Iterable[str],
) -> None:
    """A family's choice, the configuration with the fewest registers to spare, any one, and other sources."""
    valid = [c for c in dict.fromkeys(family.space(p)) if family.refuse(p, c, device) is None]
    room = {c: register_limit(c.warps, c.blocks, device) - registers(p, c) for c in valid}
    configs = {family.choose(p, device), min(valid, key=room.__getitem__), draw.choice(valid)}
    for source in [*(family.source(p, config) for config in configs), *others]:
        used = compile_source(source, device.architecture).resources
        assert (used.spill_bytes, used.stack_bytes) == (0, 0), (p, source)
