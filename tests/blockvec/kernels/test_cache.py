"""Small records on disk: whole or not there, never fatal."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from blockvec.kernels import cache
from blockvec.kernels.cache import from_fields, load_json, read_file, replace_file, store_json


def test_a_record_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "record.json"
    record = {"b": [1, 2.5, None], "a": {"text": "x"}}
    assert store_json(path, record)
    assert load_json(path) == record
    assert os.listdir(path.parent) == ["record.json"]


def test_an_old_record_survives_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    replace_file(path, b"old")

    def refuse(source: str, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_place_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not store_json(tmp_path / "file" / "record.json", {})


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_is_no_record_reads_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    assert load_json(path) is None


def test_a_record_that_is_not_there_reads_as_none(tmp_path: Path) -> None:
    assert load_json(tmp_path / "nothing.json") is None
    assert load_json(tmp_path) is None


def test_records_are_readable_json(tmp_path: Path) -> None:
    store_json(tmp_path / "r.json", {"z": 1, "a": 2})
    assert list(json.loads((tmp_path / "r.json").read_text())) == ["a", "sha256", "z"]


@pytest.mark.parametrize("value", [2, 1.0, True, None, "1", [1], {"a": 1}])
def test_a_record_with_another_value_than_the_stored_one_reads_as_none(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "r.json"
    store_json(path, {"a": 1, "b": {"c": [0.1, 1e300]}})
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"a": value}))
    assert load_json(path) is None
    del record["sha256"]  # as in a file of an earlier version
    path.write_text(json.dumps(record))
    assert load_json(path) == {"a": 1, "b": {"c": [0.1, 1e300]}}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_files_have_the_permissions_of_the_umask_but_nobody_else_may_write(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "folder" / "record.json"
    before = os.umask(umask)
    try:
        for _ in range(2):  # created, then replaced
            assert store_json(path, {"a": 1})
            assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~umask
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755 & ~umask
    assert load_json(path) == {"a": 1}


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_to_counts_as_missing(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "record.json"
    store_json(path, {"a": 1})
    path.chmod(mode)
    assert load_json(path) is None
    path.chmod(0o644)
    assert load_json(path) == {"a": 1}


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_files_in_a_folder_that_others_may_write_to_count_as_missing_with_a_warning(
    tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "folder"
    store_json(folder / "record.json", {"a": 1})
    folder.chmod(mode)
    with pytest.warns(UserWarning, match=r"folder' are not used.*chmod go-w.*BLOCKVEC_CACHE_DIR"):
        assert load_json(folder / "record.json") is None
    assert load_json(folder / "record.json") is None  # without another warning
    folder.chmod(0o755)
    assert load_json(folder / "record.json") == {"a": 1}


def test_a_file_of_another_user_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    store_json(path, {"a": 1})
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert load_json(path) is None


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    store_json(folder / "record.json", {"a": 1})
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        status = cache._is_own
        monkeypatch.setattr(cache, "_is_own", lambda found: stat.S_ISREG(found.st_mode) and status(found))
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert load_json(folder / "record.json") is None


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "pipe") is None
    assert read_file(tmp_path) is None
    assert read_file(Path("/dev/zero")) is None


def test_a_file_that_is_too_large_for_a_record_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_json(tmp_path / "record.json", {"a": "x" * 1000})
    monkeypatch.setattr(cache, "MAX_BYTES", 1000)
    assert load_json(tmp_path / "record.json") is None


@dataclass(frozen=True)
class Inner:
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    count: int
    flag: bool = False
    choice: Literal["one", "two"] = "one"
    names: tuple[str, ...] = ()
    inner: Inner = Inner()


def test_fields_become_the_dataclass_that_they_were() -> None:
    outer = Outer(3, True, "two", ("a", "b"), Inner("x"))
    fields = {"count": 3, "flag": True, "choice": "two", "names": ["a", "b"], "inner": {"name": "x"}}
    assert from_fields(Outer, fields) == outer
    assert from_fields(Outer, {"count": 0, "inner": {"name": None}}) == Outer(0)


@pytest.mark.parametrize(
    "change",
    [
        {"count": True},
        {"count": -1},
        {"count": 1.0},
        {"count": 1 << 63},
        {"count": "1"},
        {"count": None},
        {"flag": 1},
        {"choice": "three"},
        {"choice": ["one"]},
        {"names": "ab"},
        {"names": [1]},
        {"names": [["a"]]},
        {"inner": None},
        {"inner": {"name": 1}},
        {"inner": {"colour": "x"}},
        {"colour": 1},
    ],
    ids=str,
)
def test_fields_of_other_names_types_or_ranges_become_none(change: dict[str, Any]) -> None:
    assert from_fields(Outer, {"count": 3} | change) is None
    assert from_fields(Outer, list(change)) is None
    assert from_fields(Outer, {}) is None
