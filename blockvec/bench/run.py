"""Measurement of a case: blockvec and its peers in alternating bursts, as a record and a table row."""

from __future__ import annotations

from typing import Any

from ..backends import Backend
from ..kernels.measure import Timing, measure_beside
from ..kernels.roofline import Ceilings, fraction, traffic
from ..system.frozen import frozen
from .case import Case
from .records import kernel_record

# OpenBLAS threads spin for 2^28 ticks (0.1 s) after a call and occupy cores of the next measurement.
BLAS_SPIN_S = 0.12


@frozen
class Measured:
    """A case with its timings."""

    case: Case
    timings: dict[str, Timing]
    ceilings: Ceilings

    @property
    def ours(self) -> Timing:
        """Timing of blockvec."""
        return self.timings["blockvec"]

    @property
    def peers(self) -> dict[str, Timing]:
        """Timings of the peers."""
        return {name: timing for name, timing in self.timings.items() if name != "blockvec"}

    def record(self) -> dict[str, Any]:
        """Create the record of the measurement."""
        case = self.case
        measured = (self.ours, self.ceilings, self.peers)
        return kernel_record(case.problem, case.kernel, *measured, config=case.config, matrix=case.matrix)

    def line(self) -> str:
        """Format the table row."""
        record = self.record()
        rate = traffic(self.case.problem).total_bytes / self.ours.median_s * 1e-9
        name, best = min(self.peers.items(), key=lambda peer: peer[1].median_s)
        limit = fraction(self.case.problem, self.ours.median_s, self.ceilings)
        theirs = fraction(self.case.problem, best.median_s, self.ceilings)
        gathered = f"{record['fraction_gather']:.0%}" if "fraction_gather" in record else "-"
        return (
            f"{self.case.operation:11} {record['dtype']:10} {record['M']:3d} {record['N']:3d} "
            f"{record['K']:10d}  {self.case.kernel:15} {self.ours.median_s * 1e3:9.3f} {rate:8.1f} "
            f"{limit:6.0%} {gathered:>6}  {name:15} {best.median_s * 1e3:9.3f} {theirs:6.0%} "
            f"{best.median_s / self.ours.median_s:8.2f}"
        )


def heading(backend: Backend, ceilings: Ceilings) -> str:
    """Format the line of measured ceilings and the table header."""
    rates = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in sorted(ceilings.gflop_s.items()))
    l2 = f", L2 {ceilings.l2_gb_s:.1f}" if ceilings.l2_gb_s else ""
    return (
        f"{backend.device.name}: read {ceilings.read_gb_s:.1f}, write {ceilings.write_gb_s:.1f}, "
        f"copy {ceilings.copy_gb_s:.1f}{l2} GB/s; {rates} Gflop/s\n"
        f"{'call':11} {'type':10} {'M':>3} {'N':>3} {'rows':>10}  {'kernel':15} {'ms':>9} {'GB/s':>8} "
        f"{'limit':>6} {'gather':>6}  {'beside':15} {'ms':>9} {'limit':>6} {'speed-up':>8}"
    )


def measure_case(case: Case, backend: Backend, ceilings: Ceilings, *, quick: bool = False) -> Measured:
    """Time a case and its peers in alternating bursts; `quick` for few runs, as a first impression."""
    on_gpu = backend.device.kind == "cuda"
    timings = measure_beside(
        case.calls,
        backend.stopwatch,
        budget_s=0.01 if quick else 0.03 if on_gpu else 0.05,
        burst=4,
        min_rounds=1 if quick else 2 if on_gpu else 3,
        max_rounds=2 if quick else 6,
        pause_s=0.0 if on_gpu or quick else BLAS_SPIN_S,
        before_burst=backend.block_stream,
    )
    return Measured(case, timings, ceilings)
