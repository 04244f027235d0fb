"""Insert the help of a command, from the function that creates its parser: ``module:function [command]``."""

from __future__ import annotations

import importlib
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class CommandHelp(SphinxDirective):
    """Print the help of a parser, or of one of its commands as the second argument."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Create the listing."""
        module, _, function = self.arguments[0].partition(":")
        parser = getattr(importlib.import_module(module), function)()
        for command in self.arguments[1:]:
            parser = parser._subparsers._group_actions[0].choices[command]
        text = parser.format_help()
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
