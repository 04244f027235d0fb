"""Limits on the process that runs the inputs: time, memory, and the files that it may touch."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

CPU_S, WALL_S = 10.0, 120.0  # per input; the machine may be busy with other tests
MEMORY_BYTES = 1 << 30  # beyond what the process has mapped before the first input


class HangError(BaseException):
    """An input took more than its time; no handler for Exception may catch this."""


def limit_memory() -> None:
    """Refuse allocations that exceed the bound."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def peak_bytes() -> int:
    """Read the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def limited_time(cpu_s: float = CPU_S, wall_s: float = WALL_S) -> Iterator[None]:
    """Raise `HangError` after the time of one input; end the process if native code does not return."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {cpu_s:g} s of computing")

    signal.signal(signal.SIGPROF, stop)
    faulthandler.dump_traceback_later(wall_s, exit=True)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


class Watch:
    """The files of a folder before an input, and what was opened for writing outside of it."""

    def __init__(self, folder: Path, ignored: Iterable[Path]) -> None:
        self._folder, self._ignored = folder, tuple(ignored)
        self._outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod"):
            path = arguments[0]
        elif event in ("os.rename", "os.link", "os.symlink"):
            path = arguments[1]
        else:
            return
        if isinstance(path, str | bytes | os.PathLike):
            with contextlib.suppress(ValueError):
                whole = Path(os.path.abspath(os.fsdecode(path)))
                allowed = any(whole.is_relative_to(place) for place in (self._folder, *self._ignored))
                if not allowed and str(whole) != os.devnull:
                    self._outside.append(f"{event} {whole}")

    def snapshot(self) -> dict[Path, str]:
        """Record kind, mode and content of every file."""
        self._outside.clear()
        found = {}
        for folder, _, names in os.walk(self._folder):
            if any(Path(folder).is_relative_to(path) for path in self._ignored):
                continue
            found[Path(folder)] = "folder"
            for name in names:
                path = Path(folder, name)
                content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
                found[path] = f"{path.lstat().st_mode:o} {hashlib.sha256(content).hexdigest()}"
        return found

    def touched(self, before: dict[Path, str], allowed: Iterable[Path]) -> list[str]:
        """List what changed although it was not given to be written."""
        outside = list(self._outside)
        after = self.snapshot()
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        return sorted(map(str, changed - set(allowed))) + outside
