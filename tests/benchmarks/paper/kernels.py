"""The two kernels of Ernst et al. (2021): configurations, and sources that CuPy compiles and launches.

A configuration is everything that a kernel depends on. Its source is its fields as constants in front of
``tsmttsm.cu`` or ``tsmm.cu``, which describe the kernels and their options.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.limits import RESERVED_SHARED_BYTES, ceil_div, excess
from blockvec.kernels.problem import is_complex

PASS = 8  # values: of each thread that are summed over a block at a time, as in tsmttsm.cu

Reduction = Literal["partials", "blocks", "threads", "none"]
Coefficients = Literal["registers", "shared", "cache"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Widths and type of the operands, threads of a block, and blocks resident on a multiprocessor."""

    M: int
    N: int
    dtype: str
    threads: int = 256
    blocks: int = 1

    @property
    def parts(self) -> int:
        """Real numbers of an element."""
        return 2 if is_complex(self.dtype) else 1

    @property
    def warps(self) -> int:
        """Warps resident on a multiprocessor."""
        return self.threads // 32 * self.blocks


@dataclass(frozen=True, kw_only=True)
class Tsmttsm(Shape):
    """C += A^H B."""

    tm: int
    tn: int
    leapfrog: bool = False
    interleaved: bool = False
    reduction: Reduction = "blocks"
    accumulators: int = 0
    divisor: int = 1

    @property
    def tiles(self) -> int:
        """Threads per row."""
        return ceil_div(self.M, self.tm) * ceil_div(self.N, self.tn)

    @property
    def block_rows(self) -> int:
        """Rows that a block takes at a time."""
        return self.threads // self.tiles

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        if self.reduction == "partials":
            return 8 * self.threads * min(PASS, self.tm * self.tn * self.parts)
        return 8 * self.M * self.N * self.parts if self.reduction == "blocks" else 0

    @property
    def registers(self) -> int:
        """Bound on the registers per thread."""
        sums = self.accumulators or self.tm * self.tn
        loaded = (self.tm + self.tn) * (2 if self.leapfrog else 1)
        return 2 * self.parts * (sums + loaded) + (34 if self.leapfrog else 28)

    @property
    def misfit(self) -> str | None:
        """Which options exclude each other."""
        if self.tm > self.M or self.tn > self.N or self.tiles > self.threads:
            return f"tiles of {self.tm} x {self.tn} for {self.threads} threads"
        if (self.accumulators or self.divisor > 1) and self.reduction != "none":
            return "a result of too few sums or rows"
        return None


@dataclass(frozen=True, kw_only=True)
class Tsmm(Shape):
    """B = A C."""

    spread: int
    coefficients: Coefficients = "shared"
    rows: int = 1
    unroll: int = 4

    @property
    def columns(self) -> int:
        """Columns of B per thread."""
        return ceil_div(self.N, self.spread)

    @property
    def block_rows(self) -> int:
        """Rows that a block takes at a time."""
        return self.threads // self.spread * self.rows

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 8 * self.M * self.N * self.parts if self.coefficients == "shared" else 0

    @property
    def registers(self) -> int:
        """Bound on the registers per thread."""
        held = self.M * self.columns if self.coefficients == "registers" else 0
        loaded = min(2, self.unroll) * (self.rows + self.columns)
        return 2 * self.parts * (self.rows * self.columns + held + loaded) + 2 * self.rows + 28

    @property
    def misfit(self) -> str | None:
        """Which options exclude each other."""
        if self.spread > self.N or self.threads % self.spread:
            return f"{self.spread} of {self.threads} threads for {self.N} columns"
        if self.coefficients == "registers" and self.unroll < self.M:
            return "registers have no index: all steps are to be unrolled"
        return None


Config: TypeAlias = Tsmttsm | Tsmm


def name_of(config: Config) -> str:
    """Name the kernel and its file."""
    return type(config).__name__.lower()


def refusal(config: Config, device: DeviceInfo) -> str | None:
    """Explain why a configuration is not valid; None if it is."""
    return config.misfit or excess(
        config.threads, config.blocks, config.registers, config.shared_bytes, device
    )


def source(config: Config) -> str:
    """Generate the CUDA source."""
    hints = typing.get_type_hints(type(config))
    lines = [f"constexpr int P = {config.parts};"]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name != "dtype":
            number = typing.get_args(hints[field.name]).index(value) if isinstance(value, str) else int(value)
            lines.append(f"constexpr int {field.name.upper()} = {number};")
    body = Path(__file__).with_name(f"{name_of(config)}.cu").read_text(encoding="utf-8")
    return "\n".join([*lines, body])


@functools.cache
def load(config: Config) -> Any:
    """Compile a kernel for CuPy's current device and load it; None if it spills registers."""
    import cupy

    kernel = cupy.RawModule(code=source(config), options=("--std=c++17",)).get_function(name_of(config))
    if config.shared_bytes:  # for all resident blocks, and no more: the rest is the first-level cache
        kernel.max_dynamic_shared_size_bytes = config.shared_bytes
        whole = cupy.cuda.Device().attributes["MaxSharedMemoryPerMultiprocessor"]
        used = config.blocks * (config.shared_bytes + RESERVED_SHARED_BYTES)
        kernel.preferred_shared_memory_carveout = min(100, ceil_div(100 * used, whole))
    return None if kernel.local_size_bytes else kernel


def grid_of(config: Config, K: int, multiprocessors: int) -> int:
    """Compute the number of blocks: all that are resident at a time, fewer for few rows."""
    return max(1, min(multiprocessors * config.blocks, ceil_div(K, config.block_rows)))


def launcher(config: Config, operands: tuple[Any, Any, Any], grid: int) -> Callable[[], None]:
    """Return a function that launches a kernel on A, B and C of A^H B, or on A, C and B of A C."""
    import cupy

    arguments: list[Any] = [*operands, int(operands[0].shape[0])]
    if isinstance(config, Tsmttsm):
        partials = grid * config.M * config.N * config.parts if config.reduction == "partials" else 1
        arguments[3:3] = [cupy.empty(partials), cupy.zeros(1, "uint32")]
    kernel, shared_bytes = load(config), config.shared_bytes

    def launch() -> None:
        kernel((grid,), (config.threads,), tuple(arguments), shared_mem=shared_bytes)

    return launch
