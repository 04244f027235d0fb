"""Source text is a prologue of constants and a body with its pieces in place."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from blockvec.kernels.source import render

BODY = "dense/tsmttsm_mma.cu"


def test_constants_and_types_become_lines_ahead_of_the_body_in_order() -> None:
    text = render("probe", BODY, {"M": 8, "BIG": 1 << 40, "CONJ": True, "SCALE": 0.5}, {"Real": "double"})
    assert text.splitlines()[:6] == [
        "#define KERNEL probe",
        "using Real = double;",
        "constexpr int M = 8;",
        "constexpr long long BIG = 1099511627776;",
        "constexpr bool CONJ = true;",
        "constexpr double SCALE = 0.5;",
    ]


def test_each_included_piece_is_in_the_text_once_and_no_include_is_left() -> None:
    text = render("probe", BODY, {})
    assert not re.search(r"^\s*#\s*include", text, re.MULTILINE)
    for piece in ("struct Ring", "mma_m8n8k4(double", "struct GridHeader"):
        assert text.count(piece) == 1


def test_line_directives_name_the_line_of_the_file_that_follows() -> None:
    from importlib import resources

    folder = resources.files("blockvec.kernels").joinpath("cuda")
    lines = render("probe", BODY, {}).splitlines()
    files: dict[str, list[str]] = {}
    checked = 0
    for here, line in enumerate(lines[:-1]):
        if match := re.match(r'#line (\d+) "(.+)"', line):
            original = files.setdefault(match[2], folder.joinpath(match[2]).read_text().splitlines())
            if not lines[here + 1].startswith("#line"):
                assert lines[here + 1] == original[int(match[1]) - 1]
                checked += 1
    assert checked >= len(files) > 1


def test_a_body_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        render("probe", "no_such_kernel.cu", {})


def test_inline_ptx_and_shared_memory_stand_in_the_header_that_the_emulator_replaces() -> None:
    folder = resources.files("blockvec.kernels").joinpath("cuda")
    found = {
        f"{group.name}/{file.name}"
        for group in folder.iterdir()
        for file in group.iterdir()
        if re.search(r"\basm\b|__shared__", re.sub(r"//.*", "", file.read_text(encoding="utf-8")))
    }
    assert found == {"common/ptx.cuh", "common/views.cuh"}
