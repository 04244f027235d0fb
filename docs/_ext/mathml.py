"""Render formulas as MathML at build time: browsers display it without a network and without JavaScript.

Select it with ``extensions = ["mathml"]`` and ``html_math_renderer = "mathml"``.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

logger = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block, display: str) -> str:
    """Convert the formula of a node, with a warning if it contains what latex2mathml does not know."""
    source = node.astext().strip()
    try:
        markup: str = convert(source, display=display)
    except Exception as error:  # the library has a dozen classes without a common base
        logger.warning("cannot render %r: %s", source, type(error).__name__, location=node)
        return ""
    if "\\" in markup:  # unknown commands are copied to the output
        logger.warning("cannot render %r: unknown command", source, location=node)
    return markup


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """Write a displayed formula; a wide one scrolls (see style.css)."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(mathml(node, "block") + "</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
