"""Probe kernels: what memory, L2, multiply-add pipes and FP64 tensor cores do when they do nothing else.

And one that does nothing, for a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .source import render

__all__ = [
    "BulkProbe",
    "CacheProbe",
    "FmaProbe",
    "Hold",
    "MixProbe",
    "StreamKind",
    "StreamProbe",
    "TensorProbe",
    "ViewProbe",
]

StreamKind = Literal["read", "write", "scale"]


@dataclass(frozen=True, slots=True)
class StreamProbe:
    """Streams memory by 16-byte accesses, `unroll` in flight a thread; see cuda/probes/stream_probe.cu."""

    kind: StreamKind
    unroll: int
    threads: int = 512

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"{self.kind}_probe_{self.unroll}"

    def source(self) -> str:
        """Return CUDA C++."""
        kind = ("read", "write", "scale").index(self.kind)
        constants = {"KIND": kind, "THREADS": self.threads, "UNROLL": self.unroll}
        return render(self.name, "probes/stream_probe.cu", constants)


@dataclass(frozen=True, slots=True)
class ViewProbe:
    """Moves what a product of views moves, by single elements; see cuda/probes/view_probe.cu.

    Attributes
    ----------
    size : int
        Bytes of an element.
    M, N : int
        Widths of A, which is read, and of B.
    reads_b, writes_b : bool
        What is done to B.
    unroll : int
        Rows in flight a thread.
    """

    size: int
    M: int
    N: int
    reads_b: bool
    writes_b: bool
    unroll: int

    threads = 512

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"view_probe_{self.size}_m{self.M}_n{self.N}"

    def source(self) -> str:
        """Return CUDA C++."""
        constants: dict[str, bool | int | float] = {
            **{"SIZE": self.size, "M": self.M, "N": self.N},
            **{"READS_B": self.reads_b, "WRITES_B": self.writes_b},
            **{"THREADS": self.threads, "UNROLL": self.unroll},
        }
        return render(self.name, "probes/view_probe.cu", constants)


@dataclass(frozen=True, slots=True)
class MixProbe:
    """Reads and writes so many vectors of 16 bytes a thread, block after block; see mix_probe.cu."""

    reads: int
    writes: int

    threads = 256

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"mix_probe_{self.reads}_{self.writes}"

    def source(self) -> str:
        """Return CUDA C++."""
        constants = {"READS": self.reads, "WRITES": self.writes, "THREADS": self.threads}
        return render(self.name, "probes/mix_probe.cu", constants)


@dataclass(frozen=True, slots=True)
class BulkProbe:
    """Reads and writes so many bytes a block by bulk copies; see cuda/probes/bulk_probe.cu."""

    read_bytes: int
    write_bytes: int

    name = "bulk_probe"
    threads = 32

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return max(self.read_bytes, self.write_bytes)

    def source(self) -> str:
        """Return CUDA C++."""
        return render(self.name, "probes/bulk_probe.cu", {})


@dataclass(frozen=True, slots=True)
class CacheProbe:
    """Reads what fits the cache that all multiprocessors share, past their own; see cache_probe.cu."""

    unroll: int

    threads = 512

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"cache_probe_{self.unroll}"

    def bytes_read(self, units: int, blocks: int, passes: int) -> int:
        """Bytes that a launch reads of a buffer of so many 16-byte units; whole strides only."""
        step = self.unroll * blocks * self.threads
        return units // step * step * 16 * passes

    def source(self) -> str:
        """Return CUDA C++."""
        return render(self.name, "probes/cache_probe.cu", {"THREADS": self.threads, "UNROLL": self.unroll})


@dataclass(frozen=True, slots=True)
class FmaProbe:
    """Multiplies and adds registers in single precision; see cuda/probes/fma_probe.cu."""

    accumulators: int = 16

    threads = 512

    @property
    def name(self) -> str:
        """Name of the function."""
        return "fma_probe"

    def flops(self, blocks: int, repeats: int) -> float:
        """Operations of a launch."""
        return 2.0 * self.accumulators * repeats * blocks * self.threads

    def source(self) -> str:
        """Return CUDA C++."""
        constants = {"THREADS": self.threads, "ACCUMULATORS": self.accumulators}
        return render(self.name, "probes/fma_probe.cu", constants)


@dataclass(frozen=True, slots=True)
class Hold:
    """Keeps a stream busy for a time; see cuda/probes/block_stream.cu."""

    name = "hold"
    threads = 1

    def source(self) -> str:
        """Return CUDA C++."""
        return render(self.name, "probes/block_stream.cu", {})


@dataclass(frozen=True, slots=True)
class TensorProbe:
    """Multiplies registers on the FP64 tensor cores (sm_80 and later); see cuda/probes/tensor_probe.cu."""

    accumulators: int = 8

    threads = 512

    @property
    def name(self) -> str:
        """Name of the function."""
        return "tensor_probe"

    def flops(self, blocks: int, repeats: int) -> float:
        """Operations of a launch: a product is 16 x 8 x 4 multiply-adds."""
        return 2.0 * 16 * 8 * 4 * self.accumulators * repeats * blocks * (self.threads // 32)

    def source(self) -> str:
        """Return CUDA C++."""
        constants = {"THREADS": self.threads, "ACCUMULATORS": self.accumulators}
        return render(self.name, "probes/tensor_probe.cu", constants)
