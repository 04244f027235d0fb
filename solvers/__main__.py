"""``blockvec-eigs``: eigenvalues of a matrix in a file, or of a model, from the shell."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from typing import Any

import blockvec
from blockvec.errors import OptionError
from blockvec.parallel import Communicator
from blockvec.system.commands import DONE, INTERRUPTED, write_all

from . import command
from .arguments import CHOICES
from .blocks import to_host
from .costs import dense_rows
from .eigsh import eigsh
from .planning import plan
from .problem import WHICH
from .result import ConvergenceWarning, EigenResult, Interrupted, doubt, is_complete

NAME = "blockvec-eigs"
UNCONVERGED, UNVERIFIED = 1, 3  # exit codes
EIGSH = signature(eigsh).parameters.keys()
SAVED = ("eigenvalues", "eigenvectors", "residuals", "converged")  # arrays of --save

EPILOG = f"""\
MATRIX and --mass FILE are models, or files of {command.FILES}

exit codes: 0 all pairs converged, 1 some did not (they are shown and flagged), 2 arguments or files
that cannot be used, 3 all converged, but copies of multiple eigenvalues may be missing, 130 interrupted
(the pairs computed so far are shown).

{command.MODELS}
"""


# `eigsh` has the same names.
OPTIONS: tuple[command.Option, ...] = (
    ("-k K", int, None, "wanted eigenpairs (default 6; with --interval at most so many)"),
    ("--which", (*WHICH, "BE"), None, "ends SA, LA, both BE, magnitudes LM (default SA, with --sigma LM)"),
    ("--sigma S", float, None, "eigenvalues near this number"),
    ("--interval A B", float, None, "all eigenvalues from A to B; -inf and inf for no end"),
    ("--hz", bool, None, "eigenvalues are (2 pi f)^2: --sigma and --interval give f in Hz, and f is printed"),
    ("--mass FILE", str, None, "mass matrix M of a generalised problem A x = lambda M x"),
    ("--tol T", float, 1e-8, "tolerance of --convergence"),
    ("--convergence", CHOICES["convergence"], "norm", "residuals up to T |theta|, T (||A|| + |theta|), or T"),
    ("--method", CHOICES["method"], "auto", "iteration, or dense LAPACK"),
    ("--precision", CHOICES["precision"], "auto", "of filters: single within a solve in double, or double"),
    ("--block-size B", int, None, "columns the matrix is applied to at once"),
    ("--ncv N", int, None, "basis vectors between restarts"),
    ("--maxiter N", int, None, "restarts at most"),
    ("--time-limit S", float, None, "seconds after which to stop"),
    ("--checkpoint FILE", str, None, "save the state here every minute; if the file exists, resume from it"),
    ("--verify", CHOICES["verify"], "auto", "look for missed copies"),
    ("--device", ("auto", "cpu", "gpu"), "auto", "a GPU if there is one, the CPU with --mass or --comm"),
    ("--plot PNG", str, None, "draw the convergence history into this file"),
    ("--save NPZ", str, None, "write eigenvalues, eigenvectors and residuals to this file"),
    ("--plan", bool, None, "print what would be done, and stop"),
)


def _squared(frequency: float) -> float:
    """Convert a frequency in Hz to the eigenvalue (2 pi f)^2, with the sign of f."""
    return math.copysign((2 * math.pi * frequency) ** 2, frequency)


def _frequencies(result: EigenResult) -> list[float]:
    """Convert eigenvalues to frequencies in Hz; those of negative ones, as of modes at rest, are negative."""
    values = to_host(result.eigenvalues).tolist()
    return [math.copysign(math.sqrt(abs(value)) / (2 * math.pi), value) for value in values]


def _run(arguments: argparse.Namespace, A: Any, device: str, comm: Communicator | None) -> int:
    if arguments.plot and arguments.method == "dense":
        raise OptionError("--plot: --method dense does not iterate, there is no history to draw.")
    if arguments.hz:
        arguments.sigma = None if arguments.sigma is None else _squared(arguments.sigma)
        arguments.interval = arguments.interval and [_squared(end) for end in arguments.interval]
    M = None if arguments.mass is None else command.opened(arguments.mass)
    is_end = arguments.sigma is None and arguments.interval is None
    call: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name in EIGSH}
    call |= {"A": A, "M": M, "which": arguments.which or ("SA" if is_end else "LM"), "device": device}
    call["comm"] = None
    if arguments.plan:
        planned = plan(**call)
        text = json.dumps(planned.to_dict(), allow_nan=False) if arguments.json else str(planned)
        write_all({"standard output": lambda: print(text, flush=True)})
        return DONE
    may_be_dense = A.shape[0] <= dense_rows("interval", device, 0)
    draws = arguments.method == "auto" and arguments.plot and not arguments.interval and may_be_dense
    if draws:
        call["method"] = "lanczos"  # dense LAPACK has no history
    with blockvec.profile() if arguments.profile else nullcontext() as profile:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # printed below
                result = eigsh(**call, progress=True, on_unconverged="return", return_info=True)
            result = result.with_info(why="--plot is given") if draws else result
        except Interrupted as stop:
            result = stop.result
    if comm is not None and arguments.save:
        result = replace(result, eigenvectors=result.eigenvectors.gather().array)
    command.write_results(
        arguments,
        comm,
        result,
        lambda: _document(arguments, result),
        lambda: _tables(arguments, A, result),
        lambda: {name: to_host(getattr(result, name)) for name in SAVED},
        profile,
    )
    if result.info["stopped"] == "interrupted":
        return INTERRUPTED
    if message := doubt(result, arguments.verify):
        print(f"{NAME}: {message}", file=sys.stderr)
        return UNVERIFIED
    return DONE if is_complete(result, arguments.verify) else UNCONVERGED


def _document(arguments: argparse.Namespace, result: EigenResult) -> dict[str, Any]:
    inputs = {name: getattr(arguments, name) for name in ("matrix", "mass", "sigma")}
    return inputs | result.to_dict() | ({"frequencies_hz": _frequencies(result)} if arguments.hz else {})


def _tables(arguments: argparse.Namespace, A: Any, result: EigenResult) -> list[str]:
    info, layout = result.info, getattr(A, "layout", None)
    size = f"{info['n']} x {info['n']}, {getattr(A, 'nnz', A.shape[0] * A.shape[1])} entries"
    mass = "" if arguments.mass is None else f" with mass {arguments.mass}"
    processes = "" if layout is None else f", in {layout.size} processes"
    if layout is not None and info["device"] != "cpu":
        processes += f" ({info['processes'][0]['transport']})"
    head = f"{arguments.matrix}{mass}: {size}, {info['dtype']}, on {info['device']}{processes}"
    stopped = info["stopped"] == "interrupted"
    tables = [f"{head}\n{result}" + "\ninterrupted: the table shows what was reached" * stopped]
    if arguments.hz:
        shown = (f"{i:4d} {f:14.6g}" for i, f in enumerate(_frequencies(result), 1))
        tables.append("\n".join(["     frequency / Hz", *shown]))
    if "processes" in info:
        tables.append(_process_table(info["processes"]))
    return tables


def _process_table(shares: Sequence[Mapping[str, Any]]) -> str:
    lines = ["process       rows      entries  halo rows  MB sent  products s  waiting s"]
    for rank, own in enumerate(shares):
        waiting_s, sent_mb = own["exchange_s"] + own["reduction_s"], own["bytes_sent"] * 1e-6
        sizes = f"{rank:7d} {own['rows']:10d} {own['entries'] or '':>12} {own['halo_rows']:10d}"
        lines.append(f"{sizes} {sent_mb:8.1f} {own['product_s']:11.2f} {waiting_s:10.2f}")
    return "\n".join(lines)


HINT, ALONE = "a mass matrix is given by --mass", ("mass", "interval", "matrix-free")
TEXT = "Compute a few eigenvalues of a real symmetric or complex Hermitian sparse matrix."
COMMAND = command.Command(NAME, TEXT, EPILOG, OPTIONS, HINT, ALONE, _run)
parser, main = COMMAND.parser, COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
