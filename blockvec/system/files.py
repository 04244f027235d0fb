"""Output files: checked before the work, written completely or not at all.

A file is written under a random name in the same folder and then renamed, so that readers see the old file or
the complete new one. Only regular files are replaced: links are not followed, devices and folders are left.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import OptionError
from .installation import install_command


def refusal(path: str | os.PathLike[str]) -> str | None:
    """Explain why a file cannot be created or replaced; None if it can."""
    path = Path(path)
    try:
        if not path.parent.is_dir():
            return f"there is no folder {str(path.parent)!r}; create it first"
        if not os.access(path.parent, os.W_OK | os.X_OK):
            return f"nothing may be written to the folder {str(path.parent)!r}"
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None if path.name else "it has no name"
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "pipe"}
        return f"it is a {kinds.get(stat.S_IFMT(mode), 'device')}, only regular files are replaced"
    return None if os.access(path, os.W_OK) else "it is write-protected"


def check_output(option: str, path: str | os.PathLike[str]) -> None:
    """Raise an `OptionError` that names option and file if a file cannot be created or replaced."""
    if reason := refusal(path):
        raise OptionError(f"{option}: cannot write {os.fspath(path)!r}: {reason}.")


def check_apart(files: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Raise an `OptionError` if two options name the same file; None stands for an option not given."""
    taken: dict[str, str] = {}
    for option, path in files.items():
        if path is not None and taken.setdefault(os.path.realpath(path), option) != option:
            other = taken[os.path.realpath(path)]
            raise OptionError(f"{option}: {os.fspath(path)!r} is the file of {other}; give another one.")


def check_picture(option: str, path: str | os.PathLike[str]) -> None:
    """Raise an `OptionError` if matplotlib is missing or cannot write a picture to a file."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise OptionError(
            f"{option}: pictures need matplotlib, which is not installed: {install_command('plot')}"
        ) from None
    check_output(option, path)
    if _ending(path) not in FigureCanvasBase.get_supported_filetypes():
        raise OptionError(
            f"{option}: a picture cannot be of type {Path(path).suffix!r}: got {os.fspath(path)!r}; name it "
            ".svg, .png or .pdf."
        )


def write_picture(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure of matplotlib; an SVG has no date, so that it depends on the figure only."""
    content, ending = io.BytesIO(), _ending(path)
    figure.savefig(content, format=ending, dpi=150, metadata={"Date": None} if ending == "svg" else None)
    with replaced(path) as stream:
        stream.write(content.getvalue())


def _ending(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix.removeprefix(".").lower()


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a stream whose content replaces a file at the end of the ``with`` block.

    After an exception the old file remains and no other. A new file has the permissions of the umask, a
    replaced one keeps its own. With `durable` the content is on the disk at the end. Without the folder, or
    for something other than a regular file, an `OSError` is raised.
    """
    path = Path(path)
    if reason := refusal(path):
        raise OSError(errno.EINVAL, reason, str(path))
    temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")
    stream = temporary.open("xb")  # fails if the name is taken, also by a link
    try:
        with stream:
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(path.lstat().st_mode) & 0o777)
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # an error of a full disk has none
        raise
