"""Quiet end of a command that Ctrl-C interrupts while it imports its libraries, before it can handle that."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import TracebackType


def _command() -> str | None:
    """Name the command that this process runs; None for other programs."""
    program = Path(sys.argv[0]).name.removesuffix(".exe") if hasattr(sys, "argv") and sys.argv else ""
    if program == "-m":  # while Python imports the package of the module
        options = itertools.pairwise(sys.orig_argv)  # -m may be joined to other letters, as in -Im
        modules = (value for option, value in options if option[:1] == "-" and option.endswith("m"))
        return {"blockvec": "blockvec", "solvers": "blockvec-eigs"}.get(next(modules, ""))
    return program if program in ("blockvec", "blockvec-eigs") else None


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(f"{COMMAND}: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


COMMAND = _command()  # at import: when Python runs the module, its path takes the place of -m
if COMMAND is not None:
    sys.excepthook = _report
