"""Commands in the documentation: programs and options that there are."""

from __future__ import annotations

import re
from pathlib import Path

from blockvec.bench import command_line
from solvers.__main__ import parser

ROOT = Path(__file__).resolve().parents[2]
# `python tests/a/b.py ...`, `python -m tests.a.b ...`, `blockvec bench ...`, `blockvec-eigs ...`
COMMAND = re.compile(r"(?:python3? (?:-m )?(tests[\w./]+)|(blockvec(?:-eigs| [a-z]+))) ([^`|\n]*)")


def known_options(script: str, program: str) -> set[str]:
    if script:
        text = (ROOT / f"{script.removesuffix('.py').replace('.', '/')}.py").read_text(encoding="utf-8")
    elif program == "blockvec-eigs":
        text = parser().format_help()
    else:
        (commands,) = (a for a in command_line.parser()._actions if isinstance(a.choices, dict))
        text = commands.choices[program.removeprefix("blockvec ")].format_help()
    return set(re.findall(r"--[a-z][\w-]*", text))


def test_commands_have_the_options_that_pages_name() -> None:
    count = 0
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        if "_build" in page.parts or page.name == "changelog.md":
            continue
        for script, program, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
            for option in set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest)):
                assert option in known_options(script, program), f"{page.name}: {script or program} {option}"
                count += 1
    assert count > 50
