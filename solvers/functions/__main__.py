"""``blockvec-dos``: the density of states of a matrix in a file, or of a model, from the shell."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

import blockvec
from blockvec.parallel import Communicator
from blockvec.system.commands import DONE, write_all
from blockvec.system.files import check_apart, check_output, check_picture, replaced

from ..command import (
    FILES,
    JSON,
    MODELS,
    RNG,
    Option,
    comm_option,
    device_of,
    opened,
    opened_together,
    parser_of,
    run,
    write_plot,
)
from .density import KERNELS, POINTS, DensityOfStates, density_of_states

NAME = "blockvec-dos"
ROWS = 21  # of the printed table

EPILOG = f"""\
MATRIX is a model, or a file of {FILES}

exit codes: 0 done, 2 arguments or files that cannot be used, 130 interrupted.

{MODELS}
"""

OPTIONS: tuple[Option, ...] = (
    ("--matrix-free", bool, None, "store no matrix; for the models of many particles, xxz and hubbard"),
    ("--moments N", int, 1024, "Chebyshev moments, two per product"),
    ("--vectors R", int, 16, "random vectors"),
    ("--kernel", KERNELS, "jackson", "Gaussian peaks, or Lorentzian ones"),
    ("--sites LIST", str, None, "local densities of these rows, as 0,17"),
    ("--points N", int, POINTS, "energies of --json and --save"),
    ("--device", ("auto", "cpu", "gpu"), "auto", "a GPU if there is one, the CPU with --comm"),
    comm_option(NAME),
    RNG,
    ("--plot PNG", str, None, "draw the density into this file"),
    ("--save NPZ", str, None, "write energies, density, errors, moments and bounds to this file"),
    ("--profile", bool, None, "print calls, time and fraction of the roofline per kernel, too"),
    JSON,
)


def parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    text = "Compute the density of states of a real symmetric or complex Hermitian sparse matrix."
    return parser_of(NAME, text, EPILOG, OPTIONS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run(parser(), argv, "one matrix is enough", ("matrix-free",), _run)


def _run(arguments: argparse.Namespace, comm: Communicator | None) -> int:
    is_first = comm is None or comm.rank == 0
    if is_first:
        files = {"--save": arguments.save, "--plot": arguments.plot}
        if arguments.save is not None:
            check_output("--save", arguments.save)
        if arguments.plot is not None:
            check_picture("--plot", arguments.plot)
        check_apart({"the matrix": arguments.matrix, **files})
    device = device_of(arguments)
    H: Any
    if comm is not None:
        H = opened_together(arguments.matrix, device, comm)
    elif arguments.matrix_free:
        H = blockvec.models.operator(arguments.matrix, device=device)
    else:
        H = opened(NAME, arguments.matrix)
    begin_s = time.perf_counter()
    with blockvec.profile() if arguments.profile else nullcontext() as profile:
        rho = density_of_states(
            H,
            arguments.moments,
            arguments.vectors,
            arguments.kernel,
            arguments.rng,
            sites=None if arguments.sites is None else _sites(arguments.sites),
            device=None if comm is not None or arguments.matrix_free else device,
            progress=True,
        )
    time_s = time.perf_counter() - begin_s
    outputs: dict[str, Callable[[], None]]
    outputs = {"standard output": lambda: _print(arguments, H, rho, time_s, profile)}
    if arguments.save:
        outputs["--save"] = lambda: _save(rho, arguments)
    if arguments.plot:
        outputs["--plot"] = lambda: write_plot(rho, arguments.plot)
    if is_first:
        write_all(outputs)
    return DONE


def _sites(text: str) -> list[int]:
    try:
        return [int(site) for site in text.split(",")]
    except ValueError:
        raise blockvec.errors.OptionError(f"--sites: got {text!r}; give numbers of rows, as 0,17.") from None


def _curve(rho: DensityOfStates, count: int) -> dict[str, Any]:
    """Return arrays of energies within the bounds, densities and standard errors."""
    energies = np.linspace(*rho.bounds, max(count, 2))
    return {"energies": energies, "density": rho(energies), "errors": rho.error(energies)}


def _save(rho: DensityOfStates, arguments: argparse.Namespace) -> None:
    with replaced(arguments.save) as stream:
        np.savez(stream, **_curve(rho, arguments.points), moments=rho.moments, bounds=np.array(rho.bounds))


def _print(arguments: argparse.Namespace, H: Any, rho: DensityOfStates, time_s: float, profile: Any) -> None:
    count, columns = rho.samples.shape
    info = {
        "matrix": arguments.matrix,
        "n": H.shape[0],
        "moments": count,
        "vectors": columns,
        "kernel": rho.kernel,
        "bounds": list(rho.bounds),
        "products": rho.products,
        "time_s": time_s,
    }
    if arguments.json:
        curve = {name: array.tolist() for name, array in _curve(rho, arguments.points).items()}
        if columns < 2 and rho.sites is None:
            curve["errors"] = None  # of one vector they are not known
        kernels = {} if profile is None else {"kernels": profile.rows(), "parts": profile.parts()}
        print(json.dumps({**info, **curve, **kernels}, allow_nan=False), flush=True)
        return
    print(f"{arguments.matrix}: {H.shape[0]} x {H.shape[1]}, {rho.bounds!r}")
    print(f"{count} moments of {columns} vectors, {rho.products} products, {time_s:.2f} s\n")
    curve = _curve(rho, ROWS)
    shown = [curve["energies"], curve["density"], curve["errors"]]
    names = ["energy", "density", "error"]
    if rho.sites is not None:
        shown, names = [shown[0], *shown[1].T], [names[0], *(f"site {site}" for site in rho.sites)]
    print("".join(f"{name:>12}" for name in names))
    for row in zip(*shown, strict=True):
        print("".join(f"{value:12.4g}" for value in row))
    if profile is not None:
        print(f"\n{profile.table()}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
