"""Table of models, and parser of their descriptions."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import operator
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec

import numpy as np
import scipy.sparse

from ..errors import OptionError
from ..system.frozen import frozen
from .rows import RowGenerator

P = ParamSpec("P")


@frozen
class _Model:
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
                    f"unknown parameter {parameter!r}{_suggestion(parameter, self.types)}; "
                    f"it takes {', '.join(self.types)}"
                )
        missing = [p for p in self.types if p not in arguments and p not in self.defaults]
        if missing:
            raise self.error(f"no value is given for {', '.join(missing)}")
        checked = {parameter: self._checked(parameter, value) for parameter, value in arguments.items()}
        try:
            return self.build(**checked)
        except OptionError as error:
            raise self.error(str(error)) from None

    def matrix(self, arguments: Mapping[str, Any]) -> scipy.sparse.csr_array:
        """Check the arguments and assemble the matrix."""
        rows = self.generator(arguments)
        try:
            return rows.matrix()
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
            arguments[parameter] = self._from_text(parameter, value)
        return arguments

    def _from_text(self, parameter: str, text: str) -> Any:
        kind = self.types.get(parameter)
        if kind is bool:
            return _TRUTH.get(text.lower(), text)
        if kind is None:
            return text  # unknown: generator() raises
        try:
            return kind(text)
        except ValueError:
            return text  # invalid: generator() raises


_MAX_INTEGER = 10**18  # the product of a few sizes is still a finite float
_KINDS = {int: "an integer", float: "a finite number", bool: "true or false"}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MODELS: dict[str, _Model] = {}
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
        signature = inspect.signature(build)
        hints = typing.get_type_hints(build)
        entry = _Model(
            name=build.__name__,
            summary=summary,
            example=example,
            build=build,
            types={parameter: _plain(hints[parameter]) for parameter in signature.parameters},
            defaults={p.name: p.default for p in signature.parameters.values() if p.default is not p.empty},
        )
        _MODELS[entry.name] = entry

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


def _models() -> dict[str, _Model]:
    """Return the table of models, with those of every module: each registers its own when it is imported."""
    from . import lattice, many_body, random_structure  # noqa: F401

    return _MODELS


def model(spec: str) -> scipy.sparse.csr_array:
    """Create the matrix of a description.

    Parameters
    ----------
    spec : str
        ``"name:parameter=value,parameter=value"``; :func:`available` lists the names. Case is
        ignored.

    Returns
    -------
    csr_array, shape (n, n)
        Hermitian, in canonical form, with 32-bit indices where they fit.

    Raises
    ------
    OptionError
        If there is no such model or parameter, a value is missing or invalid, or the matrix would not fit
        in the available memory.

    Examples
    --------
    >>> from blockvec import models
    >>> A = models.model("xxz:sites=10,up=5")
    >>> A.shape
    (252, 252)
    """
    entry, arguments = _parsed(spec)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = entry.matrix(arguments)
    if not np.isfinite(matrix.data).all():
        raise OptionError(f"{spec}: elements exceed the largest float64; give smaller parameters.")
    return matrix


def generator(spec: str) -> RowGenerator:
    """Create the row generator of a description.

    Parameters
    ----------
    spec : str
        As for :func:`model`.

    Returns
    -------
    RowGenerator
        Creates any range of rows; the whole matrix is formed on request only.

    Raises
    ------
    OptionError
        As for :func:`model`.

    Examples
    --------
    >>> from blockvec import models
    >>> models.generator("xxz:sites=40,up=20")
    RowGenerator(137846528820x137846528820, float64)
    """
    entry, arguments = _parsed(spec)
    return entry.generator(arguments)


def _parsed(spec: str) -> tuple[_Model, dict[str, Any]]:
    """Split a description into model and arguments."""
    name, _, text = spec.partition(":")
    name, known = name.strip().lower(), _models()
    if name not in known:
        raise OptionError(
            f"model: there is no model {name!r}{_suggestion(name, known)}; there are {', '.join(known)}. "
            "Example: laplace3d:n=64"
        )
    entry = known[name]
    return entry, entry.parse(text) if text.strip() else {}


def available() -> dict[str, str]:
    """List the models.

    Returns
    -------
    dict
        Name -> one line with summary, parameters and an example.

    Examples
    --------
    >>> from blockvec import models
    >>> print(models.available()["laplace1d"])
    1-D Laplacian, 3-point stencil; parameters n, periodic=false; e.g. laplace1d:n=1000
    """
    return {
        entry.name: f"{entry.summary}; parameters {_parameters(entry)}; e.g. {entry.example}"
        for entry in _models().values()
    }


def _parameters(entry: _Model) -> str:
    def text(parameter: str) -> str:
        default = entry.defaults.get(parameter)
        if default is None:
            return parameter
        return f"{parameter}={str(default).lower() if isinstance(default, bool) else default}"

    return ", ".join(text(parameter) for parameter in entry.types)


def _plain(hint: Any) -> type:
    """Extract the type T from the annotations T and T | None."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in hint.__args__ if part is not types.NoneType)
    if hint not in _KINDS:
        raise TypeError(f"a model's parameter is annotated {hint}; use int, float or bool")
    kind: type = hint
    return kind


def _suggestion(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given.lower(), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
