"""Common parts of the commands of the solvers: options, inputs, processes, outputs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import blockvec
from blockvec.errors import DeviceError, FormatError, OptionError
from blockvec.parallel import Communicator, agreed, communicator, launched, read_rows, world
from blockvec.system.commands import Parser, guarded, write_all
from blockvec.system.files import check_apart, check_output, check_picture, replaced, write_picture

Option = tuple[str, Any, Any, str]
"""Name with those of its values; type, choices, or bool for a flag; default; help."""

FILES = """\
Matrix Market (.mtx, .mtx.gz), SciPy (scipy.sparse.save_npz) or
PETSc (binary AIJ); the content tells which. "-" reads such a file from standard input."""

MODELS = """\
models: laplace3d:n=64, anderson:..., graphene:..., xxz:sites=18,up=9, hubbard:... and more;
`python -c "import blockvec; print(*blockvec.models.available(), sep=chr(10))"` lists them."""

COMMON: tuple[Option, ...] = (
    ("--matrix-free", bool, None, "store no matrix; for many-particle models xxz, hubbard"),
    ("--comm", ("mpi",), None, "split rows over processes: mpiexec -n 4 %(prog)s ... --comm mpi"),
    ("--rng SEED", int, 0, "seed of everything random"),
    ("--profile", bool, None, "print calls, time and fraction of the roofline per kernel, too"),
    ("--json", bool, None, "print one JSON document instead of tables"),
)


class Command(NamedTuple):
    """A command with a matrix and options."""

    name: str
    description: str
    epilog: str
    options: Sequence[Option]  # before the common ones
    hint: str  # what is said about a second matrix
    alone: Sequence[str]  # options that several processes do not have
    # Of the arguments, the matrix, its device and the processes; returns an exit code.
    function: Callable[[argparse.Namespace, Any, str, Communicator | None], int]

    def parser(self) -> argparse.ArgumentParser:
        """Create the parser of the command line."""
        how: dict[str, Any] = {"description": self.description, "epilog": self.epilog}
        root = Parser(prog=self.name, formatter_class=argparse.RawDescriptionHelpFormatter, **how)
        root._negative_number_matcher = re.compile(
            r"-\.?\d|-inf"
        )  # argparse takes -1e-3 and -inf for options
        root.add_argument(
            "matrix", metavar="MATRIX", help="a model such as laplace3d:n=64, a file, or - (see below)"
        )
        for usage, values, default, text in (*self.options, *COMMON):
            name, *metavars = usage.split()
            how = {"help": text if default is None else f"{text} (default {default})"}
            if values is bool:
                how |= {"action": "store_true"}
            elif isinstance(values, tuple):
                how |= {"choices": values, "default": default}
            else:
                several = {"nargs": len(metavars)} if len(metavars) > 1 else {}
                how |= {"type": values, "default": default, "metavar": tuple(metavars), **several}
            root.add_argument(name, **how)
        root.add_argument("--version", action="version", version=f"blockvec {blockvec.__version__}")
        return root

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command in all processes, and return its exit code."""
        with ExitStack() as silenced:
            if launched()[0] > 0:  # the first of the processes speaks for all
                nowhere = silenced.enter_context(open(os.devnull, "w"))
                silenced.enter_context(redirect_stdout(nowhere))
                silenced.enter_context(redirect_stderr(nowhere))
            root = self.parser()
            arguments, unknown = root.parse_known_args(argv)
            if unknown:
                more = "" if unknown[0].startswith("-") else f"; {self.hint}"
                root.error(f"unrecognized arguments: {' '.join(unknown)}{more}")

            def together() -> int:
                comm = _communicator(arguments, self.alone)
                with agreed(comm):
                    if comm is None or comm.rank == 0:
                        _check_outputs(arguments)
                    device = _device_of(arguments)
                    return self.function(arguments, _input_of(arguments, device, comm), device, comm)

            return guarded(self.name, together)


def _communicator(arguments: argparse.Namespace, alone: Sequence[str]) -> Communicator | None:
    """Return the processes of ``--comm``; refuse several without it, each of which would do all the work."""
    _, size = launched()
    if arguments.comm is None:
        if size > 1:
            raise OptionError(
                f"{size} processes were started; add --comm mpi to split the rows over them, or start one."
            )
        return None
    for name in alone:
        if getattr(arguments, name.replace("-", "_")) not in (None, False):
            raise OptionError(f"--{name}: not available with --comm; leave out one of them.")
    if arguments.matrix == "-":
        raise OptionError("-: every process reads the matrix, and one has the standard input; give a file.")
    return communicator(world())


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse files of options that cannot be written, before anything is computed."""
    checks = {"checkpoint": check_output, "save": check_output, "plot": check_picture}
    files = {f"--{name}": getattr(arguments, name, None) for name in (*checks, "mass")}
    for name, check in checks.items():
        if (file := files[f"--{name}"]) is not None:
            check(f"--{name}", file)
    check_apart({"the matrix": arguments.matrix, **files})


def _device_of(arguments: argparse.Namespace) -> str:
    """Choose the device: a GPU if there is one and nothing needs the host."""
    if arguments.device != "auto":
        return str(arguments.device)
    if arguments.comm is not None or getattr(arguments, "mass", None) is not None:
        return "cpu"
    try:
        blockvec.BlockVector.zeros(1, 1, device="gpu")
    except DeviceError:
        return "cpu"
    return "gpu"


def _input_of(arguments: argparse.Namespace, device: str, comm: Communicator | None) -> Any:
    """Open the matrix: this process's rows, an operator without a matrix, or all of it.

    A GPU makes the rows of a model itself.
    """
    name, is_file = arguments.matrix, os.path.exists(arguments.matrix)  # False for names that are too long
    is_model = not is_file and name.partition(":")[0].strip().lower() in blockvec.models.available()
    if comm is not None:
        make: Any = blockvec.models.generator if is_model else blockvec.open_matrix  # which refuses the name
        rows = read_rows(name, comm) if is_file else make(name)
        layout = blockvec.RowLayout.equal(rows.shape[1], comm)
        return blockvec.as_operator(rows, device=device, layout=layout)
    if arguments.matrix_free:
        return blockvec.models.operator(name, device=device)
    if device != "cpu" and getattr(arguments, "mass", None) is None and is_model:
        return blockvec.models.generator(name).matrix(device=device)
    return opened(name)


def write_results(
    arguments: argparse.Namespace,
    comm: Communicator | None,
    result: Any,
    document: Callable[[], Mapping[str, Any]],
    tables: Callable[[], Sequence[object]],
    arrays: Callable[[], Mapping[str, Any]],
    profile: blockvec.Profile | None,
) -> None:
    """Print a result, as one JSON document or as tables, and write the files of ``--save`` and ``--plot``.

    The first one of several processes does.
    """
    if comm is not None and comm.rank > 0:
        return

    def show() -> None:
        if arguments.json:
            more = {} if profile is None else {"kernels": profile.rows(), "parts": profile.parts()}
            print(json.dumps({**document(), **more}, allow_nan=False), flush=True)
        else:
            print(*tables(), *([] if profile is None else [profile.table()]), sep="\n\n", flush=True)

    def save() -> None:
        with replaced(arguments.save) as stream:
            np.savez(stream, **arrays())

    def draw() -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        result.plot(figure.subplots())
        write_picture(figure, arguments.plot)

    outputs = {"standard output": show}
    outputs |= {"--save": save} if arguments.save else {}
    outputs |= {"--plot": draw} if arguments.plot else {}
    write_all(outputs)


def opened(name: str) -> Any:
    """Open a model, a file, or for "-" standard input, which is copied because files are read twice."""
    if name != "-":
        return blockvec.open_matrix(name)
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("-: standard input is closed or a terminal; redirect a file to it: < matrix.mtx")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "matrix")
        with copy.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
        try:
            return blockvec.read_matrix(copy)
        except FormatError as error:
            raise FormatError(str(error).replace(str(copy), "standard input")) from None
