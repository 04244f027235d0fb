"""Measurement of a case: blockvec and its peers in alternating bursts, as a row of a table."""

from __future__ import annotations

from ..backends import Backend
from ..kernels.measure import Timing, measure_beside
from ..kernels.problem import SpmmvProblem
from ..kernels.roofline import Ceilings, fraction, gather_time, traffic
from ..system.frozen import frozen
from .cases import Case

# OpenBLAS threads spin for 2^28 ticks (0.1 s) after a call and occupy cores of the next measurement.
BLAS_SPIN_S = 0.12


@frozen
class Measured:
    """A case with the timings of blockvec and of its peers."""

    case: Case
    ours: Timing
    peers: dict[str, Timing]
    ceilings: Ceilings

    def line(self) -> str:
        """Format the table row."""
        problem, ours_s = self.case.problem, self.ours.median_s
        if isinstance(problem, SpmmvProblem):
            rows, M, N = problem.n_rows, problem.width, problem.width
        else:
            rows, M, N = problem.K, problem.M, getattr(problem, "N", problem.M)
        rate = traffic(problem).total_bytes / ours_s * 1e-9
        name, best = min(self.peers.items(), key=lambda peer: peer[1].median_s)
        limit, theirs = (fraction(problem, time_s, self.ceilings) for time_s in (ours_s, best.median_s))
        gather_s = gather_time(problem, self.ceilings)
        gathered = "-" if gather_s is None else f"{gather_s / ours_s:.0%}"
        return (
            f"{self.case.operation:11} {problem.dtype:10} {M:3d} {N:3d} {rows:10d}  {self.case.kernel:15} "
            f"{ours_s * 1e3:9.3f} {rate:8.1f} {limit:6.0%} {gathered:>6}  "
            f"{name:15} {best.median_s * 1e3:9.3f} {theirs:6.0%} {best.median_s / ours_s:8.2f}"
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
    return Measured(case, timings.pop("blockvec"), timings, ceilings)
