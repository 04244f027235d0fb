"""Names that a package imports on first use (PEP 562), so that its import takes no time for the others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any


def on_first_use(
    package: str, names: Mapping[str, str], *, removed: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package from the names that its modules define.

    Its modules are attributes, too, without an import of their own. A name that is also a module's needs an
    import at once: the first import of the module would take its place. For `removed` names, an `ImportError`
    names their replacements; ``from package import name`` would hide the text of an `AttributeError`.
    """
    module_of = {name: module for module, defined in names.items() for name in defined.split()}

    def load(name: str) -> Any:
        if name in module_of:
            value = getattr(importlib.import_module(f".{module_of[name]}", package), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in removed:
            raise ImportError(f"{package}.{name} was removed; use {removed[name]}.", name=package)
        missing = f"module {package!r} has no attribute {name!r}"
        if name.startswith("_") or not name.isidentifier():
            raise AttributeError(missing)
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(missing) from None

    def names_of() -> list[str]:
        return sorted({*(own := vars(sys.modules[package])), *own["__all__"]})

    return load, names_of


def renamed(old: str, new: str) -> None:
    """Let imports from a module under its `old` name find what the `new` one defines.

    The old module is no attribute of its package, where a function may have its name.
    """
    module = ModuleType(old)
    module.__spec__ = ModuleSpec(old, None)

    def load(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        return getattr(importlib.import_module(new), name)

    module.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[old] = module
