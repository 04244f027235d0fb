"""SpMMV on grids of planes: Y = alpha (S - shift I) X + beta Y, with rows of X reused from shared memory.

Blocks sweep through the planes of a three-dimensional grid, one patch per block, and keep the rows of X that
the patch needs in a ring in shared memory (``cuda/sparse/spmmv_planes.cu``). Which rows each step loads, and
the slot of each entry's row, is planned once per matrix (``cuda/sparse/spmmv_planes_plan.cu``); nothing is
assumed of the matrix but that the plan fits. The search space and the time model are in `planes_model`.

References
----------
A. Nguyen et al., "3.5-D blocking optimization for stencil computations on modern CPUs and GPUs", SC 2010,
for the blocking of grids in two dimensions with a sweep along the third.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import WARP, ceil_div, excess_registers, excess_shared, excess_threads, round_up
from ..problem import SpmmvProblem, is_complex, itemsize
from ..roofline import LEAST_BYTES, traffic
from ..source import constants_of, render
from .arrays import Load, address, namespace
from .conversion import ConvertedFamily
from .csr_plan import Plan
from .interface import are_aligned, constants, pack_bytes, types_of
from .planes_plan import Geometry, SweepPlan, geometry

PIECE = 16  # bytes per copy to shared memory, and per pack of X
_ALIGN = 8  # entries: alignment of copies of slots and values, and the most in flight
_STEPS = 4  # whose rows of X the ring contains
_LEAST_ROW_BYTES, _FASTER_ROW_BYTES = 64, 128
_MOST_ENTRIES, _FASTER_ENTRIES = 64, 7  # per row
_PLAN_NAME, _PLAN_WARPS, _PLAN_TABLE = "spmmv_planes_plan", 16, 2048


@frozen
class PlanesConfig:
    """A configuration of the kernel.

    Attributes
    ----------
    lanes, vectors, vector : int
        Lanes that share the columns of a row, packs of columns per lane, and columns per pack.
    unroll : int
        Entries of a row whose rows of X are being loaded from shared memory.
    across, lines : int
        Points per line, and lines, of the patch of a plane that a block processes.
    entries : int
        Most entries per row.
    warps, blocks : int
        Warps per block, blocks per multiprocessor.
    aligned_y : bool
        Whether packs of Y start at multiples of their size.
    """

    lanes: int
    vectors: int
    vector: int
    unroll: int
    across: int
    lines: int
    entries: int
    warps: int = 8
    blocks: int = 2
    aligned_y: bool = True

    aligned_x: ClassVar[bool] = True

    @property
    def tile(self) -> int:
        """Columns that a block covers."""
        return self.lanes * self.vectors * self.vector


class SpmmvPlanes(ConvertedFamily[PlanesConfig]):
    """The family ``spmmv_planes``: sparse products on grids, by a plane sweep.

    A plan takes the time of 2 to 4 products, and saves 7 to 13 per cent of each.

    Attributes
    ----------
    most_imbalance : float
        Work of the busiest block, relative to an equal share, beyond which a grid is not swept.
    """

    name = "spmmv_planes"
    Config = PlanesConfig
    most_imbalance: ClassVar[float] = 1.35

    def _refuse_matrix(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        if problem.pattern != "planes":
            return "sweeps through grids of planes alone"
        if problem.dtype_x != problem.dtype:
            return f"takes blocks of the result's type, {problem.dtype}"
        if problem.index_bytes != 4:
            return "takes 32-bit indices"
        row = problem.width * itemsize(problem.dtype_x)
        if row < _LEAST_ROW_BYTES or row % PIECE or problem.align_x % PIECE:
            return f"takes rows of X of {_LEAST_ROW_BYTES} bytes and more, in aligned pieces of {PIECE}"
        if problem.longest > _MOST_ENTRIES:
            return f"rows of {problem.longest} entries, at most {_MOST_ENTRIES} are possible"
        return None

    def refuse(self, problem: SpmmvProblem, config: PlanesConfig, device: DeviceInfo) -> str | None:
        """Explain why a configuration is invalid for a problem; None if it is valid."""
        return refuse(problem, config, device)

    def is_faster(self, problem: SpmmvProblem) -> bool:
        """Check whether the family precedes `spmmv_csr` where nothing was tuned.

        On an H200 it took 0.87 to 0.93 of the time on the stencil of 7 points with 16 and more columns in
        double precision, each tuned; on that of 27 points as long with 16, and longer with more.
        """
        wide = problem.width * itemsize(problem.dtype_x) >= _FASTER_ROW_BYTES
        few = problem.longest <= _FASTER_ENTRIES
        return wide and few and problem.pattern == "planes" and traffic(problem).total_bytes >= LEAST_BYTES

    def conversion(self, problem: SpmmvProblem, config: PlanesConfig) -> str:
        """Describe the plan, when it is made, and its cost."""
        kept = 2 * problem.nnz + 9 * problem.n_rows
        return (
            f"after {self.converts_after(problem)} products a sweep through its grid is planned (reads the "
            f"matrix's pattern twice, keeps {kept / 1e6:.1f} MB); until then spmmv_csr gives the same bits"
        )

    def shared_bytes(self, problem: SpmmvProblem, config: PlanesConfig, device: DeviceInfo) -> int:
        """Compute the dynamic shared memory of a block."""
        return _block_bytes(problem, config)

    def source(
        self, problem: SpmmvProblem, config: PlanesConfig, device: DeviceInfo, part: str = "rows"
    ) -> str:
        """Generate the CUDA source; see `SparseFamily.source`."""
        values = constants(problem, config) | {
            "SHARED_BYTES": _block_bytes(problem, config),
            **constants_of(config, "unroll", "entries", "across", "lines", "warps", "blocks"),
        }
        return render(self.kernel_name(problem), "sparse/spmmv_planes.cu", values, types_of(problem))

    def _conversion_source(self, problem: SpmmvProblem, config: PlanesConfig) -> str:
        return plan_source(config.across, config.lines, config.entries)

    def form_key(
        self, problem: SpmmvProblem, config: PlanesConfig, device: DeviceInfo, plan: Plan
    ) -> Geometry:
        """Compute the geometry of a configuration's sweep through the grid of a matrix."""
        programs = max(1, device.multiprocessors * config.blocks // ceil_div(problem.width, config.tile))
        patch = config.across, config.lines
        return geometry(plan.n_rows, plan.line, plan.plane, patch, config.entries, programs)

    def convert(
        self, problem: SpmmvProblem, config: PlanesConfig, device: DeviceInfo, plan: Plan, load: Load
    ) -> SweepPlan | None:
        """Plan the sweep; None if the matrix has no suitable grid. See `SparseFamily.convert`."""
        sweep = self.form_key(problem, config, device, plan)
        if sweep.balance > self.most_imbalance:
            return None
        xp = namespace(plan.indptr)
        made = SweepPlan(
            sweep,
            xp.empty(sweep.steps, np.int32),
            xp.empty((sweep.steps, loaded_rows(config.across, config.lines)), np.int32),
            xp.empty(plan.nnz, np.uint16),
        )
        failed = xp.zeros(1, np.int32)
        make_plan(load(self._conversion_source(problem, config), _PLAN_NAME), plan, made, failed)
        return None if int(failed[0]) else made

    def _launch(
        self, problem: SpmmvProblem, config: PlanesConfig, device: DeviceInfo, plan: Plan, form: SweepPlan
    ) -> tuple[int, int, tuple[Any, ...]]:
        blocks = form.geometry.programs * ceil_div(problem.width, config.tile)
        arrays = map(address, (plan.indptr, plan.data, form.slots, form.counts, form.loads))
        return blocks, WARP * config.warps, (*arrays, *form.geometry.arguments())


def refuse(problem: SpmmvProblem, config: PlanesConfig, device: DeviceInfo) -> str | None:
    """Explain why a configuration is invalid for a problem; None if it is valid."""
    threads = WARP * config.warps
    return (
        _refuse_columns(problem, config)
        or excess_threads(threads, config.blocks, device)
        or _refuse_patch(config, threads)
        or excess_registers(registers(problem, config), threads, config.blocks, device)
        or excess_shared(_block_bytes(problem, config), config.blocks, device)
    )


def _refuse_columns(problem: SpmmvProblem, config: PlanesConfig) -> str | None:
    """Explain why rows of X, Y or the matrix do not fit; None if they do."""
    if config.vector * itemsize(problem.dtype_x) != PIECE:
        return f"packs of {config.vector} {problem.dtype_x} are not {PIECE} bytes"
    if config.lanes & (config.lanes - 1) or config.lanes > WARP:
        return f"{config.lanes} lanes share a row; powers of two are possible"
    if problem.width % config.tile:
        return f"tiles of {config.tile} columns do not make up rows of {problem.width}"
    if problem.align_x % PIECE:
        return f"rows of X are aligned to {problem.align_x} bytes, copies to {PIECE}"
    if config.aligned_y and not are_aligned(problem, config.vector)[1]:
        align_y, size_y = min(problem.align_y, problem.align_z), pack_bytes(problem, config.vector)[1]
        return f"rows of Y are aligned to {align_y} bytes, packs have {size_y}"
    if problem.longest > config.entries:
        return f"rows of {problem.longest} entries, room for {config.entries}"
    return None


def _refuse_patch(config: PlanesConfig, threads: int) -> str | None:
    """Explain why a block cannot process a patch; None if it can."""
    if max(loaded_rows(config.across, config.lines), config.lines * (config.across + 1)) > threads:
        return f"patches of {config.across} x {config.lines} points for {threads} threads"
    if not 1 <= config.unroll <= _ALIGN:
        return f"{config.unroll} entries in flight; 1 to {_ALIGN} are possible"
    return None


def _points_around(across: int, lines: int) -> int:
    """Count the points of a patch and those around it."""
    return (across + 2) * (lines + 2)


def loaded_rows(across: int, lines: int) -> int:
    """Compute the most rows of X per step: a quarter more than the patch and the points around it."""
    around = _points_around(across, lines)
    return around + around // 4


def _block_bytes(problem: SpmmvProblem, config: PlanesConfig) -> int:
    """Compute the shared memory of a block: the ring, and the entries and lists of patches."""
    ring = _STEPS * _points_around(config.across, config.lines) * config.tile * itemsize(problem.dtype_x)
    segment = round_up(config.across * config.entries + _ALIGN, _ALIGN)
    entries = config.lines * segment * (itemsize(problem.dtype_matrix) + 2)
    lists = 2 * loaded_rows(config.across, config.lines) + 3 * config.lines * (config.across + 1)
    return ring + 2 * entries + round_up(4 * lists, PIECE)


def registers(problem: SpmmvProblem, config: PlanesConfig) -> int:
    """Estimate the registers per thread."""
    packs = config.vectors * PIECE // 4
    entry = itemsize(problem.dtype_matrix) // 4 + 1
    gathering = config.unroll * (entry + packs) + (4 if is_complex(problem.dtype_matrix) else 0)
    finishing = packs if problem.shift != "none" else 0
    finishing += packs if problem.shift == "column" else 0
    finishing += packs if problem.beta != "zero" else 0
    finishing += packs if problem.chain in ("one", "general") else 0
    return packs + max(gathering, finishing) + 40


def plan_source(across: int, lines: int, entries: int) -> str:
    """Generate the CUDA source of the kernel that plans a sweep."""
    values = {
        "ACROSS": across,
        "LINES": lines,
        "ENTRIES": entries,
        "TABLE": _PLAN_TABLE,
        "WARPS": _PLAN_WARPS,
    }
    return render(_PLAN_NAME, "sparse/spmmv_planes_plan.cu", values)


def make_plan(kernel: Any, plan: Plan, into: SweepPlan, failed: Any) -> None:
    """Queue the kernel of `plan_source`, which fills the arrays of a sweep.

    `failed`, one int32 of zero, is set to 1 if steps need more rows of X than there is room for.
    """
    pattern, outputs = (plan.indptr, plan.indices), (into.counts, into.loads, into.slots, failed)
    kernel(
        (into.geometry.programs, 1),
        (WARP * _PLAN_WARPS,),
        (*map(address, pattern), *into.geometry.arguments(), *map(address, outputs)),
    )
