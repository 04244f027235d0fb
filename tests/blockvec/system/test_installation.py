"""Commands that install extras name the place that blockvec came from."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from blockvec.system.installation import install_command

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, 'pip install "blockvec[plot]==1.2.3"'),
        (
            {"url": "file:///home/me/my%20code/blockvec", "dir_info": {"editable": True}},
            'pip install -e "file:///home/me/my%20code/blockvec[plot]"',
        ),
        ({"url": "file:///src", "dir_info": {}}, 'pip install "blockvec[plot] @ file:///src"'),
        (
            {"url": "https://example.org/blockvec-1.2.3-py3-none-any.whl", "archive_info": {}},
            'pip install "blockvec[plot] @ https://example.org/blockvec-1.2.3-py3-none-any.whl"',
        ),
        (
            {
                "url": "https://example.org/repository.git",
                "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": COMMIT},
                "subdirectory": "python",
            },
            f'pip install "blockvec[plot] @ git+https://example.org/repository.git@{COMMIT}#subdirectory=python"',
        ),
    ],
)
def test_an_extra_is_installed_from_where_blockvec_came(
    origin: Any, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "blockvec-1.2.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: blockvec\nVersion: 1.2.3\n")
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(folder))
    assert install_command("plot") == expected
    assert len(shlex.split(expected)) in (3, 4)


def test_a_source_tree_that_is_not_installed_names_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    root = Path(__file__).resolve().parents[3]
    assert install_command("cuda13") == f'pip install "blockvec[cuda13] @ {root.as_uri()}"'
