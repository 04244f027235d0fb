"""``blockvec-eigs``: eigenvalues of a matrix in a file, or of a model, from the shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import blockvec
from blockvec.commands import DONE, INTERRUPTED, Parser, guarded, write_all
from blockvec.errors import DeviceError, OptionError
from blockvec.files import check_apart, check_output, check_picture, replaced, write_picture

from .arguments import CHOICES
from .blocks import to_host
from .drivers import DENSE_ROWS
from .eigsh import eigsh
from .iterations.rayleigh_ritz import WHICH
from .result import EigenResult, Interrupted

NAME = "blockvec-eigs"
UNCONVERGED = 1  # exit code

EPILOG = """\
exit codes: 0 all pairs converged, 1 some did not (they are shown and flagged), 2 arguments or files
that cannot be used, 130 interrupted (the pairs computed so far are shown).

models: laplace3d:n=64, anderson:..., graphene:..., xxz:sites=18,up=9, hubbard:... and more;
`python -c "import blockvec; print(*blockvec.models.available(), sep=chr(10))"` lists them.
"""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=NAME,
        description="Compute a few eigenvalues of a real symmetric or complex Hermitian sparse matrix.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("matrix", metavar="MATRIX", help="a model such as laplace3d:n=64, or a Matrix Market file")
    add("-k", type=int, default=6, metavar="K", help="wanted eigenpairs (default 6)")
    add(
        "--which",
        default="SA",
        choices=(*WHICH, "BE"),
        help="smallest or largest values, magnitudes, both ends (default SA)",
    )
    add("--tol", type=float, default=1e-8, metavar="T", help="tolerance of --convergence (default 1e-8)")
    add(
        "--convergence",
        default="norm",
        choices=CHOICES["convergence"],
        help="limit on a residual: T |theta|, T (||A|| + |theta|), or T (default norm)",
    )
    add("--method", default="auto", choices=CHOICES["method"], help="default auto")
    add("--block-size", type=int, metavar="B", help="columns the matrix is applied to at once")
    add("--ncv", type=int, metavar="N", help="basis vectors between restarts")
    add("--maxiter", type=int, metavar="N", help="restarts at most")
    add("--time-limit", type=float, metavar="S", help="seconds after which to stop")
    add(
        "--checkpoint",
        metavar="FILE",
        help="save the state to this file every minute, and resume from it if it exists",
    )
    add("--verify", default="auto", choices=CHOICES["verify"], help="look for missed copies")
    add(
        "--device", default="auto", choices=("auto", "cpu", "gpu"), help="default auto: a GPU if there is one"
    )
    add("--rng", type=_seed, default=0, metavar="SEED", help="seed of everything random (default 0)")
    add("--plot", metavar="PNG", help="draw the convergence history into this file")
    add("--save", metavar="NPZ", help="write eigenvalues, eigenvectors and residuals to this file")
    add("--json", action="store_true", help="print one JSON document instead of tables")
    add("--version", action="version", version=f"blockvec {blockvec.__version__}")
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 0")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    return guarded(NAME, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    _check_outputs(arguments)
    matrix = blockvec.open_matrix(arguments.matrix)
    op = _operator(matrix, arguments.device)
    interrupted = False
    with blockvec.profile() as profile:
        try:
            result = _solve(op, arguments)
        except Interrupted as stop:
            result, interrupted = stop.result, True
    outputs: dict[str, Callable[[], None]]
    outputs = {"standard output": lambda: _print(arguments, op, matrix, result, profile)}
    if arguments.save:
        outputs["--save"] = lambda: _save(result, arguments.save)
    if arguments.plot:
        outputs["--plot"] = lambda: _plot(result, arguments.plot)
    write_all(outputs)
    if interrupted:
        return INTERRUPTED
    return DONE if int(result.converged.sum()) == arguments.k else UNCONVERGED


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    files = {"--checkpoint": arguments.checkpoint, "--save": arguments.save}
    for option, name in files.items():
        if name is not None:
            check_output(option, name)
    if arguments.plot is not None:
        check_picture("--plot", arguments.plot)
    check_apart({"the matrix": arguments.matrix, **files, "--plot": arguments.plot})
    if arguments.plot and arguments.method == "dense":
        raise OptionError("--plot: --method dense does not iterate, there is no history to draw.")


def _save(result: EigenResult, path: str) -> None:
    with replaced(path) as stream:
        np.savez(
            stream,
            eigenvalues=to_host(result.eigenvalues),
            eigenvectors=to_host(result.eigenvectors),
            residuals=result.residuals,
            converged=result.converged,
        )


def _plot(result: EigenResult, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    result.plot(figure.subplots())
    write_picture(figure, path)


def _operator(matrix: Any, device: str) -> blockvec.Operator:
    if device != "auto":
        return blockvec.as_operator(matrix, device=device)
    try:
        return blockvec.as_operator(matrix, device="gpu")
    except DeviceError:
        return blockvec.as_operator(matrix, device="cpu")


def _solve(op: blockvec.Operator, arguments: argparse.Namespace) -> EigenResult:
    method, why = arguments.method, None
    if method == "auto" and arguments.plot and op.shape[0] <= DENSE_ROWS:
        method, why = "lanczos", "--plot is given"  # dense LAPACK has no history
    result: EigenResult = eigsh(
        op,
        arguments.k,
        which=arguments.which,
        ncv=arguments.ncv,
        maxiter=arguments.maxiter,
        tol=arguments.tol,
        rng=arguments.rng,
        method=method,
        block_size=arguments.block_size,
        convergence=arguments.convergence,
        progress=True,
        time_limit=arguments.time_limit,
        verify=arguments.verify,
        checkpoint=arguments.checkpoint,
        on_unconverged="return",
        return_info=True,
    )
    result.info["why"] = why or result.info["why"]
    return result


def _print(
    arguments: argparse.Namespace, op: Any, matrix: Any, result: EigenResult, profile: blockvec.Profile
) -> None:
    if arguments.json:
        document = {"matrix": arguments.matrix, **result.to_dict(), "kernels": profile.rows()}
        print(json.dumps(document, allow_nan=False), flush=True)
        return
    entries = getattr(matrix, "nnz", matrix.shape[0] * matrix.shape[1])
    size = f"{op.shape[0]} x {op.shape[1]}, {entries} entries"
    print(f"{arguments.matrix}: {size}, {op.dtype.name}, on {op.device}")
    print(f"{result}\n\n{profile.table()}", flush=True)
    if result.info["stopped"] == "interrupted":
        print("interrupted: the table shows what was reached", flush=True)


if __name__ == "__main__":
    sys.exit(main())
