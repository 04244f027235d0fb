"""Sphinx configuration; `make docs` builds into docs/_build/html. The pages need no network."""

import logging
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

import blockvec

sys.path.append(str(Path(__file__).parent / "_ext"))

project = "blockvec"
author = "blockvec developers"
copyright = "2026, blockvec developers"
release = blockvec.__version__
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "command_help",
    "mathml",
    "sphinx_gallery.gen_gallery",
]
copybutton_prompt_text = r">>> |\.\.\. |\$ "  # left out, with the output below
copybutton_prompt_is_regexp = True
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "examples"]
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the docstrings say more: shapes and units
numpydoc_show_class_members = False
templates_path = ["_templates"]
autosummary_generate = ["reference/index.md"]
# Pages whose names differ in case only would be one file on some systems.
autosummary_filename_map = {
    "blockvec.options": "blockvec.options-function",
    "blockvec.profile": "blockvec.profile-function",
}

# Runs the scripts in examples/ that have changed, and writes a page and a notebook for each into gallery/.
# With -D plot_gallery=0 no script runs, and new pages have no pictures.
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "subsection_order": [f"examples/{name}" for name in ("vibrations", "quantum", "data", "solvers")],
    "filename_pattern": r"\.py$",
    "nested_sections": False,
    "show_signature": False,
    "write_computation_times": False,
    "download_all_examples": False,
    "backreferences_dir": "reference/generated/examples",  # for each function the examples that use it
    "doc_module": ("blockvec", "solvers"),
}

# Furo imports a package that calls basicConfig(level=INFO), which has an effect only if it is the first call.
logging.basicConfig(level=logging.WARNING)

html_theme = "furo"
html_title = f"blockvec {release}"
html_copy_source = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["style.css"]


def strip_listings(app: Sphinx, document: nodes.document) -> None:
    """Remove the empty line that a doctest needs before the end of its block."""
    for block in document.findall(nodes.literal_block):
        if block.rawsource == block.astext():
            block.rawsource = block.rawsource.rstrip()
            block.children = [nodes.Text(block.rawsource)]


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", strip_listings)
