"""Options: a frozen record in a context variable over a process-wide default.

:func:`option_context` changes options for the enclosed code only, also under threads and asyncio;
:func:`set_default_options` changes them for every thread that is in no such context. No other module reads
the ``BLOCKVEC_*`` environment variables.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from ..errors import OptionError
from .frozen import frozen
from .scalars import plain

JIT_MODES = ("auto", "always", "never")
NO_TUNING = "kernels are chosen without measurements; tests/benchmarks/tune.py of the source tree times them"
GONE = {  # options of earlier versions
    "tune": NO_TUNING,
    "tune_budget_s": NO_TUNING,
    "vendor": "BLAS and cuBLAS run what blockvec's own kernels do not take, or take longer for",
}
GPU_TRANSPORTS = ("auto", "nccl", "mpi")
MAX_THREADS = 1024  # more than that are a mistake; results per thread and operation are kept in memory


@frozen
class Options:
    """Options of blockvec.

    Attributes
    ----------
    threads : int
        Threads per block operation on the host, at most 1024. Default: the number of cores that this
        process may run on, divided by the number of processes that mpiexec has started on this computer
        unless it has bound them (``BLOCKVEC_THREADS`` overrides it). Results are bit-identical for a fixed
        count.
    cache_dir : Path
        Folder for measured ceilings and compiled kernels (``BLOCKVEC_CACHE_DIR``; default: the platform's
        user cache).
    three_m : bool
        Whether complex products on a GPU may take three real products instead of four where that is faster
        (``BLOCKVEC_3M``, 0 or 1). Both have errors of a small multiple of u sum abs(a) abs(b) in either
        part, but with three a part that is much smaller than the other has fewer correct digits, and
        overflow or an infinity in one part also reaches the other.
    jit : str
        Whether sparse products on the host are compiled, by llvmlite (``BLOCKVEC_JIT``). ``"auto"`` compiles
        products of so many entries and columns that a hundred of them outweigh the compilation, if llvmlite
        is installed; ``"always"`` compiles all of them. Results of compiled products have other rounding
        errors.
    deterministic : bool
        Whether sparse factorisations on a GPU repeat bit for bit (``BLOCKVEC_DETERMINISTIC``, 0 or 1); False
        by default, since this mode of cuDSS 0.8 ended with errors of the device for some matrices. It solves
        one column at a time. All other operations repeat bit for bit in any case.
    gpu_transport : str
        How processes with a GPU each exchange rows of blocks (``BLOCKVEC_GPU_TRANSPORT``): by copy engines
        between GPUs of one host that can open each other's memory (``"auto"``), by NCCL (``"nccl"``), or
        through the hosts (``"mpi"``). Small sums are exchanged by NCCL, unless this is ``"mpi"``.
    """

    threads: int = dataclasses.field(default_factory=lambda: _available_cores())
    cache_dir: Path = dataclasses.field(default_factory=lambda: platformdirs.user_cache_path("blockvec"))
    three_m: bool = True
    jit: str = "auto"
    deterministic: bool = False
    gpu_transport: str = "auto"

    def __post_init__(self) -> None:
        for name in ("threads", "three_m", "deterministic"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        is_integer = isinstance(self.threads, int) and not isinstance(self.threads, bool)
        if not is_integer or not 1 <= self.threads <= MAX_THREADS:
            raise OptionError(f"threads: got {self.threads!r}; give an integer from 1 to {MAX_THREADS}.")
        for name in ("three_m", "deterministic"):
            if not isinstance(value := getattr(self, name), bool):
                raise OptionError(f"{name}: got {value!r}; give True or False.")
        for name, known in (("jit", JIT_MODES), ("gpu_transport", GPU_TRANSPORTS)):
            if (value := getattr(self, name)) not in known:
                raise OptionError(f"{name}: got {value!r}; give one of {', '.join(map(repr, known))}.")
        object.__setattr__(self, "cache_dir", Path(self.cache_dir).expanduser())


# Processes on this computer, as MPICH, Intel MPI and Open MPI tell those that they start.
NEIGHBOURS = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")


def _available_cores() -> int:
    """Count the cores for this process: all that it may run on, or its share of a computer's."""
    cores = everywhere = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    counts = [os.environ.get(name, "") for name in NEIGHBOURS]
    neighbours = max((int(count) for count in counts if count.isdecimal()), default=1)
    if cores == everywhere:  # not bound to a part of them by the launcher
        cores = max(1, cores // max(1, neighbours))
    return min(cores, MAX_THREADS)


VARIABLES: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "BLOCKVEC_THREADS": ("threads", int, f"an integer from 1 to {MAX_THREADS}"),
    "BLOCKVEC_CACHE_DIR": ("cache_dir", Path, "a folder"),
    "BLOCKVEC_3M": ("three_m", {"0": False, "1": True}.__getitem__, "0 or 1"),
    "BLOCKVEC_DETERMINISTIC": ("deterministic", {"0": False, "1": True}.__getitem__, "0 or 1"),
    "BLOCKVEC_JIT": ("jit", str, f"one of {', '.join(JIT_MODES)}"),
    "BLOCKVEC_GPU_TRANSPORT": ("gpu_transport", str, f"one of {', '.join(GPU_TRANSPORTS)}"),
}
"""Per environment variable: the option, how its text is read, and what to give."""


def options_from_environment(environ: Mapping[str, str]) -> Options:
    """Make options from environment variables; one that cannot be used is ignored with a warning."""
    found = Options()
    for name, reason in GONE.items():
        if environ.get(variable := f"BLOCKVEC_{name.removesuffix('_s').upper()}"):
            warnings.warn(f"{variable}: this option is gone; {reason}.", stacklevel=2)
    for variable, (name, read, expected) in VARIABLES.items():
        if text := environ.get(variable):
            try:
                found = _replace(found, {name: read(text)})
            except (ValueError, KeyError, RuntimeError):  # the last for the home of an unknown user
                default = getattr(found, name)
                warnings.warn(
                    f"{variable}: got {text!r}; give {expected}. The default is used, {name}={default!r}.",
                    stacklevel=2,
                )
    return found


_context: contextvars.ContextVar[Options | None] = contextvars.ContextVar("blockvec_options", default=None)


def options() -> Options:
    """Look up the options of the current context.

    Examples
    --------
    >>> import blockvec
    >>> with blockvec.option_context(threads=1):
    ...     blockvec.options().threads
    1
    """
    return _context.get() or _default


def _replace(base: Options, changes: dict[str, Any]) -> Options:
    known = [field.name for field in dataclasses.fields(Options)]
    for name in changes:
        if name in GONE:
            raise OptionError(f"{name}: this option is gone; {GONE[name]}.")
        if name not in known:
            raise OptionError(f"unknown option {name!r}; the options are {', '.join(known)}.")
    return dataclasses.replace(base, **changes)


@contextlib.contextmanager
def option_context(**changes: Any) -> Iterator[Options]:
    """Change options within a ``with`` block, for this context only.

    Raises
    ------
    OptionError
        For an unknown option or an invalid value.
    """
    token = _context.set(_replace(options(), changes))
    try:
        yield options()
    finally:
        _context.reset(token)


def set_default_options(**changes: Any) -> Options:
    """Change the default options of the process, which apply in every thread outside of `option_context`.

    Raises
    ------
    OptionError
        For an unknown option or an invalid value.
    """
    global _default
    _default = _replace(_default, changes)
    return _default


_default = options_from_environment(os.environ)
