"""Several steps in one launch on a GPU: of block Lanczos, and of recurrences whose two blocks take turns."""

from __future__ import annotations

from ..system.frozen import frozen
from .device import DeviceInfo
from .launch import GRID_HEADER_BYTES
from .limits import architecture_of
from .problem import is_complex
from .source import Kernel, c_type, kernel

NARROW = 8  # real columns of a block: those of a tile of a tensor product
WIDE = 256  # real columns of a basis: those whose sums fit in registers
TILE_ROWS, MOST_WARPS, LEAST_WARPS = 16, 16, 4
FP64_TENSOR_CORES = 80  # architectures from which on there are
STATIC_BYTES = 4 << 10  # of shared memory, at most
WIDEST = 8  # columns of a block of a recurrence, whose numbers of a row a thread holds
THREADS = 512  # of a block of a recurrence, of which one runs on a multiprocessor


@frozen
class KrylovStepsKernel:
    """Steps of one block size on a basis of up to ``32 tiles`` columns; see cuda/sparse/krylov_steps.cu."""

    dtype: str
    b: int
    tiles: int
    piece: int  # bytes of a copy of V: 16 where all rows are aligned so, else 8

    @property
    def parts(self) -> int:
        return 2 if is_complex(self.dtype) else 1

    @property
    def columns(self) -> int:
        """Columns of the basis that there is room for."""
        return 32 * self.tiles

    @property
    def report_rows(self) -> int:
        return 2 * self.columns + 3 * self.b + 1

    def _bytes(self) -> tuple[int, int]:
        """Compute the bytes of the coefficients, and of a warp's tile."""
        wide = self.parts * self.columns
        return 8 * NARROW * wide, 8 * TILE_ROWS * (wide + 4 + NARROW)

    def warps(self, device: DeviceInfo) -> int:
        """Compute the warps of a block: as many as have room for their tiles."""
        coefficients, tile = self._bytes()
        return min(MOST_WARPS, (device.shared_bytes_per_block - STATIC_BYTES - coefficients) // tile)

    def work_bytes(self, blocks: int) -> int:
        """Compute the bytes of the workspace."""
        return GRID_HEADER_BYTES + 8 * self.parts * self.b * (self.b + self.columns * blocks)

    def fits(self, device: DeviceInfo) -> bool:
        """Check whether there is such a kernel: sums fit in registers, tiles in shared memory."""
        has_cores = architecture_of(device) >= FP64_TENSOR_CORES
        has_registers = self.parts * self.b <= NARROW and self.parts * self.columns <= WIDE
        return has_cores and has_registers and self.warps(device) >= LEAST_WARPS

    def kernel(self, device: DeviceInfo) -> Kernel:
        warps, (coefficients, tile) = self.warps(device), self._bytes()
        constants = {"COMPLEX": is_complex(self.dtype), "B": self.b, "TILES": self.tiles, "PIECE": self.piece}
        constants |= {"THREADS": 32 * warps}
        shared = coefficients + warps * tile
        return kernel("sparse/krylov_steps", constants, threads=32 * warps, shared_bytes=shared)


@frozen
class RecurrenceKernel:
    """Steps with a matrix in CSR form on blocks of b columns; see cuda/sparse/recurrence.cu.

    Of a recurrence with given coefficients, or with those of Lanczos for each column.
    """

    dtype: str
    b: int
    lanczos: bool

    @property
    def fits(self) -> bool:
        """Whether there is such a kernel: for a power of two of columns, whose sums fit in registers."""
        reals = self.b * (1 + is_complex(self.dtype))
        is_usual = 0 < self.b <= WIDEST and not self.b & (self.b - 1)
        return is_usual and (not self.lanczos or reals <= WIDEST)

    def work_bytes(self, blocks: int) -> int:
        """Compute the bytes of the workspace of a grid."""
        return GRID_HEADER_BYTES + (2 * 8 * self.b * blocks if self.lanczos else 0)

    def kernel(self) -> Kernel:
        constants = {"COMPLEX": is_complex(self.dtype), "B": self.b, "LANCZOS": self.lanczos}
        types = {"Real": c_type(self.dtype)}
        return kernel("sparse/recurrence", constants | {"THREADS": THREADS}, types, threads=THREADS)
