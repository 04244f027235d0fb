"""``blockvec-dos``: the density of states of a matrix in a file, or of a model, from the shell."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

import blockvec
from blockvec.parallel import Communicator
from blockvec.system.commands import DONE

from .. import command
from .density import KERNELS, POINTS, density_of_states

ROWS = 21  # energies in the printed table

EPILOG = f"""\
MATRIX is a model, or a file of {command.FILES}

exit codes: 0 done, 2 arguments or files that cannot be used, 130 interrupted.

{command.MODELS}
"""


def rows(text: str) -> list[int]:
    """Convert the numbers of rows that an option has; argparse names this function in its message."""
    return [int(row) for row in text.split(",")]


OPTIONS: tuple[command.Option, ...] = (
    ("--moments N", int, 1024, "Chebyshev moments, two per product"),
    ("--vectors R", int, 16, "random vectors"),
    ("--kernel", KERNELS, "jackson", "Gaussian peaks, or Lorentzian ones"),
    ("--sites LIST", rows, None, "local densities of these rows, as 0,17"),
    ("--points N", int, POINTS, "energies of --json and --save"),
    ("--device", ("auto", "cpu", "gpu"), "auto", "a GPU if there is one, the CPU with --comm"),
    ("--plot PNG", str, None, "draw the density into this file"),
    ("--save NPZ", str, None, "write energies, density, errors, moments and bounds to this file"),
)


def _run(arguments: argparse.Namespace, H: Any, device: str, comm: Communicator | None) -> int:
    begin_s = time.perf_counter()
    with blockvec.profile() if arguments.profile else nullcontext() as profile:
        rho = density_of_states(
            H,
            arguments.moments,
            arguments.vectors,
            arguments.kernel,
            arguments.rng,
            sites=arguments.sites,
            device=None if comm is not None or arguments.matrix_free else device,
            progress=True,
        )
    info = {"matrix": arguments.matrix, "n": H.shape[0], "moments": len(rho.samples)}
    info |= {"vectors": rho.samples.shape[1], "kernel": rho.kernel, "bounds": list(rho.bounds)}
    info |= {"products": rho.products, "time_s": time.perf_counter() - begin_s}

    def curve(count: int = max(arguments.points, 2)) -> dict[str, Any]:
        energies = np.linspace(*rho.bounds, count)
        return {"energies": energies, "density": rho(energies), "errors": rho.error(energies)}

    def document() -> dict[str, Any]:
        lists = {name: array.tolist() for name, array in curve().items()}
        if info["vectors"] < 2 and rho.sites is None:
            lists["errors"] = None  # errors of one vector are not known
        return info | lists

    def tables() -> list[str]:
        counts = "{moments} moments of {vectors} vectors, {products} products, {time_s:.2f} s"
        head = f"{arguments.matrix}: {H.shape[0]} x {H.shape[1]}, {rho.bounds!r}\n{counts.format(**info)}"
        names = ["density", "error"] if rho.sites is None else [f"site {site}" for site in rho.sites]
        rows = ["".join(f"{name:>12}" for name in ("energy", *names))]
        for row in np.column_stack([*curve(ROWS).values()])[:, : 1 + len(names)]:
            rows.append("".join(f"{value:12.4g}" for value in row))
        return [head, "\n".join(rows)]

    saved = {"moments": rho.moments, "bounds": np.array(rho.bounds)}
    command.write_results(arguments, comm, rho, document, tables, lambda: curve() | saved, profile)
    return DONE


TEXT = "Compute the density of states of a real symmetric or complex Hermitian sparse matrix."
COMMAND = command.Command(
    "blockvec-dos", TEXT, EPILOG, OPTIONS, "one matrix is enough", ("matrix-free",), _run
)
parser, main = COMMAND.parser, COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
