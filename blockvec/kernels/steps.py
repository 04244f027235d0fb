"""Several steps in one launch on a GPU: of block Lanczos, and of recurrences whose two blocks take turns."""

from __future__ import annotations

from ..system.frozen import frozen
from .device import DeviceInfo
from .launch import GRID_HEADER_BYTES
from .limits import architecture_of
from .problem import is_complex
from .source import c_type, render, short_names

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

    def shared_bytes(self, device: DeviceInfo) -> int:
        """Compute the dynamic shared memory of a block."""
        coefficients, tile = self._bytes()
        return coefficients + self.warps(device) * tile

    def work_bytes(self, blocks: int) -> int:
        """Compute the bytes of the workspace."""
        return GRID_HEADER_BYTES + 8 * self.parts * self.b * (self.b + self.columns * blocks)

    def refusal(self, device: DeviceInfo) -> str:
        """Explain why there is no such kernel; empty if there is."""
        if architecture_of(device) < FP64_TENSOR_CORES:
            return "there are no tensor cores for double precision"
        if self.parts * self.b > NARROW or self.parts * self.columns > WIDE:
            return "the sums of a step do not fit in registers"
        return "" if self.warps(device) >= LEAST_WARPS else "tiles do not fit in shared memory"

    @property
    def name(self) -> str:
        odd = "_odd" if self.piece < 16 else ""
        return f"krylov_steps_{short_names(self.dtype)}_w{self.b}_t{self.tiles}{odd}"

    def source(self, device: DeviceInfo) -> str:
        constants = {
            "COMPLEX": is_complex(self.dtype),
            "B": self.b,
            "TILES": self.tiles,
            "PIECE": self.piece,
            "THREADS": 32 * self.warps(device),
        }
        return render(self.name, "sparse/krylov_steps.cu", constants)


@frozen
class RecurrenceKernel:
    """Steps with a matrix in CSR form on blocks of b columns; see cuda/sparse/recurrence.cu.

    Of a recurrence with given coefficients, or with those of Lanczos for each column.
    """

    dtype: str
    b: int
    lanczos: bool

    @property
    def refusal(self) -> str:
        """Explain why there is no such kernel; empty if there is."""
        if not 0 < self.b <= WIDEST or self.b & (self.b - 1):
            return f"blocks have 1, 2, 4 or {WIDEST} columns, not {self.b}"
        reals = self.b * (1 + is_complex(self.dtype))
        return f"sums of {reals} numbers do not fit in registers" if self.lanczos and reals > WIDEST else ""

    def work_bytes(self, blocks: int) -> int:
        """Compute the bytes of the workspace of a grid."""
        return GRID_HEADER_BYTES + (2 * 8 * self.b * blocks if self.lanczos else 0)

    @property
    def name(self) -> str:
        kind = "lanczos_recurrence" if self.lanczos else "recurrence"
        return f"{kind}_{short_names(self.dtype)}_w{self.b}"

    def source(self) -> str:
        constants = {
            "COMPLEX": is_complex(self.dtype),
            "B": self.b,
            "LANCZOS": self.lanczos,
            "THREADS": THREADS,
        }
        return render(self.name, "sparse/recurrence.cu", constants, {"Real": c_type(self.dtype)})
