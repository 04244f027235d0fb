"""``blockvec-dos``: the density of states of a matrix in a file, or of a model, from the shell."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

import blockvec
from blockvec.parallel import Communicator
from blockvec.system.commands import DONE

from .. import command
from ..command import JSON, MATRIX_FREE, PROFILE, RNG
from .density import KERNELS, POINTS, DensityOfStates, density_of_states

NAME = "blockvec-dos"
ROWS = 21  # energies in the printed table

EPILOG = f"""\
MATRIX is a model, or a file of {command.FILES}

exit codes: 0 done, 2 arguments or files that cannot be used, 130 interrupted.

{command.MODELS}
"""

OPTIONS: tuple[command.Option, ...] = (
    MATRIX_FREE,
    ("--moments N", int, 1024, "Chebyshev moments, two per product"),
    ("--vectors R", int, 16, "random vectors"),
    ("--kernel", KERNELS, "jackson", "Gaussian peaks, or Lorentzian ones"),
    ("--sites LIST", str, None, "local densities of these rows, as 0,17"),
    ("--points N", int, POINTS, "energies of --json and --save"),
    ("--device", ("auto", "cpu", "gpu"), "auto", "a GPU if there is one, the CPU with --comm"),
    command.comm_option(NAME),
    RNG,
    ("--plot PNG", str, None, "draw the density into this file"),
    ("--save NPZ", str, None, "write energies, density, errors, moments and bounds to this file"),
    PROFILE,
    JSON,
)


def parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    text = "Compute the density of states of a real symmetric or complex Hermitian sparse matrix."
    return command.parser_of(NAME, text, EPILOG, OPTIONS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return command.run(parser(), argv, "one matrix is enough", ("matrix-free",), _run)


def _run(arguments: argparse.Namespace, comm: Communicator | None) -> int:
    is_first = comm is None or comm.rank == 0
    if is_first:
        command.check_outputs(arguments, {}, "save")
    device = command.device_of(arguments)
    H = command.input_of(NAME, arguments, device, comm)
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
    if is_first:
        command.write_results(
            arguments,
            rho,
            lambda: _print(arguments, H, rho, time_s, profile),
            lambda: _curve(rho, arguments.points) | {"moments": rho.moments, "bounds": np.array(rho.bounds)},
        )
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
        print(json.dumps({**info, **curve, **command.kernels(profile)}, allow_nan=False), flush=True)
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
