"""``blockvec-eigs``: eigenvalues of a matrix in a file, or of a model, from the shell."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import blockvec
from blockvec.errors import BlockvecError, DeviceError, OptionError

from .arguments import CHOICES
from .blocks import to_host
from .drivers import DENSE_ROWS
from .eigsh import eigsh
from .iterations.rayleigh_ritz import WHICH
from .problem import IterationState
from .result import EigenResult, Interrupted
from .runtime.checkpoint import write_npz

CONVERGED, UNCONVERGED, REFUSED, INTERRUPTED = 0, 1, 2, 130

EPILOG = """\
exit codes: 0 all pairs converged, 1 some did not (they are shown and flagged), 2 arguments or files
that cannot be used, 130 interrupted (the pairs computed so far are shown).

models: laplace3d:n=64, anderson:..., graphene:..., xxz:sites=18,up=9, hubbard:... and more;
`python -c "import blockvec; print(*blockvec.models.available(), sep=chr(10))"` lists them.
"""


class _Parser(argparse.ArgumentParser):
    """Argument parser with one-line error messages."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="blockvec-eigs",
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
        help="save the state here once a minute; go on from it where it exists",
    )
    add("--verify", default="auto", choices=CHOICES["verify"], help="look for missed copies")
    add(
        "--device", default="auto", choices=("auto", "cpu", "gpu"), help="default auto: a GPU if there is one"
    )
    add("--rng", type=int, default=0, metavar="SEED", help="seed of everything random (default 0)")
    add("--plot", metavar="PNG", help="draw the convergence history into this file")
    add("--save", metavar="NPZ", help="write eigenvalues, eigenvectors and residuals to this file")
    add("--json", action="store_true", help="print one JSON document instead of tables")
    add("--version", action="version", version=f"blockvec {blockvec.__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except BrokenPipeError:  # the reader has closed the pipe; the interpreter's last flush must not raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNCONVERGED
    except (BlockvecError, OSError, MemoryError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"blockvec-eigs: {message}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("blockvec-eigs: interrupted before the iteration had begun", file=sys.stderr)
        return INTERRUPTED


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
    if arguments.save:
        write_npz(
            Path(arguments.save),
            eigenvalues=to_host(result.eigenvalues),
            eigenvectors=to_host(result.eigenvectors),
            residuals=result.residuals,
            converged=result.converged,
        )
    if arguments.plot:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        result.plot(figure.subplots())
        figure.savefig(arguments.plot, dpi=150)
    _print(arguments, op, matrix, result, profile)
    if interrupted:
        return INTERRUPTED
    return CONVERGED if int(result.converged.sum()) == arguments.k else UNCONVERGED


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    for option, name in (("--plot", arguments.plot), ("--save", arguments.save)):
        if name is not None and (not Path(name).parent.is_dir() or Path(name).is_dir()):
            raise OptionError(f"{option}: cannot write {name!r}; its folder must exist.")
    if arguments.plot and arguments.method == "dense":
        raise OptionError("--plot: --method dense does not iterate, there is no history to draw.")
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        raise OptionError("--plot: needs matplotlib, which is not installed: pip install 'blockvec[plot]'.")


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
    with _progress(arguments.k) as show:
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
            callback=show,
            time_limit=arguments.time_limit,
            verify=arguments.verify,
            checkpoint=arguments.checkpoint,
            on_unconverged="return",
            return_info=True,
        )
    result.info["why"] = why or result.info["why"]
    return result


@contextlib.contextmanager
def _progress(k: int) -> Iterator[Callable[[IterationState], None] | None]:
    """Show restart, converged pairs and worst residual on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("first restart", total=k)

        def show(state: IterationState) -> None:
            worst = float(np.max(state.residuals / np.maximum(state.limits, np.finfo(float).tiny)))
            text = (
                f"restart {state.restart + 1}, {state.operator_columns} columns: {state.converged} of {k} "
                f"converged, worst residual {worst:.1e} times its limit"
            )
            progress.update(task, description=text, completed=state.converged)

        yield show


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
    print(result)
    print()
    print(profile.table())
    if result.info["stopped"] == "interrupted":
        print("interrupted: the table shows what was reached")


if __name__ == "__main__":
    sys.exit(main())
