"""SpMMV by sweeps through the planes of a grid: plans, generated code, and the kernels run on the host."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec.kernels.device import H200, DeviceInfo, host_device
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.kernels.problem import SpmmvProblem, itemsize
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.kernels.sparse.planes import PlanesConfig as Config
from blockvec.kernels.sparse.planes import loaded_rows, make_plan, plan_source
from blockvec.kernels.sparse.planes_plan import Geometry, SweepPlan, geometry
from tests.contract.blocks import exact_values
from tests.converted import assert_summed_up_in_order
from tests.emulator.host import HostKernel, every_second, needs_host_compiler
from tests.emulator.products import SparseProduct

family = SPARSE_FAMILIES["spmmv_planes"]
TYPES = ("float32", "float64", "complex64", "complex128")
ROWS = 4_000_000
FEW: DeviceInfo = replace(H200, multiprocessors=3)


def problem(width: int, dtype: str = "float64", average: int = 7, **changes: Any) -> SpmmvProblem:
    plain = SpmmvProblem(ROWS, ROWS, average * ROWS, width, dtype, dtype, width, width, pattern="planes")
    return replace(plain, longest=average, **changes)


def grid(
    extents: tuple[int, int, int], dtype: str, points: int, missing: float = 0.0, periodic: bool = False
) -> sp.csr_array:
    """A stencil of 7 or 27 points on planes of lines, some entries missing, its columns in no order."""
    rng = np.random.default_rng(points)
    every = np.arange(np.prod(extents)).reshape(extents)
    rows, columns = [], []
    for offset in itertools.product((-1, 0, 1), repeat=3):
        if points == 27 or sum(map(abs, offset)) <= 1:
            here = tuple(slice(max(0, -o), n - max(0, o)) for o, n in zip(offset, extents, strict=True))
            inside = (slice(None),) * 3 if periodic else here
            rows.append(every[inside].ravel())
            columns.append(np.roll(every, [-o for o in offset], axis=(0, 1, 2))[inside].ravel())
    row, column = np.concatenate(rows), np.concatenate(columns)
    order = rng.permutation(len(row))[: round((1 - missing) * len(row))]
    order = order[np.argsort(row[order], kind="stable")]
    indptr = np.searchsorted(row[order], np.arange(every.size + 1)).astype(np.int32)
    values = exact_values(rng, (len(order),), dtype)
    return sp.csr_array((values, column[order].astype(np.int32), indptr), shape=(every.size, every.size))


def planned(S: sp.csr_array, plan: Plan, sweep: Geometry, folder: Path) -> tuple[SweepPlan, int]:
    """The sweep through a matrix, by the kernel that plans it, and whether it failed."""
    most = loaded_rows(sweep.across, sweep.lines)
    planned_sweep = SweepPlan(
        sweep,
        np.full(sweep.steps, -1, np.int32),
        np.full((sweep.steps, most), -1, np.int32),
        np.full(S.nnz + 8, 0xFFFF, np.uint16)[: S.nnz],
    )
    failed = np.zeros(1, np.int32)
    folder.mkdir()
    source = plan_source(sweep.across, sweep.lines, sweep.entries)
    outputs = [planned_sweep.counts, planned_sweep.loads, planned_sweep.slots, failed]
    make_plan(HostKernel(source, folder, [plan.indptr, plan.indices], outputs), plan, planned_sweep, failed)
    return planned_sweep, int(failed[0])


def rows_of_steps(sweep: Geometry, program: int) -> list[tuple[int, list[int]]]:
    """The steps of a block: their numbers, and the rows that each works on."""
    across, planes = -(-sweep.line // sweep.across), sweep.planes
    layers = -(-planes // sweep.depth)
    found = []
    number = 0
    for unit in range(sweep.patches * layers):
        layer, patch = divmod(unit, sweep.patches)
        down, left = divmod(patch, across)
        deep = min(sweep.depth, planes - layer * sweep.depth)
        steps: list[tuple[int, list[int]]] = [(number, []), (number + 1, [])]
        for k in range(deep):
            p = layer * sweep.depth + k
            inside = [
                p * sweep.plane + line * sweep.line + i
                for line in range(down * sweep.lines, (down + 1) * sweep.lines)
                for i in range(left * sweep.across, min((left + 1) * sweep.across, sweep.line))
                if line * sweep.line + i < sweep.plane
            ]
            steps.append((number + 2 + k, [row for row in inside if row < sweep.n_rows]))
        number += deep + 2
        if unit % sweep.programs == program:
            found += steps
    assert number == sweep.steps
    return found


@needs_host_compiler
@pytest.mark.parametrize(
    ("extents", "n_rows", "points", "missing", "periodic", "patch", "depth", "programs"),
    [
        ((9, 10, 11), None, 7, 0.0, False, (4, 3), 4, 3),
        ((7, 9, 13), None, 27, 0.0, False, (5, 4), 7, 4),
        ((8, 9, 10), None, 27, 0.0, True, (5, 4), 3, 4),
        ((5, 8, 9), None, 7, 0.0, True, (9, 6), 2, 3),  # the last unit has the last plane alone
        ((4, 5, 3), None, 27, 0.2, True, (6, 5), 4, 7),  # lines shorter than a patch, more blocks than units
        ((6, 8, 9), None, 7, 0.3, False, (6, 3), 3, 2),  # some rows of X come late
        ((5, 6, 8), 227, 27, 0.0, False, (8, 6), 2, 2),  # the last plane is not full
    ],
)
def test_every_entry_finds_its_row_in_the_ring(
    extents: tuple[int, int, int],
    n_rows: int | None,
    points: int,
    missing: float,
    periodic: bool,
    patch: tuple[int, int],
    depth: int,
    programs: int,
    tmp_path: Path,
) -> None:
    S = sp.csr_array(grid(extents, "float64", points, missing, periodic)[:n_rows, :])
    plan = Plan(S.indptr, S.indices, S.data)
    line, plane = extents[2], extents[1] * extents[2]
    sweep = Geometry(S.shape[0], line, plane, *patch, points, depth, programs)
    planned_sweep, failed = planned(S, plan, sweep, tmp_path / "plan")
    assert not failed
    ring_rows, seen = 4 * (patch[0] + 2) * (patch[1] + 2), []
    for program in range(programs):
        ring, position = np.full(ring_rows, -1), 0
        steps = rows_of_steps(sweep, program)
        for at in range(len(steps) + 1):
            if at < len(steps):  # a step's rows come while the one before is worked on
                loads = planned_sweep.loads[steps[at][0], : planned_sweep.counts[steps[at][0]]]
                ring[(position + np.arange(len(loads))) % ring_rows] = loads
                position += len(loads)
            for row in steps[at - 1][1] if at else []:
                entries = slice(S.indptr[row], S.indptr[row + 1])
                np.testing.assert_array_equal(ring[planned_sweep.slots[entries]], S.indices[entries])
                seen.append(row)
    assert sorted(seen) == list(range(S.shape[0]))


@needs_host_compiler
def test_a_matrix_without_a_grid_fails_to_be_planned(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    S = sp.random_array((600, 600), density=0.02, format="csr", rng=rng)
    S.indices, S.indptr = S.indices.astype(np.int32), S.indptr.astype(np.int32)
    plan = Plan(S.indptr, S.indices, S.data)
    _, failed = planned(S, plan, Geometry(600, 20, 100, 4, 2, plan.longest, 3, 2), tmp_path / "plan")
    assert failed


SIMPLE: dict[str, Any] = {
    **{"alpha": 1, "beta": 0, "shift": None, "pitches": (0, 0), "align_y": 16, "points": 7},
    **{"delta": None, "eta": 1, "extents": (5, 7, 9), "periodic": False, "n_rows": None},
}
HOST_CASES: list[dict[str, Any]] = [
    {"width": 8, "types": "float64", "config": Config(2, 2, 2, 3, 6, 4, 7, 2)},
    {
        **{"width": 16, "types": "complex128", "config": Config(4, 2, 1, 2, 4, 3, 7, 2), "shift": "column"},
        **{"beta": 2j, "pitches": (1, 2), "periodic": True},
    },
    {
        **{"width": 20, "types": ("float32", "float64"), "config": Config(1, 5, 2, 4, 8, 5, 27, 3)},
        **{"points": 27, "alpha": 3, "beta": 1, "shift": "scalar", "pitches": (4, 1), "align_y": 8},
    },
    {
        **{"width": 16, "types": ("float32", "complex64"), "config": Config(2, 4, 2, 1, 5, 2, 27, 2)},
        **{"points": 27, "delta": 2, "eta": -1, "extents": (4, 9, 6)},
    },
    {
        **{"width": 12, "types": ("float64", "complex128"), "config": Config(1, 3, 1, 8, 3, 3, 7, 1)},
        **{"delta": 0, "align_y": 8, "n_rows": 250},
    },
]


@needs_host_compiler
@pytest.mark.parametrize("case", every_second(HOST_CASES), ids=lambda c: f"{c['width']}-{c['types']}")
def test_the_kernels_run_on_the_host_are_exact(case: dict[str, Any], tmp_path: Path) -> None:
    case = SIMPLE | case
    types = case["types"]
    dtype_s, dtype_x = (types, types) if isinstance(types, str) else types
    missing = 0.1 if case["points"] == 7 else 0.0
    S = sp.csr_array(
        grid(case["extents"], dtype_s, case["points"], missing, case["periodic"])[: case["n_rows"]]
    )
    plan = Plan(S.indptr, S.indices, S.data)
    plan.line, plan.plane = case["extents"][2], case["extents"][1] * case["extents"][2]
    of_problem = {"pattern": "planes", "longest": plan.longest}
    product = SparseProduct(S, dtype_x, case, align_x=16, align_y=case["align_y"], **of_problem)
    p, size_y = product.problem, min(16, case["config"].vector * itemsize(product.problem.dtype))
    config = replace(case["config"], aligned_y=min(p.align_y, p.align_z) % size_y == 0)
    assert family.refuse(p, config, FEW) is None
    planned_sweep, failed = planned(S, plan, family.form_key(p, config, FEW, plan), tmp_path / "plan")
    assert not failed
    readable = [
        plan.indptr,
        plan.data,
        planned_sweep.slots,
        planned_sweep.counts,
        planned_sweep.loads,
        *product.readable,
    ]
    (tmp_path / "product").mkdir()
    kernel = HostKernel(family.source(p, config, FEW), tmp_path / "product", readable, product.writable)
    product.check(family.bind({"rows": kernel}, p, config, FEW, plan, planned_sweep))


# ---- geometry


@given(
    line=st.integers(1, 300),
    lines=st.integers(1, 300),
    planes=st.integers(1, 300),
    patch=st.sampled_from([(16, 8), (8, 8), (8, 7)]),
    programs=st.integers(1, 300),
)
def test_units_are_as_deep_as_keeps_blocks_busy(
    line: int, lines: int, planes: int, patch: tuple[int, int], programs: int
) -> None:
    found = geometry(line * lines * planes, line, line * lines, patch, 7, programs)
    assert found.planes == planes
    whole = replace(found, depth=planes)
    assert found.balance <= whole.balance
    assert found.balance >= 1
    assert found.steps >= found.patches * planes


# ---- choices and generated code


def test_problems_that_cannot_be_run_are_refused_with_a_reason() -> None:
    refused = {
        "copies": (problem(16), host_device(2)),
        "no sums": (problem(16, dots=("xy",)), H200),
        "grids of planes": (problem(16, pattern="lines"), H200),
        "the result's type": (problem(16, dtype_matrix="complex128"), H200),
        "32-bit": (problem(16, index_bytes=8), H200),
        "bytes": (problem(4), H200),
        "pieces": (problem(9), H200),
        "at most": (problem(16, average=70), H200),
    }
    for reason, (p, device) in refused.items():
        assert reason in str(family.supports(p, device)), reason
    assert family.supports(problem(16), H200) is None


def test_configurations_are_refused_with_a_reason() -> None:
    p = problem(16)
    good = family.choose(p, H200)
    refused = {
        "are not 16 bytes": replace(good, vector=1),
        "powers of two": replace(good, lanes=3),
        "do not make up": replace(good, vectors=9),
        "rows of X are": good,
        "rows of Y are": good,
        "room for": replace(good, entries=6),
        "on a multiprocessor": replace(good, warps=16, blocks=5),
        "threads": replace(good, across=64),
        "in flight": replace(good, unroll=9),
        "registers": replace(good, unroll=8, lanes=2, vectors=4),
        "shared memory": replace(good, lanes=8, vectors=2, across=16, lines=8),
    }
    others = {
        "rows of X are": replace(p, align_x=8),
        "rows of Y are": replace(p, align_y=8),
        "shared memory": problem(32),
    }
    for reason, config in refused.items():
        assert reason in str(family.refuse(others.get(reason, p), config, H200)), reason


def test_a_planned_matrix_is_summed_up_as_one_in_order_is() -> None:
    for width, average in ((16, 27), (32, 7), (64, 7)):
        assert_summed_up_in_order(problem(width, average=average))
