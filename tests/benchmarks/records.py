"""Recorded results: measurements, machine and versions, as one JSON document per run.

``{"environment": ..., "ceilings": ..., "records": [...]}`` is the format of every file in ``docs/results``.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blockvec.backends import Backend
from blockvec.bench.info import cuda_runtime
from blockvec.errors import FormatError
from blockvec.kernels.build import compiler_version
from blockvec.kernels.limits import round_up
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import (
    Problem,
    SpmmvProblem,
    StreamProblem,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
)
from blockvec.kernels.roofline import (
    Ceilings,
    Traffic,
    flops,
    fraction,
    gather_time,
    memory_time,
    time_limit,
    traffic,
)
from blockvec.system.files import replaced

Record = dict[str, Any]

SECTOR_BYTES = 32  # least transfer between memory and L2 of a GPU
DIGITS = 6  # of recorded numbers, more than any measurement has


class NoResultsError(FormatError):
    """Error for a JSON file that is no document of results."""


def sector_traffic(problem: TsmttsmProblem | TsmmProblem) -> Traffic:
    """Compute the bytes of the 32-byte sectors that contain a problem's rows, the units of memory transfers.

    For contiguous operands this is `traffic`; for views it includes the rest of the sectors, with rows that
    are assumed to begin one element past a sector boundary.
    """
    if isinstance(problem, TsmttsmProblem):
        dtype_b, reads_b, writes_b = problem.dtype_b, not problem.same, False
    else:
        dtype_b, reads_b, writes_b = problem.dtype, problem.beta != "zero", True
    a = _touched(problem.M, problem.lda, itemsize(problem.dtype_a))
    b = _touched(problem.N, problem.ldb, itemsize(dtype_b))
    plain = traffic(problem)
    read_bytes = plain.read_bytes + int(problem.K * (a + (b if reads_b else 0)))
    return Traffic(read_bytes, plain.write_bytes + (int(problem.K * b) if writes_b else 0))


def _touched(width: int, ld: int, size: int) -> float:
    """Compute the bytes of sectors beyond those of a row, on average over rows."""
    if ld == width:
        return 0.0
    row, begins = width * size, ((size + i * ld * size) % SECTOR_BYTES for i in range(SECTOR_BYTES))
    return sum(round_up(begin + row, SECTOR_BYTES) for begin in begins) / SECTOR_BYTES - row


def padding_cap(problem: TsmttsmProblem | TsmmProblem, ceilings: Ceilings) -> float:
    """Compute the fraction of the roofline that padding widths to whole tensor-core tiles allows.

    Tiles of A^H B have 8 columns of A and of B, those of A C 4 columns of A and 8 real numbers per row of B.
    """
    unit_m, unit_n = (
        (8, 8) if isinstance(problem, TsmttsmProblem) else (4, 4 if is_complex(problem.dtype) else 8)
    )
    wide = dataclasses.replace(problem, M=round_up(problem.M, unit_m), N=round_up(problem.N, unit_n))
    useful_s = time_limit(problem, ceilings)
    arithmetic_s = time_limit(problem, ceilings, work=flops(wide))
    return useful_s / arithmetic_s if arithmetic_s else 1.0


def environment(backend: Backend) -> Record:
    """Collect device and versions that a measurement depends on; "" for what is not installed or not used."""
    from blockvec import __version__

    device = backend.device
    on_gpu = device.kind == "cuda"
    return {
        "device": device.name,
        "cores": 0 if on_gpu else device.multiprocessors,
        "driver": device.driver,
        "cuda": cuda_runtime(backend) if on_gpu else "",
        "nvrtc": compiler_version() if on_gpu else "",
        "cupy": backend.xp.__version__ if on_gpu else "",
        "numpy": importlib.metadata.version("numpy"),
        "scipy": importlib.metadata.version("scipy"),
        "python": platform.python_version(),
        "blockvec": __version__,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _commit() -> str:
    """Determine the commit of this source tree, with a + if files differ from it; "" if unknown."""
    tree = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tree), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        is_own = Path(git("rev-parse", "--show-toplevel")) == tree  # and not a repository around a copy
        return os.environ.get("BLOCKVEC_COMMIT", "") or (
            git("describe", "--always", "--exclude=*", "--dirty=+") if is_own else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("BLOCKVEC_COMMIT", "")


def ceilings_record(ceilings: Ceilings) -> Record:
    """Convert ceilings to their form in a document."""
    names = ("read_gb_s", "write_gb_s", "copy_gb_s", *(("l2_gb_s",) if ceilings.l2_gb_s else ()))
    record: Record = {name: round(getattr(ceilings, name), 2) for name in names}
    if ceilings.mixed_gb_s:
        record["mixed_gb_s"] = [[round(share, 4), round(rate, 2)] for share, rate in ceilings.mixed_gb_s]
    for dtype, rate in ceilings.gflop_s.items():
        record[f"fp{dtype.removeprefix('float')}_gflop_s"] = round(rate, 1)
    return record


def kernel_record(
    problem: Problem,
    kernel: str,
    timing: Timing,
    ceilings: Ceilings,
    peers: Mapping[str, Timing],
    *,
    config: str | Mapping[str, Any] = "",
    matrix: str | None = None,
) -> Record:
    """Create the record of one measured operation, beside the times of peers in the same run.

    The kernel is the name of the family and its parameters, the matrix that of a sparse product.
    """
    record: Record = {"operation": problem.operation, "dtype": problem.dtype}
    record |= _extents(problem)
    if matrix is not None:
        record["matrix"] = matrix
    record |= {
        "family": kernel,
        "config": config if isinstance(config, str) else dict(config),
        "time_s": timing.median_s,
        "spread": round(timing.spread, 4),
        "fraction": round(fraction(problem, timing.median_s, ceilings), 4),
        "peers": {name: peer.median_s for name, peer in peers.items()},
    }
    if isinstance(problem, TsmttsmProblem | TsmmProblem):
        if max(problem.lda, problem.ldb) > max(problem.M, problem.N):
            sectors_s = memory_time(sector_traffic(problem), ceilings)
            record["fraction_sectors"] = round(sectors_s / timing.median_s, 4)
        if (cap := padding_cap(problem, ceilings)) < 0.9999:
            record["cap"] = round(cap, 4)
    if (gather_s := gather_time(problem, ceilings)) is not None:
        record["fraction_gather"] = round(gather_s / timing.median_s, 4)
    return record


def _extents(problem: Problem) -> Record:
    names: tuple[str, ...]
    match problem:
        case TsmttsmProblem() | SweepProblem():
            names = ("M", "N", "K", "lda", "ldb")
        case TsmmProblem():
            names = ("M", "N", "K", "lda", "ldb", "beta", "inplace")
        case SpmmvProblem():
            sizes = {"M": problem.width, "N": problem.width, "K": problem.n_rows}
            sizes |= {"lda": problem.ldx, "ldb": problem.ldy, "nnz": problem.nnz}
            return sizes | _beside_the_product(problem)
        case StreamProblem():
            return {"M": problem.M, "N": problem.M, "K": problem.K}
    return {name: getattr(problem, name) for name in names}


def _beside_the_product(problem: SpmmvProblem) -> Record:
    """Describe the fused parts of an SpMMV: classes of its factors, names of its reductions."""
    plain = {"alpha": "one", "beta": "zero", "shift": "none", "chain": "none", "dots": (), "gram": ()}
    given = {name: getattr(problem, name) for name in plain}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value != plain[name]
    }


def document(environment: Record, ceilings: Ceilings | Record, records: Sequence[Record]) -> Record:
    """Assemble the document of one run."""
    if isinstance(ceilings, Ceilings):
        ceilings = ceilings_record(ceilings)
    return {"environment": environment, "ceilings": ceilings, "records": list(records)}


def shortened(value: Any) -> Any:
    """Return a value of JSON with few digits of all its numbers."""
    if isinstance(value, Mapping):
        return {key: shortened(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def write(
    path: str | Path, environment: Record, ceilings: Ceilings | Record, records: Sequence[Record]
) -> None:
    """Write the document of one run atomically, with one record per line; its folder is created."""
    whole = shortened(document(environment, ceilings, records))
    lines = ",\n  ".join(json.dumps(record) for record in whole["records"])
    text = (
        f'{{"environment": {json.dumps(whole["environment"])},\n'
        f' "ceilings": {json.dumps(whole["ceilings"])},\n'
        f' "records": [\n  {lines}]}}\n'
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replaced(path, durable=False) as stream:
        stream.write(text.encode())


def grouped(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Group records by the values of some keys."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return groups


def read(path: str | Path) -> Record:
    """Read a document.

    Raises
    ------
    OSError
        If there is no such file.
    FormatError
        If it is not such a document; the message names the line of a JSON error.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: this is no JSON ({error.msg}); write it again.") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path}: this is no text, let alone JSON; give a file of results.") from None
    known = isinstance(found, dict) and {"environment", "ceilings", "records"} <= found.keys()
    if not known or not isinstance(found["records"], list):
        raise NoResultsError(
            f"{path}: these are no results: a document has 'environment', 'ceilings' and 'records'."
        )
    return dict(found)
