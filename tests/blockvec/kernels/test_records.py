"""Small records on disk: whole or not there, never fatal."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from blockvec.kernels import records
from blockvec.kernels.records import load, read_file, store

KEY = "a key"


def test_a_record_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "record"
    fields, payload = {"b": [1, 2.5, None], "a": {"text": "x\ny"}}, b"bytes\nof any kind\0"
    store(path, KEY, fields, payload)
    assert load(path, KEY) == (fields, payload)
    assert os.listdir(path.parent) == ["record"]


def test_a_place_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store(tmp_path / "file" / "record", KEY, {})
    assert load(tmp_path / "file" / "record", KEY) is None
    assert load(tmp_path, KEY) is None


def signed(content: bytes) -> bytes:
    """Write a record of other content with a right checksum."""
    return (
        b"blockvec record 1\n"
        + hashlib.sha256(KEY.encode() + b"\0" + content).hexdigest().encode()
        + b"\n"
        + content
    )


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1, 2]", b"\xff\xfe", b"blockvec record 1\n"),
        *(signed(text) for text in (b"", b"[1]\n", b'"text"\n', b"[" * 100_000, b'{"a":' * 100_000)),
        signed(b"{}\n").replace(b"record 1", b"record 2"),
    ],
)
def test_what_is_no_record_reads_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record"
    path.write_bytes(signed(b'{"a": 1}\nx'))
    assert load(path, KEY) == ({"a": 1}, b"x")
    path.write_bytes(content)
    assert load(path, KEY) is None


def test_a_record_of_another_key_or_content_reads_as_none(tmp_path: Path) -> None:
    path = tmp_path / "record"
    store(path, KEY, {"a": 1}, b"payload")
    assert load(path, "another key") is None
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(bytes(damaged))
        assert load(path, KEY) is None, place
    path.write_bytes(whole[:-1])
    assert load(path, KEY) is None


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_have_the_permissions_of_the_umask_but_nobody_else_may_write(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "folder" / "record"
    before = os.umask(umask)
    try:
        for _ in range(2):  # created, then replaced
            store(path, KEY, {"a": 1})
            assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~umask
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755 & ~umask
    assert load(path, KEY) is not None


@pytest.mark.parametrize(
    ("name", "mode"),
    [("folder/record", 0o664), ("folder/record", 0o646), *(("folder", m) for m in (0o775, 0o757, 0o1777))],
)
def test_what_others_may_write_to_counts_as_missing_a_folder_with_a_warning(
    tmp_path: Path, name: str, mode: int
) -> None:
    record, place = tmp_path / "folder" / "record", tmp_path / name
    store(record, KEY, {"a": 1})
    before = place.stat().st_mode
    place.chmod(mode)
    if name == "folder":
        with pytest.warns(UserWarning, match=r"folder' are not used.*chmod go-w.*BLOCKVEC_CACHE_DIR"):
            assert load(record, KEY) is None
    assert load(record, KEY) is None  # without another warning
    place.chmod(before)
    assert load(record, KEY) is not None


@pytest.mark.parametrize("which", ["file", "folder"])
def test_files_and_folders_of_another_user_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    folder = tmp_path / "folder"
    store(folder / "record", KEY, {"a": 1})
    status = records._is_own
    is_kind = stat.S_ISREG if which == "folder" else stat.S_ISDIR
    monkeypatch.setattr(records, "_is_own", lambda found: bool(is_kind(found.st_mode)) and status(found))
    if which == "file":
        assert load(folder / "record", KEY) is None
        return
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert load(folder / "record", KEY) is None


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "pipe") is None
    assert read_file(tmp_path) is None
    assert read_file(Path("/dev/zero")) is None


def test_a_file_that_is_too_large_for_a_record_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path / "record", KEY, {"a": "x" * 1000})
    monkeypatch.setattr(records, "MAX_BYTES", 1000)
    assert load(tmp_path / "record", KEY) is None
