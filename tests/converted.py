"""Checks of sparse kernels that take the matrix in another form."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from blockvec.kernels.build import compile_source
from blockvec.kernels.device import H200, DeviceInfo
from blockvec.kernels.families import CSR
from blockvec.kernels.limits import register_limit
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.sparse.csr_plan import CODE_BIT, MAX_VALUES, Codes, Plan


def coded(plan: Plan) -> Codes:
    """Encode the entries of a matrix of few different values."""
    table, places = np.unique(plan.data, return_inverse=True)
    padded = np.concatenate([table, np.zeros(MAX_VALUES - len(table), table.dtype)])
    return Codes(plan.indices + (places << CODE_BIT).astype(plan.indices.dtype), padded)


def assert_summed_up_in_order(p: SpmmvProblem) -> None:
    """Rows are summed entry after entry by `spmmv_csr`, which runs until the matrix has its form."""
    in_order = CSR.choose_in_order(p, H200)
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
    """Check a choice, the configuration with the fewest spare registers, any one, and other sources."""
    valid = [c for c in dict.fromkeys(family.space(p, device)) if family.refuse(p, c, device) is None]
    room = {c: register_limit(32 * c.warps * c.blocks, device) - registers(p, c) for c in valid}
    configs = {family.choose(p, device), min(valid, key=room.__getitem__), draw.choice(valid)}
    for source in [*(family.source(p, config, device) for config in configs), *others]:
        used = compile_source(source, device.architecture).resources
        assert (used.spill_bytes, used.stack_bytes) == (0, 0), (p, source)
