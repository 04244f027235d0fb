"""Functions of rows of numbers on a GPU: kernels that are generated from functions in Python.

A function is called once with symbols in the place of arrays: its operations, in their order, are the
statements of the kernel. Arithmetic is in double precision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .source import Kernel, kernel

THREADS = 128  # of a block
C_NAMES = {"float32": "float", "float64": "double", "bool": "bool"}
"""C types of the numbers of a row, by element type."""


def _operation(operator: str, kind: str = "double", *, reflected: bool = False) -> Any:
    """Make a method of symbols that adds an operation of two numbers to the code."""

    def method(self: Symbol, other: Any) -> Symbol:
        a, b = (other, self) if reflected else (self, other)
        return self.tracer.define(kind, f"{text_of(a)} {operator} {text_of(b)}")

    return method


class Symbol:
    """A number of a traced function: the name of a variable, or a constant, of the generated code."""

    __array_ufunc__ = None

    def __init__(self, tracer: Tracer, text: str) -> None:
        self.tracer, self.text = tracer, text

    __add__, __radd__ = _operation("+"), _operation("+", reflected=True)
    __sub__, __rsub__ = _operation("-"), _operation("-", reflected=True)
    __mul__, __rmul__ = _operation("*"), _operation("*", reflected=True)
    __truediv__, __rtruediv__ = _operation("/"), _operation("/", reflected=True)
    __le__, __gt__ = _operation("<=", "bool"), _operation(">", "bool")
    __and__, __or__ = _operation("&&", "bool"), _operation("||", "bool")

    def __pow__(self, exponent: int) -> Symbol:
        if exponent != 2:
            raise TypeError(f"got the power {exponent}; rows have squares only.")
        return self.tracer.define("double", f"{self.text} * {self.text}")

    def __neg__(self) -> Symbol:
        return self.tracer.define("double", f"-{self.text}")

    def __invert__(self) -> Symbol:
        return self.tracer.define("bool", f"!{self.text}")


def _function(name: str) -> Any:
    """Make a method of tracers that adds a call of a function of C to the code."""
    return lambda self, a: self.define("double", f"{name}({text_of(a)})")


class Tracer:
    """The stand-in for NumPy that a traced function is called with; it records operations as `statements`."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def define(self, kind: str, text: str) -> Symbol:
        """Add a statement that defines a variable."""
        name = f"v{len(self.statements)}"
        self.statements.append(f"const {kind} {name} = {text};")
        return Symbol(self, name)

    sqrt, log, cos, abs = map(_function, ("sqrt", "log", "cos", "fabs"))

    def maximum(self, a: Any, b: Any) -> Symbol:
        """Take the larger number, or the NaN, as NumPy does."""
        return self.define("double", f"maximum({text_of(a)}, {text_of(b)})")

    def where(self, condition: Symbol, a: Any, b: Any) -> Symbol:
        return self.define("double", f"{condition.text} ? {text_of(a)} : {text_of(b)}")


def text_of(value: Any) -> str:
    """Write a symbol or a number."""
    return value.text if isinstance(value, Symbol) else repr(float(value))


def trace(function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> Kernel:
    """Translate ``function(xp, *rows)``, with results in a tuple, for rows of some element types."""
    tracer = Tracer()
    results = function(tracer, *(Symbol(tracer, f"a{i}") for i in range(len(inputs))))
    pointers = [f"const {C_NAMES[dtype]}* x{i}, i64 step_x{i}" for i, dtype in enumerate(inputs)]
    pointers += [f"{C_NAMES[dtype]}* y{i}, i64 step_y{i}" for i, dtype in enumerate(outputs)]
    kinds = ["bool" if dtype == "bool" else "double" for dtype in inputs]
    lines = [f"const {kind} a{i} = x{i}[j * step_x{i}];" for i, kind in enumerate(kinds)]
    lines += tracer.statements
    for i, (dtype, result) in enumerate(zip(outputs, results, strict=True)):
        lines.append(f"y{i}[j * step_y{i}] = static_cast<{C_NAMES[dtype]}>({text_of(result)});")
    texts = ("PARAMETERS", ", ".join(pointers)), ("COMPUTE", " ".join(lines))
    name = "rows_" + re.sub(r"\W", "", function.__name__).strip("_")
    return kernel("elementwise/rows", {"THREADS": THREADS}, name=name, threads=THREADS, texts=texts)
