"""Source text of a kernel: a prologue of constants, then a CUDA C++ body from ``kernels/cuda``.

The bodies are ordinary files that any editor, linter or profiler can read; all that is generated is a
line for each constant. Pure text: no GPU and no compiler are needed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources

__all__ = ["C_TYPES", "SHORT_NAMES", "render"]

C_TYPES = {4: "float", 8: "double"}  # by the bytes of a real number
SHORT_NAMES = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*$', re.MULTILINE)
_INT32_MAX = 2**31 - 1


def render(
    name: str,
    body: str,
    constants: Mapping[str, bool | int | float],
    types: Mapping[str, str] | None = None,
) -> str:
    """Return the source of one kernel.

    Parameters
    ----------
    name : str
        Name of the kernel: what the body's ``KERNEL`` stands for.
    body : str
        File in ``blockvec/kernels/cuda`` with the kernel's body. Its ``#include "x.cuh"`` lines are
        replaced by those files of the same folder, each once; there are no other headers.
    constants : mapping of str to bool, int or float
        Becomes ``constexpr`` lines, in the given order.
    types : mapping of str to str, optional
        Becomes ``using`` lines ahead of the constants.

    Raises
    ------
    FileNotFoundError
        If the body or a piece it includes does not exist.

    Examples
    --------
    >>> print(render("probe", "probe.cu", {"M": 8, "CONJ": True}, {"Real": "double"}))  # doctest: +SKIP
    #define KERNEL probe
    using Real = double;
    constexpr int M = 8;
    constexpr bool CONJ = true;
    #line 1 "probe.cu"
    ...
    """
    lines = [f"#define KERNEL {name}"]
    lines += [f"using {key} = {value};" for key, value in (types or {}).items()]
    lines += [_constant(key, value) for key, value in constants.items()]
    return "\n".join(lines) + "\n" + _expanded(body)


def _constant(key: str, value: bool | int | float) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {key} = {'true' if value else 'false'};"
    if isinstance(value, int):
        kind = "int" if abs(value) <= _INT32_MAX else "long long"
        return f"constexpr {kind} {key} = {value};"
    return f"constexpr double {key} = {value!r};"


@functools.cache
def _expanded(body: str) -> str:
    """Text of a body with its includes resolved; ``#line`` keeps compiler messages and profiles readable."""
    seen: set[str] = set()

    def expand(filename: str) -> str:
        seen.add(filename)
        text = resources.files(__package__).joinpath("cuda", *filename.split("/")).read_text(encoding="utf-8")
        pieces = [f'#line 1 "{filename}"\n']
        position = 0
        for match in _INCLUDE.finditer(text):
            pieces.append(text[position : match.start()])
            position = match.end() + 1
            if match[1] not in seen:
                pieces.append(expand(match[1]))
            next_line = text.count("\n", 0, match.end()) + 2
            pieces.append(f'#line {next_line} "{filename}"\n')
        pieces.append(text[position:])
        expanded = "".join(pieces)
        return expanded if expanded.endswith("\n") else expanded + "\n"

    return expand(body)
