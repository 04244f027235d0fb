"""Source text of a kernel: a prologue of constants, then a CUDA C++ body from ``kernels/cuda``.

The bodies are ordinary files for editors, linters and profilers; only one line per constant is generated.
Pure text: no GPU and no compiler are needed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeAlias

from ..system.frozen import frozen
from .problem import TYPES, real_type

Constant: TypeAlias = bool | int | float
Body: TypeAlias = tuple[str, dict[str, Constant], dict[str, str]]
"""A file with a kernel, and values of its constants and types: see `kernel`."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*$', re.MULTILINE)
_INT32_MAX = 2**31 - 1


def c_type(dtype: str) -> str:
    """Name the C type of an element's real and imaginary parts."""
    return "float" if real_type(dtype) == "float32" else "double"


def short_names(*dtypes: str) -> str:
    """Abbreviate types for a kernel's name, each once, as ``f64`` or ``f64_c128``."""
    return "_".join(dict.fromkeys(TYPES[dtype].short for dtype in dtypes))


def constants_of(record: Any, *names: str, omit: tuple[str, ...] = ()) -> dict[str, Constant]:
    """Collect fields of a dataclass as constants of a kernel, by names in capitals; all if none is named.

    Integers and booleans are kept; the value of a `Literal` of strings becomes its position there.
    """
    literals = _literals(record.__class__)
    fields = names or [field.name for field in dataclasses.fields(record) if field.name not in omit]
    values = {name: getattr(record, name) for name in fields}
    return {
        name.upper(): literals[name].index(value) if name in literals else value
        for name, value in values.items()
    }


@functools.cache
def _literals(record_type: type) -> dict[str, tuple[str, ...]]:
    hints = typing.get_type_hints(record_type)
    return {
        name: typing.get_args(hint)
        for name, hint in hints.items()
        if typing.get_origin(hint) is typing.Literal
    }


@frozen
class Kernel:
    """A kernel as it is compiled and loaded; equal records mean equal machine code."""

    name: str  # of the function, the value of the body's ``KERNEL``
    # File in ``blockvec/kernels/cuda`` with the function. Its ``#include "x.cuh"`` lines are replaced by
    # these files of ``blockvec/kernels/cuda``, each once; there are no other headers.
    body: str
    # Values of the ``constexpr`` lines, in this order; of the ``using`` lines ahead of them; of the
    # ``#define`` lines ahead of these, each one line.
    constants: tuple[tuple[str, Constant], ...]
    types: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...] = ()
    threads: int = 0  # of a block
    shared_bytes: int = 0  # dynamic shared memory of a block
    carveout: int | None = None  # percentage of shared memory to ask for, the rest being L1

    def source(self) -> str:
        """Generate the CUDA source."""
        lines = [f"#define {key} {value}" for key, value in (("KERNEL", self.name), *self.texts)]
        lines += [f"using {key} = {value};" for key, value in self.types]
        lines += [_constant(key, value) for key, value in self.constants]
        return "\n".join(lines) + "\n" + _expanded(self.body)


def kernel(
    body: str,
    constants: Mapping[str, Constant],
    types: Mapping[str, str] = MappingProxyType({}),
    name: str = "",
    **more: Any,
) -> Kernel:
    """Describe the kernel of a body, by default with its name."""
    name = name or body.rpartition("/")[2]
    return Kernel(name, f"{body}.cu", tuple(constants.items()), tuple(types.items()), **more)


def _constant(key: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {key} = {'true' if value else 'false'};"
    if isinstance(value, int):
        kind = "int" if abs(value) <= _INT32_MAX else "long long"
        return f"constexpr {kind} {key} = {value};"
    return f"constexpr double {key} = {value!r};"


@functools.cache
def _expanded(body: str) -> str:
    """Resolve the includes of a body; ``#line`` keeps compiler messages and profiles readable."""
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
