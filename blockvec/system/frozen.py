"""Frozen dataclasses that are defined in little time: no source code is generated and compiled for them."""

from __future__ import annotations

import dataclasses
import inspect
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")
_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a class one as ``dataclass(frozen=True)`` does, in a tenth of the time.

    Each method that `dataclasses` generates is compiled on every import, which was more than half of the time
    that these packages took to import. Those of all classes made here are the same functions of its fields.
    What inherits from such a class is made by this function, too.

    Examples
    --------
    >>> @frozen
    ... class Tile:
    ...     rows: int
    ...     columns: int = 4
    >>> Tile(2) == Tile(2, columns=4), dataclasses.replace(Tile(2), rows=3)
    (True, Tile(rows=3, columns=4))
    """
    cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise `dataclasses` writes one, with some effort
    made = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(made)  # type: ignore[arg-type]
    names = tuple(field.name for field in fields)
    defaults = {field.name: field for field in fields if _has_default(field)}
    values = attrgetter(*names) if names else lambda _: ()
    finish = getattr(made, "__post_init__", None)

    def initialise(self: Any, *given: Any, **named: Any) -> None:
        own = self.__dict__
        own.update(zip(names, given, strict=False), **named)
        count = len(own)
        if count < len(names):
            own.update({name: _default(field) for name, field in defaults.items() if name not in own})
        if count < len(given) + len(named) or own.keys() != known:
            raise TypeError(f"{made.__name__} takes {', '.join(names)}, but got {given} and {named}.")
        if finish is not None:
            finish(self)

    def equals(self: T, other: object) -> bool:
        return type(self) is type(other) and bool(values(self) == values(other))

    def as_text(self: T) -> str:
        return f"{made.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    known = frozenset(names)
    parameters = [inspect.Parameter("self", _KIND), *map(_parameter, fields)]
    initialise.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    methods = {
        "__init__": initialise,
        "__eq__": equals,
        "__hash__": lambda self: hash(values(self)),
        "__repr__": cls.__dict__.get("__repr__", as_text),
        "__setattr__": _refuse,
        "__delattr__": _refuse,
    }
    for name, method in methods.items():
        setattr(made, name, method)
    return made


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    default = ... if field.default is dataclasses.MISSING and _has_default(field) else field.default
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    return inspect.Parameter(field.name, _KIND, default=default, annotation=field.type)


def _refuse(self: Any, name: str, *_: Any) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is frozen: cannot change {name!r}.")
