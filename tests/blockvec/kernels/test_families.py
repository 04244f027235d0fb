"""The contract of all kernel families: what they refuse and choose, and that it compiles without spills."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from blockvec.errors import OptionError
from blockvec.kernels.build import compile_source
from blockvec.kernels.device import DeviceInfo, host_device
from blockvec.kernels.families import FAMILIES, SPARSE_FAMILIES, families_of
from blockvec.kernels.family import choose
from blockvec.kernels.limits import RESERVED_SHARED_BYTES, register_limit
from blockvec.kernels.problem import SpmmvProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.sparse.sell import SpmmvSell
from tests.devices import DEVICES, H200, needs_compiler, resources_of
from tests.kernel_problems import TYPES, dense, drawn, families_for, fused, sparse, supporting

ALL: dict[str, Any] = {**FAMILIES, **SPARSE_FAMILIES}
ON_DEVICES = pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.architecture)


def threads_of(config: Any) -> int:
    return int(config.threads if hasattr(config, "threads") else 32 * config.warps)


# ---- what there is for every width, type and device


@ON_DEVICES
def test_every_operation_and_type_has_a_kernel_at_every_width(device: DeviceInfo) -> None:
    draw = random.Random(device.name)
    for width, dtype in itertools.product(range(DEVICES.index(device) % 4 + 1, 65, 4), TYPES):
        for M, N in ((width, width), (width, 65 - width)):
            problem = dense(draw, M, N, dtype)
            assert any(family.supports(problem, device) is None for family in families_for(problem)), problem
        problem = sparse(draw, width, dtype)
        families = families_for(problem)
        assert problem.gram or any(family.supports(problem, device) is None for family in families), problem


@pytest.mark.parametrize(
    ("device", "widths"),
    [
        pytest.param(H200, (1, 4, 8), id="usual"),
        *(
            pytest.param(device, (2, 3, 4, 7, 8, 12, 16, 33), id=device.architecture, marks=pytest.mark.slow)
            for device in DEVICES
        ),
    ],
)
def test_what_a_family_supports_it_has_a_choice_for_whatever_is_fused(
    device: DeviceInfo, widths: tuple[int, ...]
) -> None:
    for width in widths:
        for problem in fused(width):
            families = supporting(problem, device)
            assert {"spmmv_csr", "spmmv_chain"} & {family.name for family in families}, problem
            for family in families:
                config = choose(family, problem, device)
                assert family.refuse(problem, config, device) is None
                if isinstance(family, SpmmvSell):
                    first, before = family.before_conversion(problem, device)
                    assert first.refuse(problem, before, device) is None
                    assert (before.split, before.flat) == (1, False)


@pytest.mark.parametrize("name", ALL)
def test_nothing_runs_on_a_processor_and_a_choice_says_so(name: str) -> None:
    family, host = ALL[name], host_device(4)
    problem = next(p for p in drawn(200, 3) if family in families_for(p))
    assert family.supports(problem, host)
    with pytest.raises(OptionError, match=rf"{name} cannot run on .*; use another kernel"):
        family.choose(problem, replace(host, name="a CPU"))


@pytest.mark.parametrize("name", ALL)
def test_sources_depend_neither_on_the_rows_nor_on_the_length_of_a_pitch(name: str) -> None:
    family = ALL[name]
    problem = next(p for p in drawn(300, 5) if family in supporting(p, H200))
    config = family.choose(problem, H200)
    rows = {"n_rows": 999_999} if isinstance(problem, SpmmvProblem) else {"K": 999_999}
    first = kernels_of(family, problem, config, H200)[0]
    assert kernels_of(family, replace(problem, **rows), config, H200)[0] == first
    assert first.source().startswith(f"#define KERNEL {first.name}\n")


def kernels_of(family: Any, problem: Any, *how: Any) -> list[Any]:
    if isinstance(problem, SpmmvProblem):
        return list(family.kernels(problem, *how).values())
    return [family.kernel(problem, *how)]


# ---- compilation


def assert_compiles_without_spills(family: Any, problem: Any, config: Any, device: DeviceInfo) -> None:
    """Check registers, spills and shared memory of all kernels of a configuration."""
    blocks = getattr(config, "blocks", 1)
    for number, kernel in enumerate(kernels_of(family, problem, config, device)):
        used = resources_of(compile_source(kernel.source(), device.architecture).log)
        assert used.spill_bytes == 0, (problem, config, device.architecture, used)
        most = 8 if device.architecture == "sm_120" else 0  # of calls that emulate tensor products
        assert used.stack_bytes <= most, (problem, config, device.architecture, used)
        if number == 0:
            assert used.registers <= register_limit(threads_of(config) * blocks, device), (problem, config)
            shared = used.shared_bytes + kernel.shared_bytes
            assert shared <= device.shared_bytes_per_block, (problem, config)
            together = blocks * (shared + RESERVED_SHARED_BYTES)
            assert together <= device.shared_bytes_per_multiprocessor, (problem, config)


@needs_compiler
@pytest.mark.parametrize("name", ALL)
def test_a_choice_of_each_family_compiles_without_spills(name: str) -> None:
    family, first = ALL[name], list(ALL).index(name)
    turns = (*DEVICES[first % len(DEVICES) :], *DEVICES)  # another device for each family
    pairs = ((problem, device) for device in turns for problem in drawn(150, 7))
    problem, device = next(
        (p, d) for p, d in pairs if family in families_for(p) and not family.supports(p, d)
    )
    assert_compiles_without_spills(family, problem, choose(family, problem, device), device)


@needs_compiler
@pytest.mark.slow
@ON_DEVICES
@pytest.mark.parametrize("seed", range(4))
def test_choices_for_drawn_problems_compile_without_spills(seed: int, device: DeviceInfo) -> None:
    for problem in drawn(12, 100 + seed):
        for family in supporting(problem, device):
            config = choose(family, problem, device)
            if not isinstance(problem, SpmmvProblem) or family.refuse_sums(problem, config) is None:
                assert_compiles_without_spills(family, problem, config, device)


@needs_compiler
@pytest.mark.slow
@ON_DEVICES
@pytest.mark.parametrize("name", ALL)
def test_the_whole_list_of_a_family_compiles_without_spills(name: str, device: DeviceInfo) -> None:
    family = ALL[name]
    problem = next((p for p in drawn(150, 7) if family in supporting(p, device)), None)
    if problem is None:
        pytest.skip(f"{name} needs another device")
    for config in family.configurations(problem, device)[:8]:
        assert_compiles_without_spills(family, problem, config, device)


# ---- which family comes first


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("M", "N"), [(0, 3), (3, 0), (0, 0)])
def test_products_without_columns_have_an_order_of_families(M: int, N: int, dtype: str) -> None:
    assert families_of(TsmttsmProblem(50, M, N, dtype, dtype, M, N))
    assert families_of(TsmmProblem(50, M, N, dtype, dtype, M, N))
