"""Reproduce the figures of Ernst et al. (2021) on a GPU; `paper_points` lists the kernels to compare.

python -m tests.benchmarks.paper_figures --figures tiles,reductions --json docs/results/<device>/paper.json
python -m tests.benchmarks.plot docs/results
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blockvec.backends import Backend, backend_for
from blockvec.errors import OptionError
from blockvec.kernels.measure import Timing, measure
from blockvec.kernels.problem import TsmttsmProblem
from blockvec.kernels.roofline import Ceilings
from blockvec.operations.profile import ceilings
from blockvec.system.config import options
from tests.benchmarks import records as results
from tests.benchmarks.contest import Variant, faults_ahead, source_of
from tests.benchmarks.dense_operands import operands
from tests.benchmarks.paper_points import FIGURES, Point, points

ALL_FIGURES = (*FIGURES, "occupancy")

BUDGET_S = 0.012  # per kernel
FEW_BYTES = 256 << 20  # smaller operands are timed in replayed graphs, which hide the launch latency
REPLAYS = 20  # launches per graph

Record = dict[str, Any]


def record_figures(
    figures: Sequence[str], backend: Backend, ceilings: Ceilings, *, budget_s: float
) -> Iterator[tuple[str, Record]]:
    """Yield the measurements of figures as they are made on a GPU, each with the name of its figure.

    No kernel is timed after `budget_s` seconds; a CPU or an unknown figure raises an `OptionError`.
    """
    if backend.device.kind != "cuda":
        raise OptionError("the figures compare kernels of a GPU; give --device gpu.")
    deadline = time.monotonic() + budget_s
    todo = points([figure for figure in figures if figure != "occupancy"], backend.device)
    if "occupancy" in figures:
        for record in _occupancy(backend):
            yield "occupancy", record
    for point, record in _points(todo, backend, ceilings, deadline):
        yield point.figure, record


def _points(
    todo: Sequence[Point], backend: Any, ceilings: Ceilings, deadline: float
) -> Iterator[tuple[Point, Record]]:
    """Compile all kernels in parallel; check and time the kernels of one problem together."""
    groups: dict[tuple[str, Any], list[Point]] = {}
    for point in todo:
        groups.setdefault((point.figure, point.problem), []).append(point)
    sources = [source_of(point.problem, _variant(point), backend.device) for point in todo]
    architecture, threads = backend.device.architecture, os.cpu_count() or 1
    faults = faults_ahead(sources, architecture, options().cache_dir, threads)
    for (figure, problem), group in groups.items():
        if time.monotonic() > deadline:
            return
        compiled = (source_of(problem, _variant(point), backend.device) for point in group)
        ready = [point for point, source in zip(group, compiled, strict=True) if not faults[source]]
        for point, timing, peers in _time_beside(figure, problem, ready, backend):
            config = dataclasses.asdict(point.config)
            record = results.kernel_record(problem, point.kernel, timing, ceilings, peers, config=config)
            yield point, {"figure": figure, **record, **point.setting}


def _variant(point: Point) -> Variant:
    return Variant(point.kernel, point.config)


def _time_beside(
    figure: str, problem: Any, group: Sequence[Point], backend: Any
) -> Iterator[tuple[Point, Timing, dict[str, Timing]]]:
    """Time the points of one problem that compute the right product; over the widths also the peers.

    These are cuBLAS, and beside the paper's kernels the one that is selected for the problem.
    """
    setup = operands(backend, problem)
    right = [p for p in group if p.setting.get("reduction") == "none" or not setup.check(_variant(p))]
    accepted = [c for c in backend.candidates(problem) if not c.refusal]
    names = [c.name for c in accepted if c.vendor] if figure in ("roofline", "widths") else []
    if figure == "widths":
        names.insert(0, accepted[0].name)
    field = [*map(_variant, right), *map(Variant, names)]
    if isinstance(problem, TsmttsmProblem) and problem.K * problem.M * 16 < FEW_BYTES:
        timings = [setup.replay(variant, REPLAYS) for variant in field]
    else:
        timings = setup.time_in_turns(field, BUDGET_S * len(field))
    peers = dict(zip(names, timings[len(right) :], strict=True))
    if figure == "widths":
        peers["blockvec"] = peers.pop(names[0])
    for point, timing in zip(right, timings, strict=False):
        yield point, timing, peers


def _occupancy(backend: Any) -> Iterator[Record]:
    """Yield the bandwidth of stream kernels over resident warps and accesses in flight."""
    for setting, probe in backend.stream_probes():
        timing = measure(probe.call, backend.stopwatch, budget_s=0.02)
        rate = probe.amount / timing.median_s * 1e-9
        yield {"figure": "occupancy", **setting, "time_s": timing.median_s, "bandwidth_gb_s": round(rate, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--figures", default=",".join(ALL_FIGURES), metavar="NAMES")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--budget", type=float, default=180.0, metavar="S", help="seconds of measuring")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    backend = backend_for(arguments.device)
    limits = ceilings(backend, refresh=True)
    book = results.Book(arguments.json, results.environment(backend))
    figures = arguments.figures.split(",")
    for figure, record in record_figures(figures, backend, limits, budget_s=arguments.budget):
        book.add(record, limits)
        print(figure, record["time_s"], flush=True)
    book.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
