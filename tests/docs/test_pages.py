"""The built pages, and the pages' sources: readable without a network, no formula as TeX."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import blockvec
import solvers
from blockvec import errors, models, parallel
from blockvec.models import spectra
from solvers import orthogonalization

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BUILT = DOCS / "_build" / "html"
LISTINGS = re.compile(r"<(pre|code|script|style|title)\b.*?</\1>", re.DOTALL)


def sources() -> list[Path]:
    pages = [path for path in DOCS.rglob("*.md") if "_build" not in path.parts]
    return sorted([ROOT / "README.md", *pages])


def built_pages() -> list[Path]:
    """Pages of the last build; the folder can also hold pages of earlier ones."""
    index = BUILT / "searchindex.js"
    if not index.exists():
        pytest.skip("the documentation is not built: make docs")
    text = index.read_text(encoding="utf-8").removeprefix("Search.setIndex(").removesuffix(")")
    return [BUILT / f"{name}.html" for name in json.loads(text)["docnames"]]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_built_pages_contain_no_raw_tex() -> None:
    for page in built_pages():
        text = LISTINGS.sub("", page.read_text(encoding="utf-8"))
        found = re.search(r"\\[a-zA-Z]+|\$[^$<>]+\$", text)
        assert not found, f"{relative(page)}: {found and found.group()}"


def test_built_pages_load_nothing_from_a_network() -> None:
    for page in built_pages():
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text(encoding="utf-8")):
            assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", tag), f"{relative(page)}: {tag}"


def test_links_between_built_pages_lead_to_pages_and_anchors() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in built_pages()}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    for page, text in pages.items():
        for link in set(re.findall(r'href="([^":]+)"', text)):
            path, _, anchor = unquote(unescape(link)).partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            assert target.exists(), f"{relative(page)}: {link}"
            assert not anchor or anchor in anchors.get(target, {anchor}), f"{relative(page)}: {link}"


def test_links_of_the_readme_lead_to_files_and_are_absolute_on_the_page_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    home = project["project"]["urls"]["Homepage"]
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        for link in re.findall(r"\]\(([^)\s]*)\)", (ROOT / name).read_text(encoding="utf-8")):
            path = link.removeprefix(f"{home}/blob/main/").partition("#")[0]
            assert path.startswith("https://") or not path or (ROOT / path).exists(), f"{name}: {link}"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for change in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    links = re.findall(r"\]\(([^)\s]*)\)", text)
    assert links
    assert all(link.startswith(("https://", "#")) for link in links)


def test_every_recorded_result_is_described_and_every_picture_is_shown() -> None:
    folder = DOCS / "results"
    described = (folder / "README.md").read_text(encoding="utf-8")
    for file in folder.glob("*/*.json*"):
        assert f"`{file.name}`" in described or f"`{file.parent.name}/{file.name}`" in described, file
    texts = [page.read_text(encoding="utf-8") for page in sources()]
    for picture in folder.glob("*/*.png"):
        link = f"{picture.parent.name}/{picture.name}"
        assert any(link in text for text in texts), f"no page shows {relative(picture)}"


def public_names() -> set[str]:
    """Names that users import. The solvers' names are documented as those of ``blockvec.solvers``."""
    listed = {
        "blockvec": set(blockvec.__all__) - {"__version__", "errors", "models", "solvers"},
        "blockvec.models": set(models.__all__) - {"spectra"},
        "blockvec.parallel": set(parallel.__all__) - set(blockvec.__all__),
        "blockvec.solvers": set(solvers.__all__) - set(blockvec.__all__),
        "blockvec.solvers.orthogonalization": set(orthogonalization.__all__) - set(blockvec.__all__),
    }
    for module in (errors, spectra):
        own = [name for name, member in vars(module).items() if inspect.getmodule(member) is module]
        listed[module.__name__] = {name for name in own if not name.startswith("_")}
    return {f"{module}.{name}" for module, names in listed.items() for name in names}


def test_every_public_name_has_a_page_of_the_reference() -> None:
    text = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   (blockvec\.[\w.]+)$", text, re.MULTILINE))
    assert not public_names() - listed, "docs/reference/index.md lacks these names"
    assert not listed - public_names(), "docs/reference/index.md lists names that are not public"


def test_the_guide_lists_every_model() -> None:
    table = (DOCS / "guide" / "matrices.md").read_text(encoding="utf-8").partition("## Models")[2]
    rows = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    missing = {name for name in models.available() if f"`{name}`" not in rows}
    assert not missing, f"the table of docs/guide/matrices.md lacks {missing}"
