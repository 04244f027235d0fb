"""Time of products and sums with rows split over GPUs, from latencies and bandwidths.

    python -m tests.benchmarks.scaling_model

prints the efficiency of products with the 3-D Laplacian, cut into slabs and into bricks, on up to 64 GPUs.
An exchange is overlapped with the product of a process's own rows. `LINK_GB_S` and the latencies were
measured on two H200 of one host, `NETWORK_GB_S` is that of a network adapter of 400 Gb/s per GPU.
"""

from __future__ import annotations

import math

from tests.benchmarks.records import Record

LINK_GB_S, NETWORK_GB_S = 250.0, 45.0  # sent by a GPU
PRODUCT_S, SUM_PAIR_S, SUM_S = 10e-6, 7e-6, 12e-6  # flags and kernels of a coupling; sums over two, and more
PER_HOST = 8  # GPUs
COLUMNS, ROW_BYTES = 8, 64
ROW_S = 473e-6 / 200**3  # of a product with the 3-D Laplacian and 8 columns, on one GPU


def product_s(own_s: float, link_bytes: float, network_bytes: float = 0.0) -> float:
    """Compute the time of a product from that of the own rows and the bytes that a GPU sends."""
    return max(own_s, link_bytes / LINK_GB_S / 1e9, network_bytes / NETWORK_GB_S / 1e9) + PRODUCT_S


def predicted_s(record: Record) -> float | None:
    """Predict the time of a recorded product or sum over two GPUs; None for solves."""
    own_s: float = record["alone_s"]
    if record["operation"] == "spmmv":
        sums_s = SUM_PAIR_S if record["fused"] == "dots" else 0.0
        return product_s(own_s, 8 * record["M"] * record["halo_rows"]) + sums_s
    if record["operation"] == "tsmttsm":
        return own_s + SUM_PAIR_S
    return own_s if record["operation"] == "tsmm" else None


def grid(parts: int) -> tuple[int, int, int]:
    """Divide a power of two into three factors that are as equal as possible, the smallest first."""
    exponent = round(math.log2(parts))
    first, second, third = (2 ** ((exponent + extra) // 3) for extra in range(3))
    return first, second, third


def efficiency(n: int, gpus: int, *, bricks: bool) -> float:
    """Compute the time on one GPU over that on several, times their number, for n^3 rows."""
    own_s = n**3 * ROW_S / gpus
    hosts = max(1, gpus // PER_HOST)
    if gpus == 1:
        return 1.0
    if not bricks:  # two neighbours; of a host's GPUs the outer ones send one face to another host
        faces = min(2, gpus - 1) * n**2
        network = n**2 if hosts > 1 else 0
    else:
        parts, outer = grid(gpus), grid(hosts)
        sides = [n / part for part in parts]
        areas = [sides[1] * sides[2], sides[0] * sides[2], sides[0] * sides[1]]
        faces = sum(min(2, part - 1) * area for part, area in zip(parts, areas, strict=True))
        # A host has a brick of GPUs: of the two faces per direction one goes to another host, or two if the
        # host is one GPU wide.
        wide = [part // host for part, host in zip(parts, outer, strict=True)]
        counts = [min(2 if width == 1 else 1, host - 1) for width, host in zip(wide, outer, strict=True)]
        network = sum(count * area for count, area in zip(counts, areas, strict=True))
    return own_s / product_s(own_s, ROW_BYTES * faces, ROW_BYTES * network)


def main() -> None:
    """Print the efficiencies as a table."""
    counts = [2, 4, 8, 16, 32, 64]
    print("| laplace3d n, cut into |", " | ".join(map(str, counts)), "|")
    print("|" + "---|" * (1 + len(counts)))
    for n in (400, 640, 1000):
        for bricks in (False, True):
            values = " | ".join(f"{efficiency(n, gpus, bricks=bricks):.2f}" for gpus in counts)
            print(f"| {n}, {'bricks' if bricks else 'slabs'} | {values} |")


if __name__ == "__main__":
    main()
