"""Output files: replaced as a whole or not at all, and nothing but regular files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from blockvec import BlockVector
from blockvec.errors import OptionError
from blockvec.kernels.records import replace_file, store
from blockvec.system.files import check_output, refusal, replaced

posix = pytest.mark.skipif(os.name != "posix", reason="files of POSIX")


def write(path: Path) -> None:
    with replaced(path) as stream:
        stream.write(b"new")


WRITERS: dict[str, Callable[[Path], object]] = {
    "replaced": write,
    "a cache": lambda path: replace_file(path, b"new"),
    "a block": lambda path: BlockVector(np.zeros((2, 2))).save(path),
}


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@posix
@pytest.mark.parametrize("name", WRITERS)
def test_a_new_file_follows_the_umask_and_a_replaced_one_keeps_its_mode(
    name: str, tmp_path: Path, umask: None
) -> None:
    path = tmp_path / "file"
    WRITERS[name](path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for mode in (0o600, 0o644):
        path.chmod(mode)
        WRITERS[name](path)
        assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_no_regular_file_is_left(name: str, tmp_path: Path) -> None:
    target, link, loose, pipe = (tmp_path / name for name in ("target", "link", "loose", "pipe"))
    target.write_bytes(b"old")
    link.symlink_to(target)
    loose.symlink_to(tmp_path / "nowhere")
    os.mkfifo(pipe)
    before = sorted(os.listdir(tmp_path))
    for path, kind in (
        (link, "symbolic link"),
        (loose, "symbolic link"),
        (pipe, "pipe"),
        (tmp_path, "folder"),
    ):
        with pytest.raises(OSError, match=f"it is a {kind}"):
            WRITERS[name](path)
        with pytest.raises(OptionError, match=rf"^--save: cannot write '.*': it is a {kind}"):
            check_output("--save", path)
    with pytest.raises(OSError, match="it is a device"):
        WRITERS[name](Path(os.devnull))
    assert target.read_bytes() == b"old"
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert sorted(os.listdir(tmp_path)) == before


@posix
def test_the_temporary_file_has_a_new_name_each_time_and_is_no_longer_than_a_name_may_be(
    tmp_path: Path,
) -> None:
    path, names = tmp_path / ("ü" * 127), set()
    for _ in range(3):
        with replaced(path) as stream:
            names |= set(os.listdir(tmp_path)) - {path.name}
            stream.write(b"new")
    assert len(names) == 3
    assert os.listdir(tmp_path) == [path.name]


def test_a_disk_that_is_full_leaves_the_old_file_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fill() -> None:
        with replaced(path) as stream:
            stream.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*file'"):
        fill()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_place_where_nothing_can_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    assert refusal(path) is None
    assert refusal("file") is None
    for wrong in ("", ".", "a\0b", tmp_path / "no" / "file", "x" * 999):
        assert refusal(wrong), wrong
    path.write_bytes(b"old")
    assert refusal(path / "below") is not None
    monkeypatch.setattr(os, "access", lambda place, mode: place != path)
    assert refusal(path) == "it is write-protected"
    monkeypatch.setattr(os, "access", lambda place, mode: place != tmp_path)
    assert "nothing may be written to the folder" in str(refusal(path))
    store(path, "key", {})
    assert path.read_bytes() == b"old"
