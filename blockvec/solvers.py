"""The package `solvers`, found beside blockvec even where another file of that name comes first.

``import solvers`` takes the first module of that name on Python's path, which can be a user's own file. This
module stands for the package that is installed with blockvec: for the same objects as ``import solvers`` if
that finds the package, and otherwise for the package under the name ``blockvec.solvers``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solvers import *  # noqa: F403

_PACKAGE = Path(__file__).resolve().parent.parent / "solvers" / "__init__.py"


def _is_found() -> bool:
    """Check whether ``import solvers`` finds the package that is installed with blockvec."""
    try:
        spec = importlib.util.find_spec("solvers")
    except ValueError:  # a module without a spec has the name
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == _PACKAGE


class _SameModules(MetaPathFinder, Loader):
    """Imports each module of the package once, as the same object under both names."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_ours = name.startswith(f"{__name__}.")
        return ModuleSpec(name, self) if is_ours and importlib.util.find_spec(_real(name)) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_real(spec.name))  # whole, for threads that import it meanwhile
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # that of the other name, which Python has set
        module.__spec__ = module.__spec__.loader_state


def _real(name: str) -> str:
    return name.removeprefix("blockvec.")


if _is_found():
    sys.modules[__name__] = importlib.import_module("solvers")
    for _name in [name for name in sys.modules if name.startswith("solvers.")]:
        sys.modules[f"blockvec.{_name}"] = sys.modules[_name]
    sys.meta_path.insert(0, _SameModules())
else:
    _spec = importlib.util.spec_from_file_location(__name__, _PACKAGE)
    assert _spec is not None
    assert _spec.loader is not None
    _package = importlib.util.module_from_spec(_spec)
    sys.modules[__name__] = _package
    _spec.loader.exec_module(_package)
