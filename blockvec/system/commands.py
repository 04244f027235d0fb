"""Common parts of the commands ``blockvec`` and ``blockvec-eigs``: one-line messages, exit codes, outputs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import NoReturn

from ..errors import BlockvecError

DONE, REFUSED, INTERRUPTED = 0, 2, 130  # exit codes
FAILURES = (BlockvecError, OSError, MemoryError)


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line error messages."""

    def error(self, message: str) -> NoReturn:
        """Exit with a message."""
        self.exit(REFUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def guarded(name: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit code; warnings, failures and Ctrl-C become lines on stderr."""
    try:
        with warnings.catch_warnings():  # shown as lines, without the place in the source
            warnings.showwarning = lambda message, *_, **__: _say(name, f"warning: {message}")
            code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of a pipe has seen enough
        code = DONE
    except FAILURES as error:
        _say(name, one_line(error))
        code = REFUSED
    except KeyboardInterrupt:
        _say(name, "interrupted")
        code = INTERRUPTED
    _drop_unwritable()
    return code


def write_all(outputs: Mapping[str, Callable[[], object]]) -> None:
    """Write outputs, each under the name of its option; one `OSError` names all that failed."""
    failures = []
    for option, write in outputs.items():
        try:
            write()
        except BrokenPipeError:
            _drop_unwritable()
        except Exception as error:  # whatever it is, the other outputs are worth more
            failures.append(f"{option}: {one_line(error)}")
    if failures:
        raise OSError("; ".join(failures))


def one_line(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(str(error).split())
    return text if text and isinstance(error, FAILURES) else f"{type(error).__name__} {text}".rstrip()


def _drop_unwritable() -> None:
    """Discard what cannot be printed: the flush at exit would raise."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(name: str, message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"{name}: {message}", file=sys.stderr)
