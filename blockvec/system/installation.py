"""Commands that install optional packages, from where blockvec itself was installed."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path


def install_command(extra: str) -> str:
    """Form the pip command for an extra of blockvec; its quotes suit all shells.

    An installation from a folder, a file or a repository names it: an index may have another package of this
    name, or none.
    """
    try:
        distribution = metadata.distribution("blockvec")
    except metadata.PackageNotFoundError:  # a source tree on Python's path
        root = Path(__file__).resolve().parents[2]
        return f'pip install "blockvec[{extra}] @ {root.as_uri()}"'
    recorded = distribution.read_text("direct_url.json")  # by PEP 610 for all origins but an index
    if recorded is None:
        return f'pip install "blockvec[{extra}]=={distribution.version}"'
    origin = json.loads(recorded)
    url = origin["url"]
    if origin.get("dir_info", {}).get("editable"):
        return f'pip install -e "{url}[{extra}]"'
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    folder = f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
    return f'pip install "blockvec[{extra}] @ {url}{folder}"'
