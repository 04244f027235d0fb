"""Small records on disk: whole or not there, never fatal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from blockvec.kernels.cache import load_json, replace_file, store_json


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


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'"text"'])
def test_what_is_no_record_reads_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    assert load_json(path) is None


def test_a_record_that_is_not_there_reads_as_none(tmp_path: Path) -> None:
    assert load_json(tmp_path / "nothing.json") is None
    assert load_json(tmp_path) is None


def test_records_are_readable_json(tmp_path: Path) -> None:
    store_json(tmp_path / "r.json", {"z": 1, "a": 2})
    assert list(json.loads((tmp_path / "r.json").read_text())) == ["a", "z"]
