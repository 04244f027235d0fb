"""A model: its parameters, their check, and the table that it is entered in."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec

import numpy as np
import scipy.sparse

from ..errors import OptionError
from ..operators.row_generator import RowGenerator
from ..system.frozen import frozen

P = ParamSpec("P")


@frozen
class Model:
    """Entry of the table of models."""

    name: str
    summary: str
    example: str
    build: Callable[..., RowGenerator]
    types: Mapping[str, type]
    defaults: Mapping[str, Any]

    def generator(self, arguments: Mapping[str, Any]) -> RowGenerator:
        """Check the arguments and create the generator."""
        for parameter in arguments:
            if parameter not in self.types:
                raise self.error(
                    f"unknown parameter {parameter!r}{suggestion(parameter, self.types)}; "
                    f"it takes {', '.join(self.types)}"
                )
        missing = [p for p in self.types if p not in arguments and p not in self.defaults]
        if missing:
            raise self.error(f"no value is given for {', '.join(missing)}")
        checked = {parameter: self._checked(parameter, value) for parameter, value in arguments.items()}
        rows: RowGenerator = self._named(self.build, **checked)
        return rows

    def matrix(self, arguments: Mapping[str, Any]) -> scipy.sparse.csr_array:
        """Check the arguments and assemble the matrix."""
        rows = self.generator(arguments)
        with np.errstate(over="ignore", invalid="ignore"):
            matrix: scipy.sparse.csr_array = self._named(rows.matrix)
        if not np.isfinite(matrix.data).all():
            raise self.error("elements exceed the largest float64; give smaller parameters")
        return matrix

    def _named(self, make: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return make(**arguments)
        except OptionError as error:
            raise self.error(str(error)) from None

    def error(self, text: str) -> OptionError:
        """Create an error with an example of a valid description."""
        return OptionError(f"{self.name}: {text.rstrip('.')}. Example: {self.example}")

    def _checked(self, parameter: str, value: Any) -> Any:
        kind = self.types[parameter]
        if value is None and self.defaults.get(parameter, 0) is None:
            return None
        if isinstance(value, bool | np.bool):
            if kind is bool:
                return bool(value)
        elif isinstance(value, numbers.Integral) and abs(int(value)) >= _MAX_INTEGER:
            raise self.error(f"{parameter} has more than 18 digits")
        elif kind is int and isinstance(value, numbers.Integral):
            return operator.index(value)
        elif kind is float and isinstance(value, numbers.Real) and math.isfinite(value):
            return float(value)
        raise self.error(f"{parameter}={reprlib.repr(value)} is not {_KINDS[kind]}")

    def parse(self, text: str) -> dict[str, Any]:
        """Parse ``"n=64,periodic=true"`` into arguments."""
        names = {parameter.lower(): parameter for parameter in self.types}
        arguments: dict[str, Any] = {}
        for item in text.split(","):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not (key and equals and value):
                raise self.error(f"{item!r} is not of the form parameter=value, with commas between them")
            parameter = names.get(key.lower(), key)
            if parameter in arguments:
                raise self.error(f"{parameter} is given twice")
            try:
                arguments[parameter] = _READ[self.types[parameter]](value.lower())
            except (KeyError, ValueError):  # unknown or invalid: generator() raises
                arguments[parameter] = value
        return arguments


_MAX_INTEGER = 10**18  # the product of a few sizes is still a finite float
_KINDS = {int: "an integer", float: "a finite number", bool: "true or false"}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_READ: dict[type, Callable[[str], Any]] = {int: int, float: float, bool: _TRUTH.__getitem__}
MODELS: dict[str, Model] = {}
_RAISES = "Raises\n------\nOptionError\n    If a value is missing or invalid.\n"  # section for all models


def physics_model(
    summary: str, *, example: str
) -> Callable[[Callable[P, RowGenerator]], Callable[P, scipy.sparse.csr_array]]:
    """Register a function that builds a row generator as a model, with a line for the table and an example.

    The decorated function returns the assembled matrix, its arguments are checked against their
    annotations (int, float, bool, or one of them and None), and the table of models lists it. The name and
    the example are appended to the message of an :class:`~blockvec.errors.OptionError` from the function.
    """

    def decorate(build: Callable[P, RowGenerator]) -> Callable[P, scipy.sparse.csr_array]:
        signature = inspect.signature(build, eval_str=True)
        parameters = signature.parameters.values()
        entry = Model(
            name=build.__name__,
            summary=summary,
            example=example,
            build=build,
            # The type T of the annotations T and T | None.
            types={p.name: getattr(p.annotation, "__args__", (p.annotation,))[0] for p in parameters},
            defaults={p.name: p.default for p in parameters if p.default is not p.empty},
        )
        MODELS[entry.name] = entry

        @functools.wraps(build)
        def assemble(*args: P.args, **kwargs: P.kwargs) -> scipy.sparse.csr_array:
            if args:
                raise entry.error("parameters are given by name")
            return entry.matrix(kwargs)

        # help() and the reference manual show this docstring and signature.
        assemble.__doc__ = f"{inspect.getdoc(build)}\n\n{_RAISES}"
        assemble.__signature__ = signature.replace(return_annotation=scipy.sparse.csr_array)  # type: ignore[attr-defined]
        assemble.__annotations__ = {**build.__annotations__, "return": "csr_array"}
        return assemble

    return decorate


def suggestion(given: str, known: Iterable[str]) -> str:
    """Name the known word that is most like the given one, for a message."""
    close = difflib.get_close_matches(given.lower(), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
